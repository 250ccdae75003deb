"""What the composition root passes on to its parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from citegauge.bootstrap import Worker
from citegauge.domain.drop import Limits
from citegauge.domain.window import Heartbeat
from citegauge.section_alerts import AlertSettings
from citegauge.sections import KafkaSettings
from citegauge.settings import Settings

if TYPE_CHECKING:
    from citegauge.adapters.clickhouse import ClickHouse


def test_the_worker_passes_on_what_the_settings_say() -> None:
    """The cold tier of every role knows the topics of the join, and the alert history the limits of a ticket."""
    database = cast("ClickHouse", SimpleNamespace(query=None))
    keyed = Settings(kafka=KafkaSettings(source_topic="mine", keyed=True), alerts=AlertSettings(traces_min=70))
    worker = Worker(keyed, "roll", database)
    assert worker.roll is not None
    worker.roll._as_of.beat("mine/0", Heartbeat(0, 0, True, 0))
    assert not worker.roll._as_of.ignores("mine/1")
    assert worker.roll._as_of.ignores("citegauge.spans/0")
    assert worker.web_sources().drop_limits == Limits(traces_min=70)
    assert Worker(Settings(), "roll", database).web_sources().drop_limits == Limits(), "one table of defaults"

    rekeyed = Worker(Settings(kafka=KafkaSettings(source_topic="mine")), "all", database).roll
    assert rekeyed is not None
    rekeyed._as_of.beat("citegauge.spans/0", Heartbeat(0, 0, True, 0))
    assert rekeyed._as_of.ignores("mine/0"), "of a topic that was keyed until now"
