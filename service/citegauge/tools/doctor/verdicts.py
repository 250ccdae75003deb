"""The list of verdicts, in the order in which people ask. Each is made in `recall` or `splits`."""

from __future__ import annotations

from citegauge.tools.doctor.recall import hallucinated, rank_weighted, recall
from citegauge.tools.doctor.splits import route_split, top1_score, top_k_buckets, version_split
from citegauge.tools.doctor.verdict import Context, Verdict


def verdicts(context: Context) -> list[Verdict]:
    """One verdict per metric; the first is the recall, on which the exit status hangs."""
    found = recall(context)
    return [
        found,
        rank_weighted(found),
        top1_score(context),
        hallucinated(context, found),
        top_k_buckets(context),
        route_split(context),
        version_split(context),
    ]
