"""Stories of what stands still: source partitions of the re-key stage beside the spans topic, and workers that hang."""

from __future__ import annotations

from support.promtool import BREAK, MINUTES, key, rising, steady, story, then

OTHER = {"job": "citegauge", "instance": "other:9464"}


def rises(per_minute: float) -> str:
    """Nothing until the break, and from then on a steady growth."""
    return f"{steady(0, BREAK)} 0+{per_minute!r}x{MINUTES - BREAK}"


def source(topic: str = "traces", **changes: str) -> dict[str, str]:
    """A source partition that the re-key stage reads in time, with some of its series replaced."""
    usual = {
        "position_lag_records": steady(3, MINUTES),
        "watermark_timestamp_seconds": rising(60),
        "commit_age_seconds": steady(5, MINUTES),
        "progress_age_seconds": steady(0, MINUTES),
    }
    place = {"topic": topic, "partition": "2"}
    return {key(f"citegauge_{name}", **place): values for name, values in (usual | changes).items()}


LOGS = {"watermark_timestamp_seconds": steady(0, MINUTES)}
"""No span of ours was ever in it."""
OLD_LOGS = {"watermark_timestamp_seconds": steady(60, MINUTES)}
"""There was one long ago."""
STANDS = {"position_lag_records": then(3, 700), "progress_age_seconds": rises(60)}
NOT_READ = {"CitegaugeStalled": 1, "CitegaugeNotReading": 1}
OVERRULED = "citegauge_rekey_holds_overruled_total"

FIRES: dict[str, tuple[dict[str, str], dict[str, int]]] = {
    "a source partition is not read": (
        story(changes=source(**STANDS, watermark_timestamp_seconds=rising(60, until=BREAK))),
        {**NOT_READ, "CitegaugeLagSeconds": 1},
    ),
    "a source partition without spans of ours is not read": (story(changes=source("logs", **STANDS, **LOGS)), NOT_READ),
    "a source partition that had spans long ago is not read": (
        story(changes=source("logs", **STANDS, **OLD_LOGS)),
        {**NOT_READ, "CitegaugeLagSeconds": 1},
    ),
    "a partition of the join is not read": (
        story(
            changes={
                key(f"citegauge_{name}", topic="spans", partition="0"): values
                for name, values in (STANDS | {"watermark_timestamp_seconds": rising(60, until=BREAK)}).items()
            }
        ),
        {**NOT_READ, "CitegaugeLagSeconds": 1},
    ),
    "a source partition is re-keyed at half the speed": (
        story(
            changes=source(
                position_lag_records=then(3, 9_000),
                watermark_timestamp_seconds=f"0+60x{BREAK - 1} {60 * BREAK}+30x{MINUTES - BREAK}",
            )
        ),
        {"CitegaugeLagSeconds": 1},
    ),
    "many records of a source wait": (
        story(changes=source("logs", **LOGS, position_lag_records=then(3, 200_000))),
        {"CitegaugeLagRecords": 1},
    ),
    "logs are read and never committed": (
        story(
            changes=source("logs", **LOGS, position_lag_records=" ".join(["3 0 1"] * 30), commit_age_seconds=rises(60))
        ),
        {"CitegaugeCommitAge": 1},
    ),
    "a worker hangs": (
        story(
            changes={
                key("up", **OTHER): then(1, 0),
                key("scrape_duration_seconds", **OTHER): then(0.1, 10.001),
            }
        ),
        {"CitegaugeWorkerHangs": 1, "CitegaugeWorkerDown": 1},
    ),
    "a source is no longer waited for": (
        story(changes=source() | {key(OVERRULED, topic="traces", partition="2"): rises(1)}),
        {"CitegaugeRekeyOverruled": 1},
    ),
}

QUIET: dict[str, dict[str, str]] = {
    "sources are re-keyed in time": story(changes=source()),
    "logs beside the traces": story(changes=source("logs", **LOGS, position_lag_records=" ".join(["3 0 1"] * 30))),
    "logs that had spans long ago": story(changes=source("logs", **OLD_LOGS)),
    "a source that is idle": story(
        changes=source(
            position_lag_records=steady(0, MINUTES),
            watermark_timestamp_seconds=steady(60, MINUTES),
            commit_age_seconds=rising(60),
        )
    ),
    "holds that were overruled before Prometheus began": story(
        changes={
            key("process_start_time_seconds"): steady(-86_400, MINUTES),
            key(OVERRULED, topic="traces", partition="2"): steady(7, MINUTES),
        }
    ),
}
