"""EXPLAIN: why the recall of a route, a family of routes or the whole is not what it was: read, take apart, say.

asked.py    which routes, which two periods
read.py     their panes as cells, and the worst traces
report.py   the split, the versions, and one sentence
show.py     tables
"""

from citegauge.tools.explain.asked import Arguments, Asked, asked_of
from citegauge.tools.explain.report import Explanation, explain
from citegauge.tools.explain.show import show

__all__ = ["Arguments", "Asked", "Explanation", "asked_of", "explain", "show"]
