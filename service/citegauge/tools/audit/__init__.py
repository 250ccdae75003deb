"""AUDIT: does ClickHouse hold what the log says? An oracle that reads the topic once, and the comparison.

    oracle      one partition's log → closed panes, trace rows, late spans; shares the formulas with the worker, not the join
    stored      the same in ClickHouse
    partition   feeds the one, asks the other, names what differs
    topic       from where to where each partition is read
    run         which topics there are, and how their records are opened
    report      what was found, for the terminal and as JSON

Clients are given; the composition root makes them.
"""

from citegauge.tools.audit.partition import PartitionAudit, Range, opener
from citegauge.tools.audit.report import AuditReport, Difference, PartitionReport, lines
from citegauge.tools.audit.run import KafkaSide, run_audit
from citegauge.tools.audit.stored import StoredRows
from citegauge.tools.audit.topic import Asked, Progress

__all__ = [
    "Asked",
    "AuditReport",
    "Difference",
    "KafkaSide",
    "PartitionAudit",
    "PartitionReport",
    "Progress",
    "Range",
    "StoredRows",
    "lines",
    "opener",
    "run_audit",
]
