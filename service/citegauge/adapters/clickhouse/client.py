"""ClickHouse as a place for rows and a source of answers: a server over HTTP, or the engine in this process (chDB).

Both look the same from outside (`ClickHouse`: `RowSink` and `SqlReader`). This is not the schema (`sql/`), not the
thing that applies it (`migrations.py`), and it neither buffers nor retries: a batch goes out or an error by fate comes
back, and the caller may send the same rows again (versions make that harmless).

Rows travel as JSON lines made by msgspec: 3 us a row, where the driver's native columns cost 20 us.
"""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, LifoQueue
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

import clickhouse_connect
import msgspec
from clickhouse_connect.driver.binding import quote_identifier
from clickhouse_connect.driver.exceptions import ClickHouseError, Error, OperationalError
from urllib3.exceptions import NewConnectionError

from citegauge.adapters.clickhouse.codes import HINTS, Fault, fault_of
from citegauge.errors import ConfigError, FatalError, RetryableError
from citegauge.ports import LateRow, PaneRow, Row, TraceRow, TraceTombstone, UserRow, WindowRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from clickhouse_connect.driver.client import Client

CONNECT_TIMEOUT_S = 5
SEND_RECEIVE_TIMEOUT_S = 60
EMBEDDED_READERS_MAX = 4
"""Engine handles that answer queries at the same time in one process; more callers wait for a free one."""

# Lower goes first. With three heavy queries at a time on two cores an insert of 2,000 rows took 175 ms, and so 95 ms.
_WRITE_PRIORITY, _READ_PRIORITY = 1, 2

TABLES: Mapping[type[Row], str] = {
    TraceRow: "traces",
    TraceTombstone: "traces",
    PaneRow: "panes",
    LateRow: "late",
    UserRow: "trace_users",
    WindowRow: "windows",
}
_TOMBSTONE_TAIL = b',"is_deleted":1}'

_SETTINGS: Mapping[str, str] = {
    # The default parser of floats may miss by one unit in the last place; a stored row must equal the one sent.
    "precise_float_parsing": "1",
    # A field without a column is an error, not a value that quietly goes missing.
    "input_format_skip_unknown_fields": "0",
    # A time that somebody writes without a zone means UTC, whatever the host thinks.
    "session_timezone": "UTC",
}

_STATUS = re.compile(r"HTTP status (\d\d\d)\b")
_PASSING_STATUSES = frozenset({408, 429})
_MESSAGE_CHARS_MAX = 500


class Secret(Protocol):
    """What hides a password until it is used; pydantic's `SecretStr` is one."""

    def get_secret_value(self) -> str:
        """The password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTarget:
    """A ClickHouse server."""

    url: str
    """`http://host:8123` or `https://host:8443`, with a path when a proxy wants one."""
    user: str = "default"
    password: Secret | str = ""
    verify: bool = True
    """Check the server's certificate (https only)."""
    ca_file: Path | None = None
    """PEM file of the authority that signed it, when the system does not know it."""
    connect_timeout_s: int = CONNECT_TIMEOUT_S
    send_receive_timeout_s: int = SEND_RECEIVE_TIMEOUT_S

    def __post_init__(self) -> None:
        """Raises `ConfigError` for an address that is not one."""
        parts = urlsplit(self.url)
        if "@" in self.url:  # first of all, so that no other message repeats the password
            raise ConfigError("ClickHouse address: give user and password in their own settings, not in the address")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(f"ClickHouse address {self.url!r}: must be http://host:8123 or https://host:8443")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedTarget:
    """The engine in this process. One directory per process; every `EmbeddedTarget` of it is the same database."""

    path: Path | None = None
    """Where the data lives; None: in memory, gone when the last client of this process closes."""
    query_timeout_s: int = SEND_RECEIVE_TIMEOUT_S


