"""What `explain` finds: the split of the change, the new versions, the traces to look at, and one sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from citegauge.domain import baseline
from citegauge.domain.distribution import fraction_value
from citegauge.domain.episodes import Episode
from citegauge.domain.intervals import Interval, Moments, moments
from citegauge.domain.mix import Part, Split, split
from citegauge.domain.pane import Tally
from citegauge.domain.recall import Group
from citegauge.domain.versions import EFFECT_MIN, Cell, Comparison, Side, comparisons
from citegauge.domain.words import percent
from citegauge.errors import FatalError
from citegauge.ports import SqlReader
from citegauge.tools.explain.asked import Asked, Period
from citegauge.tools.explain.read import PeriodCell, read_cells, read_worst
from citegauge.tools.replay import rfc3339
from citegauge.tools.simulate_spec import SECOND_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that is printed."""

    asked: Asked
    split: Split
    versions: list[Comparison]
    suspect: Group
    """The group whose traces are worth reading."""
    worst: list[dict[str, Any]]
    episodes: list[Episode] = field(default_factory=list)
    """The drops of the suspect's route and bucket in the 24 h before the later period's end."""

    @property
    def within_decided(self) -> bool:
        """The change within groups is beyond chance, and large enough to matter."""
        return _within_decided(self.split)

    @property
    def sentence(self) -> str:
        """In plain words. Changes below `EFFECT_MIN` are not told."""
        found = self.split
        means = f"from {found.mean_before:.3f} to {found.mean_after:.3f}"
        clauses = [self._within(), *_told(found)]
        if not self.within_decided:
            clauses.append(clauses.pop(0))  # what did move stands first
        if abs(found.change) >= EFFECT_MIN:
            by = f" by {percent(abs(found.change) / found.mean_before)}" if found.mean_before > 0.0 else ""
            moved = f"{'fell' if found.change < 0.0 else 'rose'}{by}, {means}; in absolute terms {found.change:+.3f}"
        else:
            moved = f"is about what it was, {means}"
        return f"Mean recall of {self.asked.what} {moved}: {'; '.join(clauses)}."

    def _within(self) -> str:
        interval, within = self.split.within_interval, self.split.within
        if interval is None:
            return "no group has enough traces in both periods to say whether it changed in itself"
        sure = f"{within:+.3f}, 95 %: {interval.lower:+.3f} to {interval.upper:+.3f}"
        if self.within_decided:
            return f"the same groups cite {'less' if within < 0.0 else 'more'} than before ({sure})"
        return f"within the same groups there is no change that is beyond chance and matters ({sure})"

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        found = self.split
        return {
            "what": self.asked.what,
            "before": _period(self.asked.before) | {"n": found.n_before, "mean_over_groups": found.mean_before},
            "after": _period(self.asked.after) | {"n": found.n_after, "mean_over_groups": found.mean_after},
            "change": found.change,
            **{term: getattr(found, term) for term in TERMS},
            "within_interval": found.within_interval,
            "within_decided": self.within_decided,
            "groups": [_part(part) for part in found.parts],
            "versions": [_comparison(one) for one in self.versions],
            "worst": {**self.suspect._asdict(), "traces": self.worst},
            "episodes": [one.as_dict() for one in self.episodes],
            "sentence": self.sentence,
        }


EpisodesOf = Callable[[str, str, int], list[Episode]]
TERMS = ("within", "mix", "interaction", "new", "gone")


def explain(reader: SqlReader, database: str, asked: Asked, episodes_of: EpisodesOf | None = None) -> Explanation:
    """Read and take apart. Blocking. Raises `FatalError` where a period has no measured trace.

    `episodes_of`: what the page tells of a route and bucket in the 24 h before a time (unix s); None: nothing of it.
    """
    cells = list(read_cells(reader, database, asked))
    before, after = (_moments(one.cell for one in cells if one.is_after == side) for side in (False, True))
    for period, known in ((asked.before, before), (asked.after, after)):
        if not any(one.n for one in known.values()):
            raise FatalError(
                f"no measured trace of {asked.what} between {_time(period.start_s)} and {_time(period.end_s)}: "
                "nothing to compare (see --from, --to, --against, and `citegauge doctor` if there should be some)"
            )
    found = split(before, after, _wander(asked, cells, before))
    assert found is not None
    suspect = _suspect(found, _within_decided(found) and found.within < 0.0)
    return Explanation(
        asked=asked,
        split=found,
        versions=comparisons(_whole_cells(cells)),
        suspect=suspect,
        worst=[
            {**row, "event_time": rfc3339(int(row.pop("event_time_ns")))}
            for row in read_worst(reader, database, asked, suspect)
        ],
        episodes=episodes_of(suspect.route, suspect.top_k_bucket, asked.after.end_s) if episodes_of else [],
    )


