"""House rules that no linter here knows: sizes, docstrings, migrations, lock files."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "service" / "citegauge"
MODULES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted(path for path in (ROOT / "tests").rglob("test_*.py"))
MIGRATIONS = sorted((ROOT / "sql").glob("*.sql"))
LOCKS = [ROOT / "requirements.lock", ROOT / "deploy" / "requirements.lock"]

MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
ARGUMENTS_MAX = 8

# This list only shrinks; each entry carries its reason: "file:function".
LONG_FUNCTIONS: dict[str, str] = {}


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods of a file."""
    tree = ast.parse(path.read_text())
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def name(path: Path) -> str:
    """A path as it is written in messages."""
    return str(path.relative_to(ROOT))


def test_there_is_something_to_check() -> None:
    """The rules below hold for files that were found, not for an empty list."""
    assert len(MODULES) > 10
    assert len(TESTS) > 5
    assert MIGRATIONS


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_modules_are_short_and_say_what_they_are(path: Path) -> None:
    """A module has at most 400 lines and opens with a docstring."""
    text = path.read_text()
    assert len(text.splitlines()) <= MODULE_LINES_MAX
    assert ast.get_docstring(ast.parse(text)), f"{name(path)} does not say what it is"


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_functions_are_short(path: Path) -> None:
    """A function has at most 70 lines and takes at most 8 arguments, past which it takes a dataclass."""
    for function in functions(path):
        where = f"{path.relative_to(PACKAGE)}:{function.name}"
        lines = (function.end_lineno or 0) - function.lineno + 1
        assert lines <= FUNCTION_LINES_MAX or where in LONG_FUNCTIONS, f"{where} has {lines} lines"
        given = function.args
        arguments = [a for a in given.posonlyargs + given.args + given.kwonlyargs if a.arg not in {"self", "cls"}]
        assert len(arguments) <= ARGUMENTS_MAX, f"{where} takes {len(arguments)} arguments"


def test_exemptions_are_still_needed() -> None:
    """An entry whose function became short, or went away, is removed."""
    long = {
        f"{path.relative_to(PACKAGE)}:{function.name}"
        for path in MODULES
        for function in functions(path)
        if (function.end_lineno or 0) - function.lineno + 1 > FUNCTION_LINES_MAX
    }
    assert set(LONG_FUNCTIONS) == long


@pytest.mark.parametrize("path", TESTS, ids=name)
def test_every_test_states_its_rule(path: Path) -> None:
    """Each test function has a docstring, so that a failure says which promise is broken."""
    silent = [f.name for f in functions(path) if f.name.startswith("test_") and not ast.get_docstring(f)]
    assert not silent


def test_migrations_are_numbered_without_gaps() -> None:
    """`NNNN_verb_noun.sql`, from 0001 on: a gap or a duplicate would be applied in an order nobody meant."""
    names = [path.name for path in MIGRATIONS]
    assert all(re.fullmatch(r"\d{4}_[a-z]+(_[a-z0-9]+)+\.sql", each) for each in names), names
    assert [int(each[:4]) for each in names] == list(range(1, len(names) + 1))


@pytest.mark.parametrize("path", MIGRATIONS, ids=name)
def test_a_migration_is_one_statement(path: Path) -> None:
    """ClickHouse has no transaction over two statements: a file that failed half-way could not be repeated."""
    assert statements(path.read_text()) == 1


def statements(sql: str) -> int:
    """How many statements a text holds; semicolons in strings, identifiers and comments do not count."""
    quoted = r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`"
    bare = re.sub(
        rf"{quoted}|--[^\n]*|/\*.*?\*/", lambda found: "x" if found[0][0] in "'\"`" else " ", sql, flags=re.DOTALL
    )
    return sum(1 for part in bare.split(";") if part.strip())


@pytest.mark.parametrize(
    ("sql", "count"),
    [
        ("SELECT 1", 1),
        ("SELECT 1;\n", 1),
        ("-- one; two\nSELECT ';' AS `a;b` /* ; */;", 1),
        ("SELECT 'it''s; \\'; x'", 1),
        ("SELECT 1; SELECT 2", 2),
        ("-- nothing;\n", 0),
    ],
)
def test_statements_are_counted(sql: str, count: int) -> None:
    """The counter of the rule above sees through quotes and comments."""
    assert statements(sql) == count


@pytest.mark.parametrize("path", LOCKS, ids=name)
def test_locks_hold_pins_and_hashes_but_no_addresses(path: Path) -> None:
    """Where packages come from is the user's configuration; what they are is pinned to the byte."""
    lines = path.read_text().splitlines()
    assert not [
        line
        for line in lines
        if "://" in line or line.lstrip().startswith(("-i", "--index", "--extra-index", "--find-links"))
    ]
    entries = "\n".join(lines).replace("\\\n", " ").splitlines()
    pins = [entry for entry in entries if re.match(r"[a-zA-Z0-9]", entry)]
    assert pins
    assert all(re.match(r"[a-z0-9._-]+==[^ ]+ .*--hash=sha256:[0-9a-f]{64}", pin) for pin in pins)


def pins(path: Path) -> dict[str, set[str]]:
    """Package name to the versions that a lock holds."""
    found: dict[str, set[str]] = {}
    for package, version in re.findall(r"^([a-z0-9._-]+)==([^ ;]+)", path.read_text(), flags=re.MULTILINE):
        found.setdefault(package, set()).add(version)
    return found


def test_production_runs_what_was_tested() -> None:
    """Each pin of the image's lock is a pin of the lock that the tests run with."""
    tested = pins(LOCKS[0])
    for package, versions in pins(LOCKS[1]).items():
        assert versions <= tested.get(package, set()), package


def test_locks_cover_the_declared_dependencies() -> None:
    """A dependency that was added to pyproject.toml without `make lock` would be missing on a fresh clone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = project["project"]["dependencies"]
    groups = project["dependency-groups"]
    build: list[str] = groups["build"]
    more = project["project"]["optional-dependencies"]["embedded"] + [x for x in groups["dev"] if isinstance(x, str)]
    for lock, wanted in zip(LOCKS, (declared + build + more, declared + build), strict=True):
        names = {re.split(r"[^A-Za-z0-9._-]", each, maxsplit=1)[0].lower().replace("_", "-") for each in wanted}
        assert names <= set(pins(lock)), name(lock)


def test_faust_is_pinned_exactly() -> None:
    """Faust releases have broken rebalancing before: an upgrade is a change of its own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "faust-streaming==0.15.3" in project["project"]["dependencies"]
