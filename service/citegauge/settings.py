"""Settings: one frozen tree, and the only reader of environment and configuration file. Not a place for behaviour.

Every value can be set in a TOML file (`--config`) or by an environment variable `CITEGAUGE_<SECTION>__<NAME>`; the
environment wins. A secret may also stand in a file of its own, named by `CITEGAUGE_<SECTION>__<NAME>_FILE`. The sections
themselves stand in `sections`.
"""

from __future__ import annotations

import logging
import os
import tomllib
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from citegauge.conventions import DecodePolicy, SpanMapping
from citegauge.conventions.routes import DEFAULT_ROUTE_KEYS
from citegauge.domain.drop import Limits
from citegauge.domain.policy import SECOND_NS, JoinPolicy, ScorePolicy, TopKBuckets
from citegauge.errors import ConfigError
from citegauge.section_alerts import AlertSettings
from citegauge.sections import (
    ENCODINGS,
    ClickHouseSettings,
    JoinSettings,
    KafkaSettings,
    MappingSettings,
    PrivacySettings,
    PublishSettings,
    RekeySettings,
    RouteSettings,
    ScoreSettings,
    SourceSettings,
    WebSettings,
)

__all__ = [
    "ENCODINGS",
    "AlertSettings",
    "ClickHouseSettings",
    "ClosedSettings",
    "JoinSettings",
    "KafkaSettings",
    "MappingSettings",
    "PrivacySettings",
    "PublishSettings",
    "RekeySettings",
    "RouteSettings",
    "ScoreSettings",
    "Settings",
    "SourceSettings",
    "WebSettings",
    "load",
]


logger = logging.getLogger(__name__)


