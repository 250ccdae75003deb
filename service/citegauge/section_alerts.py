"""The section `alerts` of the settings: what `citegauge rules` writes, and what the page judges by."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from citegauge.sections import Address, Count, Seconds, Section


def _ended(value: str) -> str:
    if value and not value.endswith("/"):
        raise ValueError(f"must end with /, not {value!r}")
    return value


Ratio = Annotated[float, Field(gt=0, lt=1)]
BaseAddress = Annotated[Address, AfterValidator(_ended)]


class AlertSettings(Section):
    """What `citegauge rules` writes. The hour is the 1 h window; the day is the 24 h window without that hour, of the same
    models, retriever versions and scorers, at the hour's mix.
    """

    job: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]+$")] = "citegauge"
    """Name of the scrape job, for the rules that say that workers are down."""
    runbook_base_url: BaseAddress = ""
    """Where the pages of `docs/runbooks` can be read, ends with `/`; empty: those of the worker at `web.public_url`."""
    dashboard_base_url: BaseAddress = ""
    """Where alerts find the page, ends with `/`; empty: `web.public_url`."""
    traces_min: Annotated[int, Field(ge=30)] = 50
    """Traces (for shares: whatever they are a share of) of the hour below which no quality alert fires."""
    baseline_traces_min: Annotated[int, Field(ge=30)] = 200
    """Traces of the day below which there is nothing to compare the hour with."""
    recall_drop_page_ratio: Ratio = 0.15
    """Fall of a route's mean recall, at the hour's mix of buckets and relative to the day, that pages."""
    recall_drop_ticket_ratio: Ratio = 0.10
    """Fall of the mean recall of one route and bucket that raises a ticket."""
    score_drop_sd: Annotated[float, Field(gt=0)] = 0.5
    """Fall of the mean top-1 score of one scorer, in standard deviations of the day, that raises a ticket."""
    page_z_min: Annotated[float, Field(ge=2)] = 5.0
    """Standard errors, how much an hour wanders included, by which a fall must exceed chance to page (docs/trust.md)."""
    ticket_z_min: Annotated[float, Field(ge=2)] = 4.25
    """The same for a ticket."""
    low_confidence_ratio: Ratio = 0.05
    """Rise over the day of the share of traces of low confidence, like for like, that raises a ticket."""
    hallucinated_ratio: Ratio = 0.05
    """Rise over the day of the share of hallucinated citations (its lower 95 % bound) that raises a ticket."""
    nonconformant_ratio: Ratio = 0.05
    """The same for nonconformant answers."""
    zero_results_ratio: Ratio = 0.05
    """The same for retrievals that return nothing, of a route over all its buckets."""
    unmeasurable_ratio: Ratio = 0.10
    """The same for traces with both halves that cannot be measured: no answer, no ids, cut off, files cited, bad time."""
    unjoined_ratio: Ratio = 0.10
    """Share of a route's traces without their other half (its lower 95 % bound) that raises a ticket."""
    no_traces_s: Annotated[int, Field(ge=300)] = 900
    """Without a record for so long, after traffic in the last 24 hours, it pages."""
    lag_records: Count = 100_000
    """Unread records of a partition that raise a ticket."""
    lag_s: Seconds = 300.0
    """Age of the watermark of a partition with unread records that pages."""
    stalled_s: Seconds = 35.0
    """Time in which nothing is read of a partition that has something to read, that raises a ticket."""
    not_reading_s: Seconds = 120.0
    """The same that pages."""
    commit_age_s: Seconds = 600.0
    """Time without a commit, while the watermark moves on, that raises a ticket."""
    as_of_stale_s: Seconds = 600.0
    """Age of the windows that pages, and past which nothing that is compared is shown."""
    dead_letters_min: Count = 10
    """Dead letters in 15 minutes that raise a ticket."""
    late_ratio: Ratio = 0.01
    """Share of late spans in an hour that raises a ticket."""

    @model_validator(mode="after")
    def _agree(self) -> AlertSettings:
        if self.recall_drop_ticket_ratio > self.recall_drop_page_ratio or self.ticket_z_min > self.page_z_min:
            raise ValueError("what pages must also raise a ticket: compare recall_drop_page_ratio and page_z_min")
        if self.stalled_s > self.not_reading_s:
            raise ValueError("what pages must also raise a ticket: stalled_s must not exceed not_reading_s")
        return self
