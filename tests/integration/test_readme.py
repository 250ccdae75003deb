"""The README's commands do what it says."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from citegauge.adapters import clickhouse, migrations
from citegauge.adapters.clickhouse_http import ClickHouseHttp, Engine
from citegauge.settings import load
from support.clickhouse_rows import pane_row

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^```sh\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)


def test_every_command_is_run_somewhere() -> None:
    """`.ci/run` runs the two make targets; this file runs the rest. A new block has to be added here or there."""
    starts = [block.split()[0:2] for block in COMMANDS]
    assert starts == [["make", "demo"], ["curl", "-s"], ["make", "test"], [".venv/bin/citegauge", "doctor"]]
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "make demo" in ci
    assert "make test" in ci


def test_the_curl_answers_with_the_windows(tmp_path: Path) -> None:
    """The statement of the README runs over the read-only interface and prints the group."""
    target = clickhouse.EmbeddedTarget(path=tmp_path / "data")
    database = clickhouse.connect(target, "citegauge")
    try:
        migrations.migrate(database, "citegauge")
        minute = int(time.time()) // 60 * 60 - 600
        database.insert(
            [pane_row(pane=minute, route="support", states={"measured": 3}, recall_counts={5 << 16 | 2: 3})]
        )
        answer = asyncio.run(_curl(tmp_path / "data"))
    finally:
        database.close()
    assert "support" in answer
    assert "0.4" in answer


async def _curl(path: Path) -> str:
    engine = Engine(path, read_only=True)
    server = ClickHouseHttp(engine, port=0, database="citegauge")
    await server.start()
    try:
        command = shlex.split(COMMANDS[1].replace("127.0.0.1:8124", f"127.0.0.1:{server.port}"))
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        out, _ = await process.communicate()
        assert process.returncode == 0
        return out.decode()
    finally:
        await server.stop()
        engine.close()


@pytest.mark.parametrize("line", COMMANDS[3].splitlines())
def test_commands_on_files_print_what_they_promise(line: str) -> None:
    """The commands that need neither broker nor database run on a file of the repository."""
    command = [sys.executable, "-m", "citegauge", *shlex.split(line)[1:]]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    assert "measured" in outcome.stdout


def test_the_configuration_file_is_valid(tmp_path: Path) -> None:
    """Every settings example of the README is accepted as it stands."""
    examples = re.findall(r"^```toml\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert examples
    for number, example in enumerate(examples):
        path = tmp_path / f"{number}.toml"
        path.write_text(example, encoding="utf-8")
        assert tomllib.loads(example)
        load(path)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!https?:)([^)#]+)\)", TEXT))))
def test_links_lead_somewhere(link: str) -> None:
    """Files that the README points at exist."""
    assert (ROOT / link).exists()
