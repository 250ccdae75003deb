"""The route of a span: an ordered list of keys, tried most specific first. Not the choice among a trace's spans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from citegauge.conventions.values import loads, text

ROUTE_KEYS_MAX = 250
"""The rank of a key travels in one byte, of which 255 means "none"."""
ROUTE_LENGTH_MAX = 128
MEMO_MAX = 4_096
"""Routes that a reader remembers the cleaned form of: many spans have few routes."""
NO_ROUTE = ("", 255)

DEFAULT_ROUTE_KEYS: tuple[str, ...] = (
    "route",
    "citegauge.route",
    "rag.route",
    "metadata#route",
    "langfuse.trace.metadata.route",
    "langfuse.observation.metadata.route",
    "langsmith.metadata.route",
    "traceloop.association.properties.route",
    "mlflow.traceTag.route",
    "metadata#feature",
    "langfuse.trace.metadata.feature",
    "langfuse.observation.metadata.feature",
    "langsmith.metadata.feature",
    "traceloop.association.properties.feature",
    "feature",
    "http.route",
    "ai.telemetry.functionId",
    "gen_ai.agent.name",
    "agent.name",
    "gen_ai.workflow.name",
    "traceloop.workflow.name",
    "langfuse.trace.name",
    "mlflow.traceName",
    "gen_ai.application_name",
    "ml_app",
    "ai.observability.app_name",
    "langsmith.trace.session_name",
    "resource:openinference.project.name",
    "resource:ml_app",
    "resource:service.name",
)
"""`name` is a span attribute, `name#field` a field of the JSON in it, `resource:name` a resource attribute."""


class RouteReader:
    """Reads (route, rank) of a span; the rank is the position of the key that gave the route."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        if not 0 < len(keys) <= ROUTE_KEYS_MAX or len(set(keys)) != len(keys):
            raise ValueError(f"route keys must be 1 to {ROUTE_KEYS_MAX} different names")
        self._steps: list[tuple[int, bool, str, str]] = []
        for rank, key in enumerate(keys):
            in_resource = key.startswith("resource:")
            name, _, field = key.removeprefix("resource:").partition("#")
            self._steps.append((rank, in_resource, name, field))
        self._cleaned: dict[str, str] = {}

    def read(self, attributes: Mapping[str, Any], resource: Mapping[str, Any]) -> tuple[str, int]:
        """The route by the first key that has one, else ("", 255)."""
        parsed: dict[str, object] = {}
        for rank, in_resource, name, field in self._steps:
            value = (resource if in_resource else attributes).get(name)
            if value is None:
                continue
            if field:
                if name not in parsed:
                    parsed[name] = _object(value)
                inner = parsed[name]
                value = inner.get(field) if isinstance(inner, dict) else None
            route = self._clean(value)
            if route:
                return route, rank
        return NO_ROUTE

    def _clean(self, value: object) -> str:
        if type(value) is not str:
            return cleaned(value)
        route = self._cleaned.get(value)
        if route is None:
            route = cleaned(value)
            if len(self._cleaned) < MEMO_MAX and len(value) <= ROUTE_LENGTH_MAX:
                self._cleaned[value] = route
        return route


def cleaned(value: object) -> str:
    """A route as a label: unquoted, printable, at most `ROUTE_LENGTH_MAX` characters. Empty where there is none."""
    route = text(value)
    # The SDK's stand-in for a service without a name says nothing.
    return "" if route.startswith("unknown_service") else route[:ROUTE_LENGTH_MAX].rstrip()


def _object(value: object) -> object:
    if isinstance(value, str):
        try:
            return loads(value) if value[:1] == "{" else None
        except ValueError:
            return None
    return value
