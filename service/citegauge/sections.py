"""The sections of the settings: names, types, defaults, and what each means (the README's table is made from it).

How they are read, and what they must agree on, stands in `settings`.
"""

from __future__ import annotations

import math
import re
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from citegauge.conventions import ENVELOPES
from citegauge.conventions.routes import RouteReader
from citegauge.conventions.users import DEFAULT_USER_KEYS
from citegauge.domain.policy import RoutePolicy

Seconds = Annotated[float, Field(gt=0, le=7 * 86_400)]
Count = Annotated[int, Field(gt=0)]
Epoch = Annotated[int, Field(ge=0, le=32_767)]
ENCODINGS = tuple(envelope.name for envelope in ENVELOPES)
USER_KEY_LENGTH_MIN = 32
ABSOLUTE = re.compile(r"https?://[^\s\"'{}<>\\/?#]+(?:/[^\s\"'{}<>\\?#]*)?")


def _known_encoding(value: str) -> str:
    if value not in ENCODINGS:
        raise ValueError(f"must be one of {', '.join(ENCODINGS)}")
    return value


Encoding = Annotated[str, AfterValidator(_known_encoding)]


def _threshold(value: Any) -> float:
    """A string too: the environment has nothing else."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"must be a number, a top-1 score of this scorer, not {value!r}")
    return number


def _absolute(value: str) -> str:
    """An address that leads there from anywhere, such as from a pager; empty: none."""
    if value and ABSOLUTE.fullmatch(value) is None:
        raise ValueError(f"must be an absolute address, as in https://example.com/, not {value!r}")
    return value


Address = Annotated[str, AfterValidator(_absolute)]
ScorerName = Annotated[str, Field(min_length=1)]
Threshold = Annotated[float, BeforeValidator(_threshold)]


class Section(BaseModel):
    """One section of the settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class KafkaSettings(Section):
    """Where traces come from."""

    bootstrap_servers: str = "127.0.0.1:9092"
    """Comma-separated host:port list."""
    installation: Annotated[str, Field(pattern=r"^[\w.-]{0,64}$")] = ""
    """Name of this installation among those on one Kafka; empty: an id that is made once and kept in ClickHouse."""
    source_topic: str = "citegauge.traces"
    """Topic of traces; for several of them see `sources`."""
    encoding: Encoding = "auto"
    """How a record of the source topic is encoded; `auto` looks at each record."""
    keyed: bool = False
    """True: the source topic is keyed by trace id and carries both halves, so it is joined without the re-key stage."""
    group_id: str = "citegauge-join"
    """Consumer group of the hot tier."""
    start_from: Literal["earliest", "latest"] = "earliest"
    """Where to begin when the group has no commit at all."""
    epoch: Epoch = 0
    """Raised by one when the source topic was made anew, so that new rows win over those of the old offsets."""
    rebuild_from: str = ""
    """`<offset>` or an RFC 3339 time: start there, empty, instead of at the commit (raise the topic's epoch too)."""
    create_topics: bool = True
    """Create missing topics at start (LogAppendTime)."""
    source_partitions: Count = 6
    """Partitions of the source topic, if it is created."""
    panes_topic: str = "citegauge.panes"
    """Topic between the hot and the cold tier."""
    panes_partitions: Count = 4
    """Partitions of the panes topic: the most workers that can share the cold tier."""
    dead_letter_topic: str = "citegauge.dead-letters"
    """Topic for records that cannot be read."""
    replication_factor: Count = 1
    """Replicas of created topics."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Kafka's own names."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    """Kafka's own names."""
    sasl_username: str = ""
    """User for SASL."""
    sasl_password: SecretStr = SecretStr("")
    """Password for SASL; from the environment."""
    ssl_cafile: str = ""
    """CA bundle (PEM) for SSL; empty: the system's."""
    ssl_certfile: str = ""
    """Client certificate (PEM, with its chain), where the brokers ask for one."""
    ssl_keyfile: str = ""
    """Its key (PEM, not encrypted); empty: it stands in `kafka.ssl_certfile`."""
    session_timeout_s: Annotated[float, Field(ge=1, le=1_800)] = 15.0
    """A worker that is silent for longer loses its partitions."""
    rebalance_timeout_s: Seconds = 60.0
    """How long a rebalance waits for a worker to hand over."""
    drain_timeout_s: Seconds = 20.0
    """How long a worker tries to finish its writes when it hands over or stops."""
    fetch_bytes_max: Count = 16 * 1024 * 1024
    """Most bytes of one fetch from a broker."""
    partition_fetch_bytes_max: Count = 4 * 1024 * 1024
    """Most bytes of one fetch per partition."""
    batch_records_max: Count = 5_000
    """Most records taken from the consumer at a time."""


