"""An explanation as text for people: tables, and the sentence last, where a terminal ends. Formatting only."""

from __future__ import annotations

from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from citegauge.domain.mix import Split
from citegauge.domain.versions import Comparison
from citegauge.domain.words import percent
from citegauge.tools.explain.asked import Period
from citegauge.tools.explain.report import Explanation
from citegauge.tools.replay import rfc3339
from citegauge.tools.simulate_spec import SECOND_NS
from citegauge.tools.tables import number

GROUPS_SHOWN_MAX = 20
ABOVE = "upper line: before, lower line: after"
MEANINGS = (
    ("within", "the same groups cite less or more: retrieval, model, prompt"),
    ("mix", "traffic moved between groups that always differed"),
    ("interaction", "traffic moved to or from just the groups that changed"),
    ("new", "groups that were not there before"),
    ("gone", "groups that are not there any more"),
)


def show(found: Explanation, console: Console) -> None:
    """Print it."""
    console.print(_split_table(found))
    console.print(_group_table(found.split))
    if found.versions:
        console.print(_version_table(found.versions))
    if found.worst:
        console.print(f"to read, of {' · '.join(found.suspect)}:", highlight=False, markup=False)
        for row in found.worst:
            line = f"  {row['trace_id']}  cites {row['cited_retrieved']} of {row['retrieved']}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        console.print()
    if found.episodes:
        console.print("drops of it in the 24 h before the end of the later period:", highlight=False)
        for one in found.episodes:
            console.print(f"  {one.sentence}", highlight=False, markup=False, soft_wrap=True)
        console.print()
    console.print(found.sentence, highlight=False, markup=False, soft_wrap=True)


def _split_table(found: Explanation) -> Table:
    before, after = _period(found.asked.before), _period(found.asked.after)
    table = _table(f"{found.asked.what}: {after} against {before}")
    table.add_column("mean recall")
    table.add_column("absolute", justify="right", no_wrap=True)
    table.add_column("95 %", justify="right", no_wrap=True)
    table.add_column("what it means")
    split, interval = found.split, found.split.within_interval
    table.add_row("change", f"{split.change:+.3f}", "", f"{split.n_before} traces before, {split.n_after} after")
    for term, meaning in MEANINGS:
        sure = f"{interval.lower:+.3f} to {interval.upper:+.3f}" if interval and term == "within" else ""
        table.add_row(f"  {term}", f"{getattr(split, term):+.3f}", sure, meaning)
    return table


def _group_table(found: Split) -> Table:
    table = _table("groups, largest contribution first")
    table.add_column("group", overflow="fold")
    for name in ("n", "share", "mean", "within", "mix", "inter-\naction", "new or\ngone"):
        table.add_column(name, justify="right", no_wrap=True)
    for part in found.parts[:GROUPS_SHOWN_MAX]:
        sides = (part.before, part.after)
        terms = (part.within, part.mix, part.interaction) if part.kind == "both" else (None, None, None)
        apart = None if part.kind == "both" else part.new + part.gone
        table.add_row(
            f"{part.group.route}  {part.group.top_k_bucket}\n  {' · '.join(filter(None, part.group[2:]))}",
            _stacked(str(side.n) for side in sides),
            _stacked(percent(share) for share in (part.share_before, part.share_after)),
            _stacked(number(side.mean if side.n else None) for side in sides),
            *("–" if term is None else f"{term:+.3f}" for term in (*terms, apart)),
        )
    more = (
        f"{GROUPS_SHOWN_MAX} of {len(found.parts)} groups; --json prints all; "
        if len(found.parts) > GROUPS_SHOWN_MAX
        else ""
    )
    table.caption = f"{more}{ABOVE}"
    return table


def _version_table(versions: list[Comparison]) -> Table:
    table = _table("new versions, each against what was there before it (no alert: a new version\nstarts a new series)")
    table.add_column("version", overflow="fold", min_width=16)
    for name in ("n", "recall", "differ-\nence", "cites\nany", "hallu-\ncinated", "top-1\nscore"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold", min_width=12)
    for one in versions:
        pair = (one.old, one.new)
        difference = number(None) if one.difference is None else f"{one.difference:+.3f}"
        if one.interval is not None:
            difference += f"\n± {(one.interval.upper - one.interval.lower) / 2:.3f}"
        why = one.undecided_because
        table.add_row(
            f"{one.new.group.route}  {one.new.group.top_k_bucket}\n{_version_names(one)}",
            _stacked(str(side.n) for side in pair),
            _stacked(number(side.recall_mean) for side in pair),
            difference,
            _stacked(number(side.cited_any_ratio, 2) for side in pair),
            _stacked(number(side.hallucinated_ratio) for side in pair),
            _stacked(number(side.score_mean) for side in pair) if one.scores_comparable else "other\nscorer",
            f"{one.verdict}{f': {why}' if why else ''}\n({one.over})",
        )
    table.caption = f"± is 95 %; compared over the same time, or all before and all after; {ABOVE}"
    return table


def _version_names(one: Comparison) -> str:
    """What it is of, what differs, and since when."""
    old, new = one.old.group, one.new.group
    kept = [getattr(new, name) for name in ("model", "retriever_version") if name not in one.changed]
    changed = [_arrow((getattr(old, name), getattr(new, name))) for name in one.changed]
    return "\n".join([*kept, *changed, f"since {rfc3339(one.new.first_s * SECOND_NS)[5:16]}Z".replace("T", " ")])


def _stacked(values: Iterable[str]) -> str:
    return "\n".join(values)


def _arrow(values: Iterable[str]) -> str:
    return " → ".join(values)


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def _period(period: Period) -> str:
    start, end = (rfc3339(at_s * SECOND_NS)[:16] + "Z" for at_s in period)
    return f"{start} to {end[11:] if start[:10] == end[:10] else end}"
