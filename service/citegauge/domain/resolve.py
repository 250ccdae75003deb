"""Citations of an answer → chunks. Positions are resolved against the order of the list, ids against the set."""

from __future__ import annotations

from collections.abc import Sequence

from citegauge.domain.policy import RoutePolicy
from citegauge.domain.span import CitationForm, Span

_INLINE, _BLOCKS = int(CitationForm.INLINE), int(CitationForm.BLOCKS)


class Resolved:
    """What an answer cites, against what was retrieved."""

    __slots__ = ("cited", "hallucinated", "ranks", "unresolved")

    def __init__(self, cited: list[str], hallucinated: list[str], ranks: list[int], unresolved: int) -> None:
        self.cited = cited
        self.hallucinated = hallucinated
        self.ranks = ranks
        self.unresolved = unresolved


def resolve(answer: Span | None, retrieved: list[str], listed: Sequence[str], route_policy: RoutePolicy) -> Resolved:
    """Resolve the answer's citations against the retrieved set. A position out of range never wraps.

    `listed`: the chunks as they were listed, with repetitions, because positions count those too.
    """
    if answer is None:
        return Resolved([], [], [], 0)
    unresolved = answer.unresolved
    named: list[str] = []
    # Provider blocks count from a base of their own, which decode has made 1.
    base = 1 if answer.citation_form == _BLOCKS else route_policy.position_base
    positions = answer.positions or ()
    if not route_policy.numbers_name_chunks:
        listed = ()
    ids = _as_ids(positions, base, listed) if answer.citation_form != _BLOCKS else None
    for position in positions:
        index = position - base
        if ids is not None and str(position) in ids:
            named.append(str(position))
        elif ids is None and 0 <= index < len(listed):
            named.append(listed[index])
        else:
            unresolved += 1
    cited = answer.cited or []
    if not named and not cited:
        return Resolved([], [], [], unresolved)
    rank_of = {chunk: rank for rank, chunk in enumerate(retrieved, start=1)}
    if answer.citation_form == _INLINE:
        cited = [token for token in cited if token in rank_of or _names_a_chunk(token)]
    unique = list(dict.fromkeys((*cited, *named)))
    ranks = sorted(rank_of[chunk] for chunk in unique if chunk in rank_of)
    return Resolved(unique, [chunk for chunk in unique if chunk not in rank_of], ranks, unresolved)


def _as_ids(positions: Sequence[int], base: int, listed: Sequence[str]) -> set[str] | None:
    """The retrieved ids, where the numbers of an answer are meant as such: chunk ids may be integers (`[4711]`).

    So it is when one that is no position is an id, and none is a position only.
    """
    ids = set(listed)
    within = [str(number) for number in positions if 0 <= number - base < len(listed)]
    if len(within) == len(positions) or not ids.issuperset(within):
        return None
    return ids if sum(str(number) in ids for number in positions) > len(within) else None


def _names_a_chunk(token: str) -> bool:
    """A bracketed word without a digit, such as `[sic]`, is not taken for a citation unless it was retrieved."""
    return any(character.isdigit() for character in token)
