"""The README's tables of settings and metrics, made from the code that they describe.

`python -m citegauge.tools.reference README.md` rewrites them between their markers; a test fails while they differ.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from citegauge.metrics import METRICS
from citegauge.settings import MappingSettings, RouteSettings, Settings, SourceSettings

NAMED: dict[str, type[BaseModel]] = {"routes": RouteSettings, "sources": SourceSettings, "mappings": MappingSettings}
BEGIN, END = "<!-- {name}: made by `make docs` -->", "<!-- end of {name} -->"


def settings_table() -> str:
    """Markdown: name, default, meaning."""
    lines = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        if name in NAMED:
            lines += _rows(f"{name}.<name>", NAMED[name])
        else:
            section = field.annotation
            assert isinstance(section, type)
            assert issubclass(section, BaseModel)
            lines += _rows(name, section)
    return "\n".join(lines)


def _rows(prefix: str, section: type[BaseModel]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield f"| `{prefix}.{name}` | {_default(field)} | {_text(field.description)} |"


def _default(field: FieldInfo) -> str:
    value: Any = field.default
    if field.is_required():
        return "(required)"
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, bool):
        value = str(value).lower()
    elif value == {}:
        value = ""
    elif isinstance(value, tuple):
        value = ", ".join(map(str, value))
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"`{value}`" if str(value) else "(empty)"


def _text(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def metrics_table() -> str:
    """Markdown: name, type, labels, meaning."""
    lines = ["| metric | type | unit | labels | meaning |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| `{metric.name}` | {metric.type} | {metric.unit} | {', '.join(metric.labels) or '–'} | {_text(metric.help)} |"
        for metric in METRICS
    ]
    return "\n".join(lines)


TABLES = {"settings": settings_table, "metrics": metrics_table}


def rewritten(text: str) -> str:
    """The text with every table made anew. ValueError when a marker is missing."""
    for name, table in TABLES.items():
        begin, end = BEGIN.format(name=name), END.format(name=name)
        head, found, rest = text.partition(begin)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"markers of {name!r} are missing")
        text = f"{head}{begin}\n{table()}\n{end}{tail}"
    return text


def main() -> None:
    """Rewrite the named file in place."""
    path = Path(sys.argv[1])
    path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
