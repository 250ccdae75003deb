"""Provider citation blocks beside or inside an answer → ids and positions. Not text markers (`domain.citations`)."""

from __future__ import annotations

from typing import NamedTuple

from citegauge.domain.citations import Citations


class Blocks(NamedTuple):
    """What the provider says was cited."""

    citations: Citations
    file_level: bool
    """The ids name files, not chunks."""


def provider_citations(response: object) -> Blocks | None:
    """Citations of a recorded response; None where the provider recorded no citation structure."""
    return None
