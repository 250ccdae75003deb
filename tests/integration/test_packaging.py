"""The wheel holds what the package needs at run time, and the package finds it there."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "service" / "citegauge"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as the image builds it, without a download."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(folder)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("citegauge-*.whl")
    return path


def files(wheel: Path) -> set[str]:
    """Names in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_module_and_data_file(wheel: Path) -> None:
    """Modules, the page's static files and the typing marker: all that stands under service/citegauge."""
    wanted = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert len(wanted) > 10
    assert {f"citegauge/{path.relative_to(PACKAGE)}" for path in wanted} <= files(wheel)


def test_the_wheel_holds_the_migrations(wheel: Path) -> None:
    """`sql/` lies inside the package there, with its subfolders, under the same names and with the same bytes."""
    with zipfile.ZipFile(wheel) as archive:
        for path in (path for path in (ROOT / "sql").rglob("*") if path.is_file()):
            assert archive.read(f"citegauge/sql/{path.relative_to(ROOT / 'sql')}") == path.read_bytes()


def test_the_wheel_holds_the_runbooks(wheel: Path) -> None:
    """The worker serves them."""
    with zipfile.ZipFile(wheel) as archive:
        for path in (ROOT / "docs" / "runbooks").iterdir():
            assert archive.read(f"citegauge/runbooks/{path.name}") == path.read_bytes()


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    """No tests, no lock files, no caches."""
    assert {name.split("/")[0].split("-")[0] for name in files(wheel)} == {"citegauge"}
    assert not [name for name in files(wheel) if "__pycache__" in name or name.endswith(".pyc")]


def test_the_wheel_offers_the_command(wheel: Path) -> None:
    """`citegauge` is on the path after an install."""
    with zipfile.ZipFile(wheel) as archive:
        (entry_points,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "citegauge = citegauge.cli:main" in archive.read(entry_points).decode()
