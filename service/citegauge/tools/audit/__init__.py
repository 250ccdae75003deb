"""AUDIT: does ClickHouse hold what the log says, and the re-keyed log what its sources say?

    oracle      one partition's log → closed panes, trace rows, late spans; shares the formulas with the worker, not the join
    stored      the same in ClickHouse
    partition   feeds the one, asks the other, names what differs
    rekeyed     of sources that are re-keyed: what they say against what the spans topic has
    sources     reads both in step for it
    unread      what stood in the logs at the start and nobody has read at the end
    reading     a part of a partition, in order
    topic       from where to where each partition is read
    run         which topics there are, and how their records are opened
    report      what was found, for the terminal and as JSON

Clients are given; the composition root makes them.
"""

from citegauge.tools.audit.partition import PartitionAudit, Range, opener
from citegauge.tools.audit.report import AuditReport, Difference, PartitionReport, SourceReport, Unread, lines
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
    "SourceReport",
    "StoredRows",
    "Unread",
    "lines",
    "opener",
    "run_audit",
]
