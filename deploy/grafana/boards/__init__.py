"""The three Grafana dashboards as code; `generate.py` beside this folder writes them as JSON.

Not part of the package: production needs neither this nor the SDK. What the dashboards may ask for stands in
`citegauge.metrics`, in `citegauge.tools.rules` and in `sql/`; `tests/integration/test_dashboards.py` runs every query.

* `parts`: data sources, queries, panels and variables in the house form.
* `quality`: how much of what was retrieved the answers cite, per route and top_k bucket (`quality_sql`: its SQL).
* `pipeline`: is everything read, joined and stored, and how fresh are the numbers.
* `traces`: from a number down to one trace.
"""
