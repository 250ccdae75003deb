"""The cold tier: panes topic → rolling windows.

restore.py   closed panes, folded in SQL, when a partition is assigned
tier.py      messages, acknowledgements, windows
app.py       the Faust app around it
"""

from citegauge.adapters.rolling.app import build_app
from citegauge.adapters.rolling.tier import RollTier, View, window_row

__all__ = ["RollTier", "View", "build_app", "window_row"]