class ClickHouse:
    """Implements `RowSink` and `SqlReader`; safe to use from several threads at once.

    Connects at the first call, and again at the next call when that failed, so a server may come up later than we do.
    """

    def __init__(self, target: HttpTarget | EmbeddedTarget, database: str) -> None:
        self.database = database
        self._target = target
        self._connections: _Connections = (
            _SharedConnection(lambda: _open_http(target, database))
            if isinstance(target, HttpTarget)
            else _HandlePool(lambda priority: _open_embedded(target, database, priority))
        )
        self._encoder = msgspec.json.Encoder()
        self._answered = False

    def insert(self, rows: Sequence[Row]) -> None:
        """Insert rows of one type as one block; see `RowSink`. NaN and infinities are stored as NULL."""
        if not rows:
            return
        kind = type(rows[0])
        assert all(type(row) is kind for row in rows), "one insert holds rows of one type"
        columns = list(kind.__struct_fields__)
        if kind is TraceTombstone:
            columns.append("is_deleted")
            block = b"\n".join(self._encoder.encode(row)[:-1] + _TOMBSTONE_TAIL for row in rows)
        else:
            block = self._encoder.encode_lines(rows)
        table = TABLES[kind]
        name = f"{quote_identifier(self.database)}.{table}"
        with self._translated(f"insert into {table}"), self._connections.writer() as client:
            client.raw_insert(name, columns, block, fmt="JSONEachRow")

    def query(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Rows of a SELECT; values are bound as `{name:Type}`. See `SqlReader`. Times come back aware, in UTC."""
        bound = dict(parameters) if parameters else None
        with self._translated("query"), self._connections.reader() as client:
            result = client.query(sql, parameters=bound, query_tz="UTC")
            return [dict(zip(result.column_names, row, strict=True)) for row in result.result_rows]

    def command(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """Run one statement without a default database; the value of its only cell, if it has one."""
        bound = dict(parameters) if parameters else None
        with self._translated("statement"), self._connections.writer() as client:
            return client.command(sql, parameters=bound, use_database=False)

    def ping(self) -> bool:
        """Whether it answers at all."""
        try:
            with self._translated("ping"), self._connections.reader() as client:
                return bool(client.ping())
        except (RetryableError, FatalError):
            return False

    def close(self) -> None:
        """Let go of connections, or of the engine; harmless when repeated. Later calls open anew."""
        self._connections.close()

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Turn the driver's exceptions into ours, by fate."""
        try:
            yield
        except ClickHouseError as error:
            raise _by_fate(what, error, answered=self._answered) from error
        except OSError as error:
            raise RetryableError(f"ClickHouse: {what} failed: {error}") from error
        except (UnicodeEncodeError, msgspec.EncodeError) as error:
            raise FatalError(f"ClickHouse: {what} failed, a row cannot be written as JSON: {error}") from error
        self._answered = True


def connect(target: HttpTarget | EmbeddedTarget, database: str = "citegauge") -> ClickHouse:
    """A `ClickHouse`. Touches no network; the embedded engine is opened at once, so that a bad path shows here.

    Raises `FatalError` when the engine cannot be opened.
    """
    clickhouse = ClickHouse(target, database)
    if isinstance(target, EmbeddedTarget):
        try:
            clickhouse.command("SELECT 1")
        except RetryableError as error:  # no server will be put right behind it
            raise FatalError(str(error)) from error
    return clickhouse


# ---------------------------------------------------------------------------------------------- connections


class _Connections(Protocol):
    @contextmanager
    def writer(self) -> Iterator[Client]: ...

    @contextmanager
    def reader(self) -> Iterator[Client]: ...

    def close(self) -> None: ...


class _SharedConnection:
    """One HTTP client for everything: without a session it keeps a pool of sockets and no state between calls."""

    def __init__(self, open_client: Callable[[], Client]) -> None:
        self._open = open_client
        self._lock = threading.Lock()
        self._client: Client | None = None

    @contextmanager
    def writer(self) -> Iterator[Client]:
        with self._lock:  # Held while connecting: one thread asks, the others get its client or its error's repetition.
            if self._client is None:
                self._client = self._open()
            client = self._client
        yield client

    reader = writer

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None


class _HandlePool:
    """Handles on the engine: calls on one handle run one after the other, so writing has its own.

    Then a long query of the web page makes no insert wait, and `EMBEDDED_READERS_MAX` queries run side by side.
    A handle that failed is closed and not used again: chDB keeps the rows that a failed query had already produced
    and puts them before the answer of the handle's next one (seen in chDB 4.4.0).
    """

    def __init__(self, open_client: Callable[[int], Client]) -> None:
        self._open = open_client
        self._write_lock = threading.Lock()
        self._writer: Client | None = None
        self._readers: LifoQueue[Client] = LifoQueue()
        self._reading = threading.BoundedSemaphore(EMBEDDED_READERS_MAX)

    @contextmanager
    def writer(self) -> Iterator[Client]:
        with self._write_lock:
            client, self._writer = self._writer or self._open(_WRITE_PRIORITY), None
            with _closed_on_failure(client):
                yield client
            self._writer = client

    @contextmanager
    def reader(self) -> Iterator[Client]:
        with self._reading:
            try:
                client = self._readers.get_nowait()
            except Empty:
                client = self._open(_READ_PRIORITY)
            with _closed_on_failure(client):
                yield client
            self._readers.put(client)

    def close(self) -> None:
        with self._write_lock:
            if self._writer is not None:
                self._writer.close()
                self._writer = None
        with suppress(Empty):
            while True:
                self._readers.get_nowait().close()


@contextmanager
def _closed_on_failure(client: Client) -> Iterator[None]:
    try:
        yield
    except BaseException:
        client.close()
        raise


def _open_http(target: HttpTarget, database: str) -> Client:
    parts = urlsplit(target.url)
    password = target.password if isinstance(target.password, str) else target.password.get_secret_value()
    client = clickhouse_connect.get_client(
        interface=parts.scheme,
        host=cast("str", parts.hostname),
        port=parts.port or (8443 if parts.scheme == "https" else 8123),
        proxy_path=parts.path,
        username=target.user,
        password=password,
        verify=target.verify,
        ca_cert=str(target.ca_file) if target.ca_file else None,
        connect_timeout=target.connect_timeout_s,
        send_receive_timeout=target.send_receive_timeout_s,
        # A session would forbid concurrent calls; nothing here needs one.
        autogenerate_session_id=False,
        dedicated_pool=True,
        client_name="citegauge",
        tz_mode="aware",
        settings=dict(_SETTINGS),
    )
    # Only now: the handshake must succeed before the first migration has made the database.
    client.database = database
    return client


def _open_embedded(target: EmbeddedTarget, database: str, priority: int) -> Client:
    if target.path is not None:
        target.path.mkdir(parents=True, exist_ok=True)
    try:
        client = clickhouse_connect.get_client(
            interface="chdb",
            path=str(target.path) if target.path else None,
            tz_mode="aware",
            settings={**_SETTINGS, "max_execution_time": str(target.query_timeout_s), "priority": str(priority)},
        )
    except ImportError as error:
        raise FatalError("the embedded ClickHouse is not installed: pip install 'citegauge[embedded]'") from error
    client.database = database
    return client


# --------------------------------------------------------------------------------------------------- errors


def _by_fate(what: str, error: ClickHouseError, *, answered: bool) -> RetryableError | FatalError:
    """`answered`: this server has done something for us before, so that its refusals may pass (`codes.ACCESS`)."""
    if (nobody := _unreached(error)) is not None:
        return RetryableError(f"no ClickHouse answers at {nobody.conn.host}:{nobody.conn.port} (clickhouse.url)")
    code = error.code if isinstance(error, Error) else None
    fault = _unnumbered(error) if code is None else fault_of(code)
    message = f"ClickHouse: {what} failed: {shorten(str(error), _MESSAGE_CHARS_MAX, placeholder='…')}"
    if code is not None and code in HINTS:
        message += f" -> {HINTS[code]}"
    passes = fault == "server" or (fault == "access" and answered)
    return RetryableError(message) if passes else FatalError(message)


def _unnumbered(error: ClickHouseError) -> Fault:
    """Without a code it is the network or a proxy that speaks, or the driver itself, whose refusal is a defect of ours."""
    if (found := _STATUS.search(str(error))) is not None:
        status = int(found[1])
        return "server" if status >= 500 or status in _PASSING_STATUSES else "access"
    return "server" if isinstance(error, OperationalError) else "ours"


def _unreached(error: BaseException | None) -> NewConnectionError | None:
    """The failed connection behind an error of the driver, whose own text is an address three times over."""
    while error is not None and not isinstance(error, NewConnectionError):
        reason = getattr(error, "reason", None)  # a text in ssl's
        error = reason if isinstance(reason, BaseException) else error.__cause__ or error.__context__
    return error
