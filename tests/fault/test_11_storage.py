"""Fault 11: ClickHouse takes ten seconds an insert, or refuses the password for a while; no file descriptor is left."""

from __future__ import annotations

import resource
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

import pytest

from support.clickhouse import fetch
from support.faults import lasting, until_reading
from support.worker_tables import commits

if TYPE_CHECKING:
    from fault.conftest import MakeTrial
    from support.clickhouse import ClickHouseFront

pytestmark = pytest.mark.kafka
INSERT_S = 10.0
REFUSAL = b"Code: 516. DB::Exception: default: Authentication failed. (AUTHENTICATION_FAILED)"


class Gate:
    """In front of ClickHouse: each insert waits `insert_s` first, and while `refusing` no password is right."""

    def __init__(self, target: str) -> None:
        self.insert_s = 0.0
        self.refusing = False
        self.refused = 0
        self.delayed = 0
        self._over = threading.Event()
        gate = self

        class Forward(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if gate.refusing:
                    gate.refused += 1
                    self._answer(403, REFUSAL, {"X-ClickHouse-Exception-Code": "516"})
                    return
                if gate.insert_s and (b"INSERT" in body[:200] or "INSERT" in self.path):
                    gate.delayed += 1
                    gate._over.wait(gate.insert_s)
                kept = {k: v for k, v in self.headers.items() if k.lower() not in {"host", "content-length"}}
                status, content, headers = fetch(target + self.path, body or None, kept)
                self._answer(status, content, headers)

            do_GET = do_POST  # noqa: N815 - the base class calls it so

            def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() in {"content-type", "content-encoding"} or name.lower().startswith("x-clickhouse"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Forward)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.mark.full
def test_inserts_of_ten_seconds(trial: MakeTrial, own_front: ClickHouseFront) -> None:
    """Slow is no error: rows wait in the bounded buffer, nothing is tried again, commits follow what is stored."""
    with (
        Gate(own_front.url) as gate,
        trial("11 inserts of 10 s", clickhouse=own_front.url) as t,
    ):
        t.site = replace(t.site, clickhouse=gate.url)
        worker = t.worker()
        worker.until_ready()
        gate.insert_s = INSERT_S
        with t.feed(for_s=40):
            worker.until(lambda: gate.delayed >= (3 if t.short else 8), "inserts are slow", 180)
        assert worker.get("/healthz")[0] == 200, "slow is not stuck"
        assert worker.value("citegauge_clickhouse_retries_total") == 0
        gate.insert_s = 0.0
        t.healed()
        t.until_recovered(worker)
        t.verify(worker)


def test_the_password_is_wrong_for_a_while(trial: MakeTrial, own_front: ClickHouseFront) -> None:
    """The server refuses a password that it took: the worker tries again, says why, and loses nothing."""
    with (
        Gate(own_front.url) as gate,
        trial("11 wrong password", clickhouse=own_front.url) as t,
    ):
        t.site = replace(t.site, clickhouse=gate.url)
        worker = t.worker()
        worker.until_ready()
        until_reading(worker)
        with t.feed(for_s=30):
            worker.until(lambda: worker.value("citegauge_clickhouse_rows_total") > 0, "rows are stored")
            gate.refusing = True
            worker.until(lambda: worker.value("citegauge_clickhouse_failing", tier="join"), "inserts fail")
            standing = commits(t.site)
            worker.until(
                lambda: "check clickhouse.user and clickhouse.password; try " in worker.log, "the log says why"
            )
            lasting(worker, 8 if t.short else 60)
            assert commits(t.site) == standing, "offsets advance only behind acknowledged rows"
            gate.refusing = False
        t.healed()
        t.until_recovered(worker)
        assert gate.refused > 0
        t.verify(worker)


@pytest.mark.full
def test_file_descriptors_are_used_up(trial: MakeTrial) -> None:
    """Not one more file or socket: the worker goes on, or ends with a line; either way nothing is lost."""
    with trial("11 no file descriptors") as t:
        worker = t.worker()
        worker.until_ready()
        until_reading(worker)
        pid = worker.process.pid
        with t.feed(for_s=30):
            worker.until(lambda: worker.value("citegauge_records_total") > 0, "it reads")
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            time.sleep(10 if t.short else 40)  # nothing can be asked of it now
            if worker.process.poll() is None:
                resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        if worker.process.poll() is not None:
            said = [line for line in worker.fresh_log.splitlines() if line.startswith("citegauge: ")]
            assert said, worker.log
            worker.start()
        t.healed()
        t.until_recovered(worker)
        t.verify(worker)
