"""BACKTEST: when would each alert have fired? The real rules over the real windows of any stretch that ClickHouse holds.

history.py      panes → the store and the view of every past minute, by the worker's own code
plan.py         which rules can be replayed (expression.py: what an expression reads), in which order
series.py       what /metrics would have shown → remote-write requests
engine.py       a Prometheus of our own, which takes them and evaluates the rules
alerting.py     `for` and `keep_firing_for`
run.py          the steps above, a stretch at a time
report.py       the table, the terminal's curves, JSON; plot.py: a picture
"""

from __future__ import annotations

from citegauge.tools.backtest.engine import read_rules
from citegauge.tools.backtest.plot import check_plot, draw
from citegauge.tools.backtest.report import as_json, print_report
from citegauge.tools.backtest.run import Asked, Progress, Report, run_backtest

__all__ = ["Asked", "Progress", "Report", "as_json", "check_plot", "draw", "print_report", "read_rules", "run_backtest"]