class SourceSettings(Section):
    """One topic of traces, under its name."""

    encoding: Encoding = "auto"
    """How its records are encoded; `auto` looks at each record."""
    keyed: bool = False
    """True: its records are keyed by trace id and carry both halves of a trace, so it is joined directly."""
    route_keys: tuple[str, ...] = ()
    """Where the route stands in it, most specific first; empty: `score.route_keys`."""
    epoch: Epoch = 0
    """As `kafka.epoch`, of this topic."""


class RekeySettings(Section):
    """The stage that brings the spans of a trace together, for sources that are not keyed by trace id."""

    spans_topic: str = "citegauge.spans"
    """Topic of compact spans, keyed by trace id."""
    spans_partitions: Count = 6
    """Its partitions: the most workers that can share the join."""
    spans_retention_s: Annotated[int, Field(ge=3_600)] = 86_400
    """How long it keeps spans."""
    group_id: str = "citegauge-rekey"
    """Consumer group of the stage."""
    epoch: Epoch = 0
    """As `kafka.epoch`, of the spans topic."""
    ahead_s: Seconds = 10.0
    """How far a source partition may run ahead of the slowest one that has a backlog, in event time."""
    hold_s_max: Seconds = 30.0
    """How long one source partition may hold others back; past it they no longer wait for it (counted, and a ticket)."""
    hold_behind_s_max: Seconds = 3_600.0
    """A source partition further behind than this, such as one of a wrong clock, holds nobody: it is late all the same."""
    held_bytes_max: Count = 64 * 1024 * 1024
    """What may wait for slower partitions in memory, about; past it nobody is waited for."""
    idle_s: Seconds = 60.0
    """A source that is silent for longer, while the topic goes on, no longer holds up the clock."""


class ClickHouseSettings(Section):
    """Where aggregates go."""

    url: str = "http://127.0.0.1:8123"
    """`http(s)://host:port`, or `chdb:` (in memory) or `chdb:///path` for the engine in this process."""
    user: str = "default"
    """User name."""
    password: SecretStr = SecretStr("")
    """Password; from the environment."""
    database: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")] = "citegauge"
    """Database of all tables; created by the migrations."""
    ca_cert: str = ""
    """CA bundle (PEM) for https; empty: the system's."""
    verify: bool = True
    """Check the server's certificate."""
    migrate_on_start: bool = True
    """Apply `sql/` before anything else."""
    buffer_rows_max: Count = 400_000
    """Rows that wait for ClickHouse before reading pauses."""
    insert_rows_max: Count = 50_000
    """Rows of one insert."""
    retry_wait_s_max: Seconds = 15.0
    """Longest pause between two tries of an insert."""


class JoinSettings(Section):
    """Time and size bounds of the join."""

    join_window_s: Seconds = 300.0
    """How long after its end a pane waits for missing halves; must exceed the longest gap inside a trace."""
    out_of_orderness_s: Seconds = 30.0
    """How far a span may come after a later one and still be in time."""
    skew_s: Seconds = 60.0
    """How far ahead of its record's timestamp a span may end."""
    trace_panes_max: Count = 60
    """A trace's result uses only spans of its newest so many minutes."""
    trace_spans_max: Count = 400
    """A trace with more spans is `truncated`; its row shows its newest ones."""
    traces_max: Count = 500_000
    """Traces in flight per partition (about 1 kB each); past it the oldest open minute is closed early."""
    groups_max: Count = 2_000
    """Open groups per partition (up to 100 kB each in a worker with all stages); past it unlisted routes become `other`.

    So do their models, retriever versions and scorers then, and they show no top-1 score: scorers are never mixed.
    """
    record_bytes_max: Count = 4 * 1024 * 1024
    """A longer record is a dead letter."""
    dead_letter_payload: bool = False
    """Copy the unreadable record into the dead letter (it may hold raw text)."""
    dead_letters_max: Count = 10_000
    """Dead letters of one flush past which the worker stops: the encoding is probably wrong."""


class RouteSettings(Section):
    """How the answers of one route are to be read."""

    position_base: Annotated[int, Field(ge=0, le=1)] = 1
    """What a marker calls the first retrieved chunk: `[1]` or `[0]`."""
    numbers_name_chunks: bool = True
    """False: numbers in an answer do not count the retrieved list, as with LlamaIndex's citation engine."""
    cites: bool = True
    """False: the route never cites, so nothing is measured (`no_citation_format`)."""
    answer_format: Literal["auto", "json", "text"] = "auto"
    """`json`: an answer that is not the agreed JSON is nonconformant."""
    score_direction: Literal["higher", "lower"] = "higher"
    """`lower`: the scores are distances, and meant to be; the alerts then judge a rise."""
    low_confidence_below: dict[ScorerName, Threshold] = {}
    """By scorer: the top-1 score below which a retrieval counts as one of low confidence (of distances: above which)."""

    def policy(self) -> RoutePolicy:
        """As the core knows it."""
        thresholds = MappingProxyType(dict(self.low_confidence_below))
        return RoutePolicy(**self.model_dump(exclude={"low_confidence_below"}), low_confidence_below=thresholds)


