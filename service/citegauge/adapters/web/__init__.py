"""The web page and the HTTP endpoints: shows what the service computed. Computes no window itself and knows no Kafka.

`guard` says who may ask, `sources` what it shows, `params` what may be asked; `history`, `evidence` (`heat`: as a heat map)
and `judged` read ClickHouse; `shape` makes live windows JSON, `app` ties these to addresses, `static/` is the page.
"""

from citegauge.adapters.web.app import build_web_app
from citegauge.adapters.web.guard import WebGuard
from citegauge.adapters.web.judged import Past
from citegauge.adapters.web.sources import Health, WebLimits, WebSources

__all__ = ["Health", "Past", "WebGuard", "WebLimits", "WebSources", "build_web_app"]