class Settings(BaseSettings):
    """All settings."""

    model_config = SettingsConfigDict(
        env_prefix="CITEGAUGE_", env_nested_delimiter="__", frozen=True, extra="forbid", use_attribute_docstrings=True
    )

    kafka: KafkaSettings = KafkaSettings()
    sources: dict[str, SourceSettings] = {}
    rekey: RekeySettings = RekeySettings()
    clickhouse: ClickHouseSettings = ClickHouseSettings()
    join: JoinSettings = JoinSettings()
    score: ScoreSettings = ScoreSettings()
    routes: dict[str, RouteSettings] = {}
    mappings: dict[str, MappingSettings] = {}
    publish: PublishSettings = PublishSettings()
    privacy: PrivacySettings = PrivacySettings()
    alerts: AlertSettings = AlertSettings()
    web: WebSettings = WebSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over what the file (passed to the constructor) says."""
        if isinstance(env_settings, EnvSettingsSource):  # the names of files are read by `load`
            env_settings.env_vars = {k: v for k, v in env_settings.env_vars.items() if k.upper() not in FILE_VARIABLES}
        return env_settings, init_settings

    def _check_topics(self) -> None:
        """One that the worker writes and reads as another would feed itself."""
        sources = dict.fromkeys(self.source_topics(), "sources" if self.sources else "kafka.source_topic")
        own = {
            "kafka.panes_topic": self.kafka.panes_topic,
            "kafka.dead_letter_topic": self.kafka.dead_letter_topic,
            "rekey.spans_topic": self.rekey.spans_topic,
        }
        taken = dict(sources)
        for setting, topic in own.items():
            if topic in taken:
                raise ValueError(f"{setting} and {taken[topic]} name the same topic, {topic}: give each its own")
            taken[topic] = setting

    @model_validator(mode="after")
    def _agree(self) -> Settings:
        join, kafka = self.join, self.kafka
        self._check_topics()
        needed_panes = (join.join_window_s + join.out_of_orderness_s) / 60 + 2
        if join.trace_panes_max < needed_panes:
            raise ValueError(
                f"join.trace_panes_max={join.trace_panes_max} must be at least {needed_panes:.0f} minutes: "
                "join_window_s + out_of_orderness_s and two panes"
            )
        if kafka.rebalance_timeout_s <= kafka.drain_timeout_s:
            raise ValueError("kafka.rebalance_timeout_s must exceed kafka.drain_timeout_s")
        if list(self.score.top_k_buckets) != sorted(set(self.score.top_k_buckets)):
            raise ValueError("score.top_k_buckets must rise")
        if self.clickhouse.buffer_rows_max < 2 * self.publish.flush_rows_max:
            raise ValueError("clickhouse.buffer_rows_max must be at least twice publish.flush_rows_max")
        return self

    def source_topics(self) -> dict[str, SourceSettings]:
        """Every topic of traces by name: the section `sources`, else the one topic of `kafka`."""
        if self.sources:
            return dict(self.sources)
        kafka = self.kafka
        return {kafka.source_topic: SourceSettings(encoding=kafka.encoding, keyed=kafka.keyed, epoch=kafka.epoch)}

    def joined_topics(self) -> list[str]:
        """The topics that the join reads: sources keyed by trace id, and the re-keyed topic if any source is not."""
        sources = self.source_topics()
        keyed = [topic for topic, source in sources.items() if source.keyed]
        return keyed if len(keyed) == len(sources) else [*keyed, self.rekey.spans_topic]

    def rekeyed_topics(self) -> list[str]:
        """The topics of traces that the re-key stage reads."""
        return [topic for topic, source in self.source_topics().items() if not source.keyed]

    def epoch_of(self, topic: str) -> int:
        """The epoch of a topic that the join reads."""
        return self.rekey.epoch if topic == self.rekey.spans_topic else self.source_topics()[topic].epoch

    def epoch_setting(self, topic: str) -> str:
        """The name of the setting that holds it."""
        if topic == self.rekey.spans_topic:
            return "rekey.epoch"
        return f"sources.{topic}.epoch" if self.sources else "kafka.epoch"

    def installation(self) -> str:
        """The installation's name; empty where ClickHouse keeps an id.

        A database in memory cannot: it would be a stranger at every start to what it left in Kafka, so all of them are one.
        """
        return self.kafka.installation or ("in-memory" if self.clickhouse.url == "chdb:" else "")

    def decode_policy(self, source: SourceSettings | None = None) -> DecodePolicy:
        """How spans are read, of one source or in general. Raises `ConfigError` for a mapping that contradicts itself."""
        try:
            mappings = tuple(SpanMapping(name=name, **mapping.model_dump()) for name, mapping in self.mappings.items())
        except ValueError as exc:
            raise ConfigError(f"setting mappings: {exc}") from exc
        route_keys = (source.route_keys if source is not None else ()) or self.score.route_keys
        return DecodePolicy(
            route_keys=route_keys or DEFAULT_ROUTE_KEYS,
            mappings=mappings,
            user_hmac_key=self.privacy.user_hmac_key.get_secret_value().encode(),
            user_keys=self.privacy.user_attributes,
        )

    def join_policy(self) -> JoinPolicy:
        """The join's bounds as the core knows them."""
        join = self.join
        return JoinPolicy(
            join_window_ns=int(join.join_window_s * SECOND_NS),
            out_of_orderness_ns=int(join.out_of_orderness_s * SECOND_NS),
            skew_ns=int(join.skew_s * SECOND_NS),
            trace_panes_max=join.trace_panes_max,
            trace_spans_max=join.trace_spans_max,
            traces_max=join.traces_max,
            groups_max=join.groups_max,
            source_idle_ns=int(self.rekey.idle_s * SECOND_NS),
        )

    def score_policy(self) -> ScorePolicy:
        """What the score depends on, as the core knows it."""
        return ScorePolicy(
            buckets=TopKBuckets(upper_bounds=self.score.top_k_buckets),
            routes=MappingProxyType({name: route.policy() for name, route in self.routes.items()}),
            only_listed_routes=self.score.only_listed_routes,
            nonconformant_as_zero=self.score.nonconformant_as_zero,
        )

    def drop_limits(self) -> Limits:
        """What a fall must exceed for a ticket, as the core knows it."""
        alerts = self.alerts
        return Limits(
            traces_min=alerts.traces_min,
            baseline_traces_min=alerts.baseline_traces_min,
            fall_min=alerts.recall_drop_ticket_ratio,
            score_fall_sd_min=alerts.score_drop_sd,
            z_min=alerts.ticket_z_min,
        )


