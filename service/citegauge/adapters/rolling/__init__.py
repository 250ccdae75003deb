"""The cold tier: panes topic → rolling windows.

restore.py   closed panes, folded in SQL, when a partition is assigned
detectors.py the detectors over a store's groups, in turns
week.py      what the last 7 days hold, from ClickHouse
tier.py      messages, acknowledgements
view.py      the windows as metrics, page and backtest see them
app.py       the Faust app around it
"""

from citegauge.adapters.rolling.app import build_app
from citegauge.adapters.rolling.tier import RollTier
from citegauge.adapters.rolling.view import View, view_of, window_row

__all__ = ["RollTier", "View", "build_app", "view_of", "window_row"]
