"""What we ship stands on: pinned to the byte, of allowed licences, and nothing that the lock does not name.

Known vulnerabilities cannot be looked up without a network: `make vulnerabilities` asks pip-audit, where it has one.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCKS = {name: (ROOT / name).read_text() for name in ("requirements.lock", "deploy/requirements.lock")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

ALLOWED = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-CMU", "MPL-2.0", "PSF-2.0",
    "Unlicense", "Zlib",
}  # fmt: skip
"""SPDX names. MPL-2.0 is a licence of files: fine for a library that is used unchanged. No GPL, AGPL, SSPL, BUSL."""
SAID_AS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "Repoze Public License": "BSD-3-Clause",  # venusian: the BSD text, with one more sentence on trademarks
}
"""What packages without an SPDX expression call theirs."""


def name_of(text: str) -> str:
    """A project's name in its one normal form."""
    return re.sub(r"[-_.]+", "-", text).lower()


def entries(lock: str) -> dict[str, list[str]]:
    """Pins by name, one text for each."""
    found: dict[str, list[str]] = {}
    for entry in re.sub(r"\\\n\s*", " ", lock).splitlines():
        if entry and not entry[0].isspace() and entry[0] != "#":
            found.setdefault(name_of(re.split(r"[=; ]", entry, maxsplit=1)[0]), []).append(entry)
    return found


def closure(requirements: list[str]) -> dict[str, metadata.Distribution]:
    """Everything installed that these need here, by name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [Requirement(text) for text in requirements]
    visited: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted = waiting.pop()
        key = name_of(wanted.name), frozenset(wanted.extras)
        if key in visited:
            continue
        visited.add(key)
        distribution = metadata.distribution(wanted.name)
        found[key[0]] = distribution
        for text in distribution.requires or []:
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in {"", *wanted.extras}):
                waiting.append(needed)
    return found


def licences(distribution: metadata.Distribution) -> set[str]:
    """SPDX names of what a distribution is under: every one that is named has to be allowed, also behind an OR."""
    head = distribution.metadata
    if "License-Expression" in head:
        return set(re.split(r"\s+(?:AND|OR|WITH)\s+|[()]", head["License-Expression"])) - {""}
    said = [
        line.rpartition("::")[2].strip() for line in head.get_all("Classifier") or [] if line.startswith("License ::")
    ]
    said = said or [head["License"].strip() if "License" in head else ""]
    return {SAID_AS.get(one, one) for one in said}


EXTRAS = [text for extra in PROJECT["optional-dependencies"].values() for text in extra]
RUNTIME = closure(PROJECT["dependencies"] + EXTRAS)


def test_there_is_something_to_check() -> None:
    """The closure reaches what libraries bring along."""
    assert {"aiokafka", "multidict", "venusian", "chdb", "pydantic-core"} <= set(RUNTIME)
    assert len(entries(LOCKS["requirements.lock"])) > len(entries(LOCKS["deploy/requirements.lock"])) > 30


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_is_exact_hashed_and_released(lock: str) -> None:
    """One version, no range; sha256 of each file; no development release; no address or path in place of a name."""
    for name, pins in entries(LOCKS[lock]).items():
        for pin in pins:
            found = re.match(r"[a-z0-9._-]+(?:\[[a-z,]+\])?==(\S+)(?: ; [^#]*?)? +--hash=", pin)
            assert found is not None, f"{name}: {pin[:80]}"
            assert not Version(found[1]).is_prerelease, pin[:80]
            hashes = re.findall(r"--hash=(\w+):([0-9a-f]+)", pin)
            assert hashes
            assert {(kind, len(digits)) for kind, digits in hashes} == {("sha256", 64)}, pin[:80]
            assert "@" not in pin.split("--hash")[0]
        # Several pins of one name are for different Pythons or systems, and say so.
        assert len(pins) == 1 or all(" ; " in pin for pin in pins), name


@pytest.mark.parametrize("name", sorted(RUNTIME))
def test_what_runs_is_in_the_lock(name: str) -> None:
    """No library comes in by the back door: what is needed at run time is pinned, for production too."""
    assert name in entries(LOCKS["requirements.lock"])
    production = closure(PROJECT["dependencies"])
    assert name not in production or name in entries(LOCKS["deploy/requirements.lock"])


@pytest.mark.skipif(Path(sys.prefix) != ROOT / ".venv", reason="only the environment of `make setup` holds the pins")
@pytest.mark.parametrize("name", sorted(RUNTIME))
def test_what_is_tested_is_what_is_pinned(name: str) -> None:
    """The tests run with the versions that the lock names."""
    pins = entries(LOCKS["requirements.lock"])[name]
    assert any(re.match(rf"[^=]+=={re.escape(RUNTIME[name].version)}\b", pin) for pin in pins)


@pytest.mark.parametrize("name", sorted(RUNTIME))
def test_licences_are_allowed(name: str) -> None:
    """Everything that runs may be used and passed on with an Apache-2.0 program."""
    found = licences(RUNTIME[name])
    assert found <= ALLOWED, f"{name}: {found - ALLOWED}"


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("License-Expression: MIT", {"MIT"}),
        ("License-Expression: (MIT OR GPL-3.0-only) AND Zlib", {"MIT", "GPL-3.0-only", "Zlib"}),
        (
            "Classifier: License :: OSI Approved :: GNU Affero General Public",
            {"GNU Affero General Public"},
        ),
        ("License: Proprietary", {"Proprietary"}),
        ("Summary: says nothing", {""}),
    ],
)
def test_a_licence_that_is_not_known_is_not_allowed(head: str, expected: set[str], tmp_path: Path) -> None:
    """Copyleft, closed or silent: each is found, and none passes."""
    folder = tmp_path / "x-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: x\nVersion: 1\n{head}\n")
    found = licences(metadata.Distribution.at(folder))
    assert found == expected
    assert (found <= ALLOWED) == (expected == {"MIT"})