class ScoreSettings(Section):
    """What a trace's result depends on beside its spans."""

    top_k_buckets: tuple[Count, ...] = (5, 10, 20, 50)
    """Upper bounds of the top_k buckets."""
    only_listed_routes: bool = False
    """Count routes without a section `routes.<name>` under `other`."""
    nonconformant_as_zero: bool = False
    """Let nonconformant answers enter the ratio with 0."""
    route_keys: tuple[str, ...] = ()
    """Attribute or resource keys that name the route, most specific first; empty: the built-in list."""


class MappingSettings(Section):
    """One kind of span that no convention knows, under a name of your choice. Paths are attribute names or JSON paths."""

    kind: Literal["retrieval", "rerank", "generation", "other"]
    """What the span is."""
    span_name: str = ""
    """Regular expression for the whole span name."""
    has: str = ""
    """An attribute that must be there, or `name=value`."""
    documents: str = ""
    """Path of a list of objects with ids and scores."""
    ids: str = ""
    """Path of the chunk ids."""
    scores: str = ""
    """Path of the scores."""
    distances: str = ""
    """Path of distances (lower is better)."""
    top_k: str = ""
    """Path of top_k."""
    final_ids: str = ""
    """Path of the ids that reached the model's context."""
    retriever_version: str = ""
    """Path of the retriever version."""
    scorer: str = ""
    """Path of the scorer's name."""
    model: str = ""
    """Path of the model's name."""
    cited_ids: str = ""
    """Path of the cited ids."""
    output: str = ""
    """Path of the answer."""
    trace_id: str = ""
    """Flat JSON records: path of the trace id."""
    span_id: str = ""
    """Flat JSON records: path of the span id."""
    parent_id: str = ""
    """Flat JSON records: path of the parent's id."""
    start: str = ""
    """Flat JSON records: path of the start time."""
    end: str = ""
    """Flat JSON records: path of the end time."""


class PublishSettings(Section):
    """How often results leave the worker."""

    interval_s: Seconds = 5.0
    """Publish and commit interval."""
    flush_rows_max: Count = 50_000
    """Rows that trigger a publish before the interval is over."""


class PrivacySettings(Section):
    """Whose traces can be forgotten. User ids themselves are never stored."""

    user_hmac_key: SecretStr = SecretStr("")
    """Key under which user ids are hashed (HMAC-SHA256), 32 characters or more; empty: no user id is read."""
    user_attributes: tuple[str, ...] = DEFAULT_USER_KEYS
    """Where the user id stands, as `score.route_keys`: the first that is there."""

    @model_validator(mode="after")
    def _agree(self) -> PrivacySettings:
        if 0 < len(self.user_hmac_key.get_secret_value()) < USER_KEY_LENGTH_MIN:
            raise ValueError(
                f"user_hmac_key must have {USER_KEY_LENGTH_MIN} characters or more: user ids can be guessed"
            )
        try:
            RouteReader(self.user_attributes)
        except ValueError as exc:
            raise ValueError(f"user_attributes: {exc}") from exc
        return self


class WebSettings(Section):
    """The HTTP endpoints: page, /metrics, /healthz, /readyz."""

    host: str = "127.0.0.1"
    """Address to listen on; any but loopback wants `web.token`."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 9464
    """Port to listen on; 0 takes a free one."""
    public_url: Address = ""
    """Where people reach the page, for the links of alerts; empty: `http://127.0.0.1:<web.port>/`."""
    series_max: Count = 500
    """(route, top_k bucket) pairs exported to Prometheus, those with most traces, at about 150 series each.

    Of each, the 20 scorers with most scores."""
    token: SecretStr = SecretStr("")
    """Asked for by everything but health checks, runbooks and the page's own files (`Authorization: Bearer …`)."""
    hosts: tuple[str, ...] = ()
    """Further names under which visitors may call it, such as a proxy's; loopback has its own."""
    requests_per_s: Annotated[float, Field(gt=0)] = 50.0
    """Requests of one address that are answered in the long run."""
    requests_burst: Count = 200
    """Requests of one address that are answered at once."""
    request_bytes_max: Count = 4_096
    """A longer request body is refused; no endpoint wants one."""
    header_timeout_s: Seconds = 60.0
    """A connection on which no whole request has come for so long is closed."""
    connections_max: Count = 500
    """Connections that are open at the same time; more are closed at once."""
    stall_s: Seconds = 60.0
    """Without progress for so long, /healthz fails."""
    stall_exit_s: Seconds = 300.0
    """Without progress for so long, the worker writes down where every thread stands and ends with status 1."""
