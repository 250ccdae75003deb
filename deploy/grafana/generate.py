"""Writes the dashboards that Grafana is provisioned with: `python deploy/grafana/generate.py` (or `make dashboards`).

`--check` writes nothing and fails, with the names of the files that differ from what the code says.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from boards.pipeline import pipeline
from boards.quality import quality
from boards.traces import traces

FOLDER = Path(__file__).parent / "dashboards"
BOARDS = {"quality": quality, "pipeline": pipeline, "traces": traces}


def made(name: str) -> str:
    """The JSON of one dashboard. Panels are numbered in their order, so that an address of one stays."""
    board: dict[str, Any] = json.loads(JSONEncoder().encode(BOARDS[name]().build()))
    for number, panel in enumerate(board["panels"], start=1):
        panel["id"] = number
    return json.dumps(board, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def main() -> int:
    """Write, or compare."""
    texts = {FOLDER / f"{name}.json": made(name) for name in BOARDS}
    if "--check" in sys.argv[1:]:
        stale = [path.name for path, text in texts.items() if not path.exists() or path.read_text("utf-8") != text]
        stale += [path.name for path in FOLDER.glob("*.json") if path not in texts]
        if stale:
            sys.exit(f"not what the code says (make dashboards): {', '.join(sorted(stale))}")
        return 0
    FOLDER.mkdir(exist_ok=True)
    for path, text in texts.items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