def _within_decided(found: Split) -> bool:
    interval = found.within_interval
    return interval is not None and not interval.lower <= 0.0 <= interval.upper and abs(found.within) >= EFFECT_MIN


def _told(found: Split) -> Iterable[str]:
    """The other terms, where they matter."""
    said = {
        "mix": "traffic moved to groups that always cited {}",
        "interaction": "traffic moved to or from groups that changed, which together makes {}",
        "new": "groups that are new cite {} than the rest did",
        "gone": "groups that are gone cited {} than the rest did",
    }
    words = {"gone": ("more", "less")}
    for term, text in said.items():
        value = getattr(found, term)
        if abs(value) >= EFFECT_MIN:
            yield f"{text.format(words.get(term, ('less', 'more'))[value > 0.0])} ({value:+.3f})"


def _moments(cells: Iterable[Cell]) -> dict[Group, Moments]:
    tallies: dict[Group, Tally] = {}
    for cell in cells:
        tallies.setdefault(cell.group, Tally()).merge(cell.tally)
    return {group: moments(tally.recall_counts, fraction_value) for group, tally in tallies.items()}


def _wander(asked: Asked, cells: Iterable[PeriodCell], before: Mapping[Group, Moments]) -> dict[Group, float]:
    """How much the change of each group wanders without a cause, from how much its level did within the earlier period."""
    blocks: dict[Group, list[baseline.Cell]] = {}
    for one in cells:
        if not one.is_after:
            found = moments(one.cell.tally.recall_counts, fraction_value)
            blocks.setdefault(one.cell.group, []).append(baseline.Cell(one.cell.at_s, found))
    block_s = max(asked.cell_s, baseline.BLOCK_S)
    # The level of a period of so many blocks wanders less than that of one.
    share = sum(1.0 / max(1.0, (period.end_s - period.start_s) / block_s) for period in (asked.before, asked.after))
    wander = {}
    for group, own in blocks.items():
        usual = baseline.baseline_of(own)
        between = usual.between if usual else baseline.DRIFT_MIN_SD**2 * before[group].variance
        wander[group] = math.sqrt(between * share)
    return wander


def _whole_cells(cells: Iterable[PeriodCell]) -> list[Cell]:
    """The cell in which one period ends and the other begins comes in two parts."""
    whole: dict[tuple[Group, int], Cell] = {}
    for _, cell in cells:
        key = (cell.group, cell.at_s)
        whole[key] = _joined(whole[key], cell) if key in whole else cell
    return [cell for cell in whole.values() if cell.tally.measured]


def _joined(one: Cell, other: Cell) -> Cell:
    tally = one.tally.copy()
    tally.merge(other.tally)
    return Cell(one.group, one.at_s, min(one.first_s, other.first_s), max(one.last_s, other.last_s), tally)


def _suspect(found: Split, within_fell: bool) -> Group:
    """What fell most in itself where that is the cause; else, of what has traces now, what brings the mean down most."""
    if within_fell:
        return min(found.parts, key=lambda part: part.within + part.interaction).group
    return min((part for part in found.parts if part.after.n), key=lambda part: part.change).group


def _period(period: Period) -> dict[str, Any]:
    return {"start": _time(period.start_s), "end": _time(period.end_s)}


def _time(at_s: int) -> str:
    return rfc3339(at_s * SECOND_NS)


def _part(part: Part) -> dict[str, Any]:
    return {
        **part.group._asdict(),
        "kind": part.kind,
        "n_before": part.before.n,
        "n_after": part.after.n,
        "share_before": part.share_before,
        "share_after": part.share_after,
        "mean_before": part.before.mean if part.before.n else None,
        "mean_after": part.after.mean if part.after.n else None,
        **{term: getattr(part, term) for term in TERMS},
    }


def _comparison(one: Comparison) -> dict[str, Any]:
    interval: Interval | None = one.interval
    return {
        "route": one.new.group.route,
        "top_k_bucket": one.new.group.top_k_bucket,
        "changed": one.changed,
        "over": one.over,
        "old": _version(one.old),
        "new": _version(one.new),
        "difference": one.difference,
        "interval": interval,
        "inflation": one.inflation,
        "verdict": one.verdict,
        "undecided_because": one.undecided_because,
        "scores_comparable": one.scores_comparable,
    }


def _version(side: Side) -> dict[str, Any]:
    return {
        "model": side.group.model,
        "retriever_version": side.group.retriever_version,
        "scorer": side.group.scorer,
        "first": _time(side.first_s),
        "last": _time(side.last_s),
        "n": side.n,
        "recall_mean": side.recall_mean,
        "cited_any_ratio": side.cited_any_ratio,
        "hallucinated_ratio": side.hallucinated_ratio,
        "score_n": side.score_n,
        "score_mean": side.score_mean,
    }
