"""citegauge: how much of what a retriever returns do the answers cite? Measured on production traces, without labels.

The map, in the order in which data flows:

    conventions/            DECODE: bytes of a record → normalised spans
    domain/join.py          JOIN: spans → traces, in panes of one minute; what is late, what closes
                            (what it holds: state.py, a span as it is kept: kept.py, what it tells: changes.py;
                            beside it, which traces have spans of which user: users.py)
    domain/score.py         SCORE: a trace's spans → its result (recall, top-1 score, state)
    domain/pane.py          PANE: results → counts; domain/distribution.py: counts → quantiles (intervals.py: how sure)
    domain/progress.py      what is committed, and how a restart rebuilds the state from the log
    pipeline.py             the five above for one partition, on one screen
    adapters/kafka/hot.py   reads Kafka, runs the pipeline, publishes and commits
    domain/window.py        WINDOW: panes → rolling 1 h, 6 h, 24 h; domain/summary.py: what is published of one
    domain/baseline.py      DETECT: what is usual; against it: compare.py (the hour), cusum.py (6 h), shift.py (scores);
                            signals.py: all of them for one roll-up; drop.py: what fell by the rule for drops;
                            episodes.py: a drop from its start to its end; words.py: how numbers are written
    domain/mix.py           EXPLAIN: what changed within groups, what only moved; versions.py: new versions and old
    adapters/rolling/       the Faust app that keeps the windows
    adapters/               ClickHouse, Prometheus, web page, embedded broker
    tools/                  replay, simulate, demo, doctor, audit, explain, forget, rules, backtest
    bootstrap.py            ties them together; cli.py (commands/) offers them as commands
"""
