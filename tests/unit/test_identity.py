"""Whose names these are: claims by hand, and the one line that a stranger is told."""

from __future__ import annotations

import pytest

from citegauge.adapters.kafka.installation import names_of
from citegauge.domain.identity import Claim, from_metadata, refusal
from citegauge.domain.progress import METADATA_BYTES_MAX
from citegauge.sections import KafkaSettings, RekeySettings, SourceSettings
from citegauge.settings import Settings

NAMES = {"kafka.group_id": "g", "kafka.panes_topic": "p", "kafka.dead_letter_topic": "d"}
MINE = [Claim("b", NAMES)]


def test_the_line_names_both_and_exactly_what_is_taken() -> None:
    """Whose the names are, who this is, and each setting whose name is taken; those that are free are not named."""
    found = [Claim("a", {"kafka.group_id": "g", "kafka.panes_topic": "other"}), Claim("c", {"kafka.group_id": "x"})]
    line = refusal(["b"], MINE, found)
    assert line == (
        "installation b is not a, to which these names in Kafka belong: kafka.group_id = g; "
        "give this one other names, or, if it is a over a new database, set kafka.installation = a"
    )


@pytest.mark.parametrize(
    "found",
    [
        [],
        [Claim("b", NAMES)],
        [Claim("older", NAMES)],
        [Claim("a", {setting: f"{name}2" for setting, name in NAMES.items()})],
        [Claim("a", {"kafka.dead_letter_topic": "d"})],
        [Claim("a", {"rekey.group_id": "g"})],
    ],
    ids=["nobody", "self", "another_id_of_self", "other_names", "dead_letters_alone", "another_setting"],
)
def test_free_names_are_not_refused(found: list[Claim]) -> None:
    """Nobody, this one under any of its ids, or one with names of its own; dead letters alone may be shared."""
    assert refusal(["b", "older"], MINE, found) == ""


def test_a_shared_dead_letter_topic_is_named_beside_others() -> None:
    """Where names have to change anyway, following the line keeps dead letters apart as well."""
    line = refusal(["b"], MINE, [Claim("a", NAMES)])
    assert "kafka.dead_letter_topic = d, kafka.group_id = g, kafka.panes_topic = p;" in line


def test_claims_are_read_back_and_fit() -> None:
    """What was written is read; anything else claims nothing, and names as long as Kafka's fit into a commit."""
    longest = Claim("i" * 64, dict.fromkeys([*NAMES, "rekey.group_id"], "n" * 249), 1 << 62)
    assert from_metadata(longest.to_metadata()) == longest
    assert len(longest.to_metadata().encode()) <= METADATA_BYTES_MAX
    for text in ("", "x", "AZMA", "{}", '{"installation":1}', "\ud800"):
        assert from_metadata(text) is None
    later = '{"installation":"a","names":{"kafka.group_id":"g"},"else":12}'
    assert from_metadata(later) == Claim("a", {"kafka.group_id": "g"}), "a later release may add to it"


def test_roles_claim_what_they_must_have_alone() -> None:
    """Who only joins may read another's spans topic; who has no unkeyed source has no use for one."""
    unkeyed, keyed = Settings(), Settings(kafka=KafkaSettings(keyed=True))
    panes, spans = unkeyed.kafka.panes_topic, unkeyed.rekey.spans_topic
    assert {role: set(names_of(unkeyed, role)) for role in ("all", "rekey", "join", "roll")} == {
        "all": {panes, spans},
        "rekey": {spans},
        "join": {panes},
        "roll": {panes},
    }
    assert set(names_of(keyed, "all")) == {panes}
    mixed = Settings(
        sources={"a": SourceSettings(keyed=True), "b": SourceSettings()}, rekey=RekeySettings(group_id="r")
    )
    assert names_of(mixed, "all")[spans]["rekey.group_id"] == "r"