class ClosedSettings(Settings):
    """Settings that no environment touches: whatever runs on them reaches nothing but what it is given."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what the constructor is given."""
        return (init_settings,)


NAMES = tuple(
    f"{name}.{field}" if field else name
    for name, section in Settings.model_fields.items()
    for field in ("", *getattr(section.annotation, "model_fields", {}))
)
"""Every section and setting."""

SECRETS = tuple(
    f"{name}.{field}"
    for name, section in Settings.model_fields.items()
    for field, info in getattr(section.annotation, "model_fields", {}).items()
    if info.annotation is SecretStr
)
"""Settings that are never shown."""


FILE_VARIABLES = {f"CITEGAUGE_{name.replace('.', '__')}_FILE".upper(): name for name in SECRETS}
"""Environment variables that name the file of a secret."""


def _warn_of_strange_variables() -> None:
    """Of what is ignored. No error: an orchestrator may inject variables of the same look, such as `CITEGAUGE_WEB_PORT`."""
    by_one_underscore = {f"CITEGAUGE_{name.replace('.', '_')}".upper(): name for name in NAMES if "." in name}
    for variable in os.environ:
        section, two, _ = variable.upper().removeprefix("CITEGAUGE_").partition("__")
        meant = by_one_underscore.get(variable.upper())
        if meant is not None:
            right = f"CITEGAUGE_{meant.replace('.', '__')}".upper()
            logger.warning("%s is ignored: the variable of %s is %s", variable, meant, right)
        elif two and variable.upper().startswith("CITEGAUGE_") and section.lower() not in Settings.model_fields:
            logger.warning("%s is ignored: there is no section %s of settings", variable, section.lower())


def _secret(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as exc:
        raise ConfigError(f"cannot read the file of {name}, {path}: {exc.strerror}") from exc
    except UnicodeDecodeError:
        # From nothing: the exception carries the file's bytes.
        raise ConfigError(f"the file of {name}, {path}, is not UTF-8") from None


def load(config: Path | None = None, **overrides: Any) -> Settings:
    """Read the TOML file, if any, then the environment; `overrides` are sections given by the command line.

    Raises `ConfigError` with one line that names the setting. A variable that looks like a setting and is none is warned of.
    """
    _warn_of_strange_variables()
    values: dict[str, Any] = {}
    if config is not None:
        try:
            values = tomllib.loads(config.read_text(encoding="utf-8"))
        except OSError as exc:
            raise ConfigError(f"cannot read {config}: {exc.strerror}") from exc
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
            raise ConfigError(f"{config} is not TOML: {exc}") from exc
    given = [(section, field) for section, fields in overrides.items() for field in fields.items()]
    for variable, name in FILE_VARIABLES.items():
        if path := os.environ.get(variable):
            section, _, field = name.partition(".")
            given.append((section, (field, _secret(name, path))))
    for section, (field, value) in given:
        if isinstance(values.setdefault(section, {}), dict):  # anything else is an error of its own
            values[section] = {**values[section], field: value}
    try:
        return Settings(**values)
    except SettingsError as exc:
        raise ConfigError(f"{exc}: give its fields one by one, as CITEGAUGE_<SECTION>__<NAME>") from None
    except ValidationError as exc:
        first = exc.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            near = get_close_matches(name, [one for one in NAMES if one.count(".") == name.count(".")], 1)
            raise ConfigError(f"there is no setting {name}{f': is {near[0]} meant?' if near else ''}") from exc
        raise ConfigError(f"setting {name}: {first['msg']}" if name else first["msg"]) from exc
