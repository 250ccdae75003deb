"""The audit of re-keying on random sources: silent when every span arrived, whatever the order and however often, and each
loss is found and named.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citegauge.conventions import SpanFault
from citegauge.domain.rekeyed import Rekeyed
from citegauge.domain.span import Span
from citegauge.errors import DeadLetterError
from citegauge.pipeline import Record
from citegauge.tools.audit.rekeyed import Bounds, RekeyedComparison
from citegauge.tools.audit.report import AuditReport, SourceReport
from support.core_logs import T0_NS

MS_NS = 1_000_000
RECORD_BYTES_MAX = 64


@dataclass
class World:
    """Sources, what re-keying made of them, and the dead letters."""

    sources: dict[tuple[str, int], list[Record]]
    items: dict[bytes, list[Span | SpanFault] | None]
    """By record value; None: the record cannot be read."""
    partitions: int
    sent: list[tuple[int, Rekeyed]] = field(default_factory=list)
    """(partition of the spans topic, span), in the order in which the audit reads them."""
    letters: set[str] = field(default_factory=set)

    def decode(self, value: bytes) -> Iterable[Span | SpanFault]:
        """The decoder of the sources, which says what it cannot read when it is asked for the first span."""
        items = self.items[value]
        if items is None:
            raise DeadLetterError("not_json")
        yield from items

    def audited(self, **bounds: Any) -> AuditReport:
        """Both sides in step, as `sources` reads them."""
        report = AuditReport()
        left = {}
        for (topic, partition), records in self.sources.items():
            end = records[-1].offset + 1
            report.sources.append(SourceReport(topic, partition, records[0].offset, end))
            left[topic, partition] = (report.sources[-1], list(reversed(records)))
        comparison = RekeyedComparison(report, Bounds(partitions=self.partitions, kept_from_ns={}, **bounds))
        self._feed(comparison, left)
        comparison.finish(self.letters & comparison.wanted_letters())
        assert comparison.waiting == 0
        return report

    def _feed(
        self, comparison: RekeyedComparison, left: dict[tuple[str, int], tuple[SourceReport, list[Record]]]
    ) -> None:
        for partition, one in self.sent:
            report, records = left.get((one.topic, one.partition), (None, []))
            while report is not None and records and records[-1].offset <= one.offset:
                comparison.said(report, records.pop(), self.decode, RECORD_BYTES_MAX)
            comparison.found(partition, one)
        for report, records in left.values():
            while records:
                comparison.said(report, records.pop(), self.decode, RECORD_BYTES_MAX)


def world(seed: int) -> World:
    """Random records with faults, re-keyed by several workers, some of it more than once."""
    rng = random.Random(f"re-keyed {seed}")
    made = World({}, {}, rng.randint(1, 4))
    for number in range(rng.randint(1, 3)):
        place = (f"source-{number // 2}", number % 2)
        made.sources[place] = list(_records(rng, made, place))
    queues = [_emitted(rng, made, place) for place in made.sources]
    while queues := [queue for queue in queues if queue]:
        made.sent.append(rng.choice(queues).pop(0))
    return made


def _records(rng: random.Random, made: World, place: tuple[str, int]) -> Iterable[Record]:
    offset, at_ns = rng.randrange(20), T0_NS
    for _ in range(rng.randint(3, 40)):
        value = b"%s/%d/%d" % (place[0].encode(), place[1], offset)
        at_ns += rng.randrange(5_000) * MS_NS
        name = value.decode()
        if rng.random() < 0.08:
            made.letters.add(f"{name}/-1")
            made.items[value] = None
            value = rng.choice([value, b"", None, value * 9])  # type: ignore[assignment]
        else:
            items: list[Span | SpanFault] = [_span(rng, at_ns) for _ in range(rng.randint(0, 4))]
            if rng.random() < 0.1:
                items.append(SpanFault(index=len(items), reason="bad_ids", detail="cut off"))
                made.letters.add(f"{name}/{len(items) - 1}")
            made.items[value] = items
        yield Record(offset, at_ns, value)
        offset += rng.choice([1, 1, 1, 3])


def _span(rng: random.Random, at_ns: int) -> Span:
    return Span(
        trace_id=rng.randbytes(16), span_id=rng.randbytes(8), kind=rng.randrange(4), end_ns=at_ns, route="support",
        ids=[f"c{rng.randrange(9)}" for _ in range(rng.randrange(5))], user_hash=rng.choice([b"", rng.randbytes(16)]),
    )  # fmt: skip


def _emitted(rng: random.Random, made: World, place: tuple[str, int]) -> list[tuple[int, Rekeyed]]:
    """Releases of a source in order, within each by another order; from time to time again from an earlier commit."""
    records = [one for one in made.sources[place] if one.value and made.items.get(one.value)]
    found: list[tuple[int, Rekeyed]] = []
    at = 0
    while at < len(records):
        size = rng.randint(1, 8)
        release = []
        for record in records[at : at + size]:
            for index, item in enumerate(made.items[record.value or b""] or ()):
                if isinstance(item, Span):
                    one = Rekeyed(*place, record.offset, index, record.timestamp_ns, item)
                    release.append((zlib.crc32(item.trace_id) % made.partitions, one))
        rng.shuffle(release)
        found += release
        at = max(0, at - rng.randrange(9)) if rng.random() < 0.1 else at + size
    return found


@settings(max_examples=150)
@given(seed=st.integers(0, 10**9))
def test_what_arrived_is_not_missed(seed: int) -> None:
    """In any order, sent again or not, with its dead letters: every span is found once, and nothing differs."""
    made = world(seed)
    report = made.audited()
    assert report.equal, report.listed[0]
    spans = [item for items in made.items.values() for item in items or () if isinstance(item, Span)]
    assert sum(one.spans for one in report.sources) == len(spans)
    assert sum(one.again for one in report.sources) == len(made.sent) - len(spans)
    assert sum(one.dead_letters for one in report.sources) == len(made.letters)
    assert sum(one.unjudged + one.overflowed for one in report.sources) == 0


Damage = Callable[[random.Random, World], tuple[str, tuple[Any, ...]] | None]


def _lost(rng: random.Random, made: World) -> tuple[str, tuple[Any, ...]]:
    lost = _origin(rng.choice(made.sent)[1])
    made.sent = [(at, one) for at, one in made.sent if _origin(one) != lost]
    return "missing", lost


def _first_of(rng: random.Random, made: World) -> int:
    """Where in `sent` some span stands first."""
    origin = _origin(rng.choice(made.sent)[1])
    return next(at for at, (_, one) in enumerate(made.sent) if _origin(one) == origin)


def _changed(rng: random.Random, made: World) -> tuple[str, tuple[Any, ...]]:
    at = _first_of(rng, made)
    partition, one = made.sent[at]
    changed = rng.choice(
        [
            msgspec.structs.replace(one, span=msgspec.structs.replace(one.span, route="other")),
            msgspec.structs.replace(one, span=msgspec.structs.replace(one.span, ids=None)),
            msgspec.structs.replace(one, record_ns=one.record_ns + MS_NS),
        ]
    )
    made.sent[at] = partition, changed
    return "differing", _origin(one)


def _misplaced(rng: random.Random, made: World) -> tuple[str, tuple[Any, ...]] | None:
    if made.partitions == 1:
        return None
    at = _first_of(rng, made)
    partition, one = made.sent[at]
    made.sent[at] = (partition + 1) % made.partitions, one
    return "differing", _origin(one)


def _letter_lost(rng: random.Random, made: World) -> tuple[str, tuple[Any, ...]] | None:
    if not made.letters:
        return None
    lost = rng.choice(sorted(made.letters))
    made.letters.discard(lost)
    topic, *numbers = lost.split("/")
    return "missing", (topic, *map(int, numbers))


def _origin(one: Rekeyed) -> tuple[str, int, int, int]:
    return one.topic, one.partition, one.offset, one.index


@pytest.mark.parametrize("damage", [_lost, _changed, _misplaced, _letter_lost])
def test_one_damage_is_found_and_named(damage: Damage) -> None:
    """A span that never came, came as another or into another partition, a dead letter that was never written."""
    tried = 0
    for seed in range(80):
        made = world(seed)
        done = damage(random.Random(seed), made) if made.sent else None
        if done is None:
            continue
        what, origin = done
        report = made.audited()
        assert report.differences == 1, (seed, report.listed[:3])
        assert sum(getattr(one, what) for one in report.sources) == 1
        assert tuple(report.listed[0].key.values())[:4] == origin
        assert report.as_dict()["equal"] is False
        tried += 1
    assert tried > 20


def test_a_missing_span_is_explained_by_its_dead_letter() -> None:
    """What does not fit into the spans topic is a dead letter, of the span or of its record; that is no loss."""
    for seed in range(40):
        for whole in (False, True):
            made = world(seed)
            if not made.sent:
                continue
            origin = _lost(random.Random(seed), made)[1]
            made.letters.add("/".join(map(str, (*origin[:3], -1) if whole else origin)))
            report = made.audited()
            assert report.equal, report.listed


def test_what_retention_may_have_taken_is_not_judged() -> None:
    """Spans of records from before the oldest record of their partition are counted as such, and later ones are missed."""
    made = world(5)
    made.sent = []
    made.letters.clear()
    at_ns = sorted(record.timestamp_ns for records in made.sources.values() for record in records)[20]
    report = AuditReport()
    for (topic, partition), records in made.sources.items():
        report.sources.append(SourceReport(topic, partition, 0, records[-1].offset + 1))
    kept = dict.fromkeys(range(made.partitions), at_ns)
    comparison = RekeyedComparison(report, Bounds(made.partitions, kept))
    said = {True: 0, False: 0}
    for one, records in zip(report.sources, made.sources.values(), strict=True):
        for record in records:
            comparison.said(one, record, made.decode, RECORD_BYTES_MAX)
            readable = record.value in made.items and made.items[record.value] is not None
            said[record.timestamp_ns >= at_ns] += len(made.items[record.value or b""] or ()) if readable else 1
    comparison.finish(frozenset(), at_ns)
    assert sum(one.unjudged for one in report.sources) == said[False] > 5
    assert report.differences == said[True] > 5


def test_begun_at_the_end_only_what_follows_the_first_span_is_judged() -> None:
    """With `start_from = latest` a source was never read before some offset, which its first re-keyed span tells."""
    made = world(3)
    place, records = next(iter(made.sources.items()))
    middle = records[len(records) // 2].offset
    made.sent = [(at, one) for at, one in made.sent if (one.topic, one.partition) != place or one.offset >= middle]
    assert made.audited().differences > 2
    first = min(one.offset for _, one in made.sent if (one.topic, one.partition) == place)
    report = made.audited(from_first_found=True)
    assert report.equal
    assert report.sources[0].unjudged > 2
    made.sent = [(at, one) for at, one in made.sent if (one.topic, one.partition) != place or one.offset <= first]
    assert made.audited(from_first_found=True).differences > 2


def test_without_the_key_user_ids_are_not_compared() -> None:
    """Whoever audits need not have the key of the user ids."""
    made = world(8)
    for items in made.items.values():
        for at, item in enumerate(items or ()):
            if isinstance(item, Span) and items is not None:
                items[at] = msgspec.structs.replace(item, user_hash=b"")
    assert made.audited().differences > 2
    assert made.audited(users=False).equal


def test_what_is_held_has_a_bound() -> None:
    """Where the spans topic has nothing, the oldest spans make room; they are counted, and the rest is still missed."""
    made = world(11)
    made.sent = []
    whole, bounded = made.audited(), made.audited(waiting_bytes_max=1_000)
    assert 0 < bounded.differences < whole.differences
    assert sum(one.overflowed for one in bounded.sources) == whole.differences - bounded.differences
