"""The runbooks as pages, so that an alert's link leads somewhere wherever the worker runs. They are the files of
`docs/runbooks`, which the package carries; nothing of a request gets into them but the choice of a name.
"""

from __future__ import annotations

import html
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

INDEX = "README"
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · citegauge</title>
<link rel="icon" href="../static/icon.svg">
<link rel="stylesheet" href="../static/runbook.css">
<nav><a href="../">citegauge</a> <a href="./">all runbooks</a></nav>
<main>
{body}</main>
</html>
"""


def page(name: str) -> str | None:
    """HTML of a runbook, named as its file with or without `.md`; None when there is none."""
    return _pages().get(name.removesuffix(".md"))


@cache
def _pages() -> dict[str, str]:
    """All of them: two dozen, of a few kB each."""
    # What a page holds of HTML is shown as text.
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    found = {}
    for entry in _shipped().iterdir():
        if entry.name.endswith(".md"):
            text = entry.read_text(encoding="utf-8")
            title = html.escape(text.partition("\n")[0].removeprefix("# "))
            found[entry.name.removesuffix(".md")] = _PAGE.format(title=title, body=markdown.render(text))
    return found


def _shipped() -> Traversable:
    packaged = resources.files("citegauge") / "runbooks"
    # A checkout, also an editable install: docs/ stands beside service/.
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[4] / "docs" / "runbooks"
