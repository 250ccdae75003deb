"""AUDIT: does ClickHouse hold what the log says? An oracle that reads the topic once, and the comparison.

    oracle      one partition's log → closed panes, trace rows, late spans; shares the formulas with the worker, not the join
    stored      the same in ClickHouse
    partition   feeds the one, asks the other, names what differs
    report      what was found

Reading Kafka is the composition root's business.
"""

from citegauge.tools.audit.partition import PartitionAudit, Range, keyed_opener
from citegauge.tools.audit.report import AuditReport, Difference, PartitionReport
from citegauge.tools.audit.stored import StoredRows

__all__ = ["AuditReport", "Difference", "PartitionAudit", "PartitionReport", "Range", "StoredRows", "keyed_opener"]
