"""ClickHouse's HTTP query interface over the engine in this process (chDB), for `curl`, dashboards and tests.

Read-only (the demo): only SELECT, SHOW, DESCRIBE, EXPLAIN and EXISTS, bounded in time, rows, bytes and memory.
Read-write (tests): a stand-in for a server, good enough for clickhouse_connect. It is not a server: no users, no
sessions, no progress headers, no compressed answers, and a result is held in memory before it is sent.

Two fences keep the read-only mode so. The engine's own `readonly = 1` refuses writes, DDL, changes of settings and
table functions that reach outside. What it lets pass (tried one by one on chDB 4.4.0: `INTO OUTFILE`, the scalar
function `file`, `KILL`, table function `python`, commands of the interactive client) is refused by looking at the
statement as the engine's own parser prints it, and what is executed is that print, never the text that came in.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import cramjam
from aiohttp import web

from citegauge.errors import FatalError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

WORKERS = 4
"""Statements that run at the same time."""
PENDING_MAX = 64
"""Requests running or waiting for a worker; more are told that there are too many."""
QUERY_BYTES_MAX = 256 * 1024
BODY_BYTES_MAX = 1024 * 1024 * 1024

READ_ONLY_LIMITS: Mapping[str, str] = MappingProxyType(
    {
        "max_execution_time": "10",
        "max_result_rows": "100000",
        "max_result_bytes": "67108864",
        "result_overflow_mode": "throw",
        "max_memory_usage": "1000000000",
        "max_threads": "2",
        "priority": "3",  # after the service's own inserts and queries
        "allow_ddl": "0",
        "allow_introspection_functions": "0",
        # What our own client asks for, too: to ask for what is set already is allowed, so our commands can read here.
        "precise_float_parsing": "1",
        "input_format_skip_unknown_fields": "0",
        "session_timezone": "UTC",
        "readonly": "1",  # last: from here on no setting can be changed
    }
)
_READING = re.compile(r"(SELECT|WITH|SHOW|DESCRIBE|DESC|EXPLAIN|EXISTS)\b", re.IGNORECASE)
_RESULT = re.compile(rb"\s*\(*\s*(SELECT|WITH|FROM|SHOW|DESCRIBE|DESC|EXPLAIN|EXISTS|CHECK|KILL)\b", re.IGNORECASE)
_LITERAL = re.compile(r"'(?:[^'\\]|\\.)*'", re.DOTALL)
_FORBIDDEN = re.compile(
    r"(?i:\bINTO\s+OUTFILE\b|\bPARALLEL\s+WITH\b|\bfile\b|\bsleep(?:EachRow)?\b)|\b(?:ai|AI)[A-Z]\w*"
)
_CALL = re.compile(r"\b(\w+)\s*\(")
_HARMLESS_TABLE_FUNCTIONS = frozenset(
    {"format", "generateseries", "generate_series", "merge", "null", "numbers", "primes", "values", "view"}
)

_INSERT_WITH_DATA = re.compile(
    rb"\s*(INSERT\s+INTO\b(?:(?!\bSELECT\b|\bVALUES\b).)*?)\s+FORMAT\s+(\w+)[ \t\r]*\n?", re.IGNORECASE | re.DOTALL
)
_TRAILING_FORMAT = re.compile(rb"\bFORMAT\s+(\w+)\s*;?\s*$", re.IGNORECASE)
_SETTING_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ERROR_CODE = re.compile(r"Code: (\d+)")
_TRANSPORT_PARAMETERS = frozenset(
    {
        "query", "database", "default_format", "query_id", "session_id", "session_timeout", "session_check", "user",
        "password", "quota_key", "role", "wait_end_of_query", "buffer_size", "compress", "decompress",
        "client_protocol_version", "enable_http_compression", "send_progress_in_http_headers",
        "http_headers_progress_interval_ms", "cancel_http_readonly_queries_on_client_close", "add_http_cors_header",
    }
)  # fmt: skip
_DECODERS: Mapping[str, Callable[[bytes], bytes]] = MappingProxyType(
    {
        "lz4": lambda data: bytes(cramjam.lz4.decompress(data)),
        "zstd": lambda data: bytes(cramjam.zstd.decompress(data)),
        "gzip": lambda data: bytes(cramjam.gzip.decompress(data)),
        "deflate": lambda data: bytes(cramjam.zlib.decompress(data)),
        "br": lambda data: bytes(cramjam.brotli.decompress(data)),
    }
)
_STATUS: Mapping[int, int] = MappingProxyType(
    {
        6: 400, 26: 400, 27: 400, 36: 400, 38: 400, 41: 400, 42: 400, 43: 400, 53: 400, 62: 400, 72: 400, 456: 400,
        457: 400, 46: 404, 47: 404, 60: 404, 81: 404, 115: 404, 164: 403, 497: 403, 48: 501, 159: 504, 202: 503,
    }
)  # fmt: skip
"""HTTP status of an error code; 500 for all others, as a server does."""


class _RefusedError(Exception):
    """An answer with an error code of ClickHouse."""

    def __init__(self, code: int, name: str, message: str) -> None:
        super().__init__(f"Code: {code}. DB::Exception: {message}. ({name})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One request, taken apart."""

    text: bytes
    """The statement, and behind an INSERT its data."""
    database: str | None = None
    output_format: str = "TabSeparated"
    parameters: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a statement gave."""

    body: bytes
    result_format: str | None
    """None where the statement has no result."""
    summary: Mapping[str, str]


class Engine:
    """Runs statements, each on a handle of its own: nothing of one request can be seen by the next. Blocking."""

    def __init__(self, path: Path | None, *, read_only: bool, limits: Mapping[str, str] = READ_ONLY_LIMITS) -> None:
        try:
            import chdb  # noqa: PLC0415  # an optional extra
        except ImportError as error:
            raise FatalError("the embedded ClickHouse is not installed: pip install 'citegauge[embedded]'") from error
        self._connect = functools.partial(chdb.connect, str(path.resolve()) if path else ":memory:")
        self.read_only = read_only
        self._limits = limits
        # Keeps the engine open between requests.
        self._anchor = self._connect()
        self.timezone = self._anchor.query("SELECT timezone()", "TabSeparated").bytes().decode().strip()
        names = self._anchor.query("SELECT lower(name) FROM system.table_functions", "TabSeparated").bytes().decode()
        self._forbidden_calls = frozenset(names.split()) - _HARMLESS_TABLE_FUNCTIONS

    def run(self, statement: Statement) -> Answer:
        """Raises `_RefusedError`, or what chDB raises."""
        handle = self._connect()
        try:
            if statement.database:
                handle.query(f"USE {_quoted(statement.database, '`')}")
            for name, value in self._limits.items() if self.read_only else ():
                handle.query(f"SET {name} = {_quoted(value)}")
            for name, value in statement.settings.items():
                if _SETTING_NAME.fullmatch(name) is None:
                    raise _RefusedError(115, "UNKNOWN_SETTING", f"Unknown setting {name!r}")
                handle.query(f"SET {name} = {_quoted(value)}")
            return self._execute(handle, statement)
        finally:
            handle.close()

    def _execute(self, handle: Any, statement: Statement) -> Answer:
        if self.read_only:
            return self._select(handle, statement, self._checked(handle, statement.text))
        insert = _INSERT_WITH_DATA.match(statement.text)
        if insert is None:
            return self._select(handle, statement, statement.text.decode())
        inserter = handle.send_insert(insert[1].decode(), insert[2].decode())
        try:
            inserter.append(statement.text[insert.end() :])
            result = inserter.finish()
        except BaseException:
            inserter.cancel()
            raise
        return Answer(
            body=b"",
            result_format=None,
            summary={"written_rows": str(result.rows_written), "written_bytes": str(result.bytes_written)},
        )

    def _select(self, handle: Any, statement: Statement, text: str) -> Answer:
        result = handle.query(text, statement.output_format, params=dict(statement.parameters))
        raw = text.encode()
        chosen = _TRAILING_FORMAT.search(raw)
        return Answer(
            body=result.bytes() or b"",
            result_format=(chosen[1].decode() if chosen else statement.output_format) if _RESULT.match(raw) else None,
            summary={"read_rows": str(result.rows_read()), "read_bytes": str(result.bytes_read())},
        )

    def _checked(self, handle: Any, text: bytes) -> str:
        """The statement as the engine prints it, if it only reads, and only tables."""
        # A parameter travels escaped, as in a tab-separated file.
        escaped = text.decode().replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
        try:
            printed = handle.query("SELECT formatQuery({text:String})", "RawBLOB", params={"text": escaped})
        except RuntimeError as error:
            raise _RefusedError(62, "SYNTAX_ERROR", _syntax_message(str(error))) from error
        canonical: str = printed.bytes().decode().strip()
        bare = _LITERAL.sub("''", canonical).replace("`", "")
        if _READING.match(bare.lstrip("( ")) is None:
            raise _RefusedError(164, "READONLY", "Only SELECT, SHOW, DESCRIBE, EXPLAIN and EXISTS are answered here")
        found = _FORBIDDEN.search(bare)
        if found is not None:
            raise _RefusedError(497, "ACCESS_DENIED", f"{found[0]} is not allowed here")
        for call in _CALL.findall(bare):
            if call.lower() in self._forbidden_calls:
                raise _RefusedError(497, "ACCESS_DENIED", f"Table function {call} is not allowed here")
        return canonical

    def close(self) -> None:
        """Let go of the engine."""
        self._anchor.close()


class ClickHouseHttp:
    """The server: `await start()`, then `port` is known; `await stop()` ends it."""

    def __init__(self, engine: Engine, *, host: str = "127.0.0.1", port: int = 8124, database: str = "default") -> None:
        """`port` 0 takes a free one; `database` is what a request means that names none."""
        self.host = host
        self.port = port
        self._engine = engine
        self._database = database
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="clickhouse-http")
        self._pending = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Bind and answer. Raises `FatalError` when the port is taken."""
        body_bytes_max = QUERY_BYTES_MAX if self._engine.read_only else BODY_BYTES_MAX
        app = web.Application(client_max_size=body_bytes_max + 1024)
        app.router.add_route("*", "/ping", self._ping)
        app.router.add_route("*", "/", self._handle)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            auto_decompress=False,  # bodies are decoded here: aiohttp does not know lz4
            max_line_size=QUERY_BYTES_MAX,  # the query of a GET stands in the address
            shutdown_timeout=1.0,
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self.host, self.port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise FatalError(
                f"ClickHouse HTTP: cannot listen on {self.host}:{self.port} (demo --clickhouse-port): {error.strerror}"
            ) from error
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop listening and wait for the statements that run. The engine stays open; it is the caller's."""
        if self._runner is not None:
            await self._runner.cleanup()
        await asyncio.to_thread(self._pool.shutdown)

    async def _ping(self, request: web.Request) -> web.Response:
        del request
        return web.Response(text="Ok.\n")

    async def _handle(self, request: web.Request) -> web.Response:
        query_id = request.query.get("query_id") or str(uuid.uuid4())
        headers = {"X-ClickHouse-Query-Id": query_id, "X-ClickHouse-Timezone": self._engine.timezone}
        if self.host == "127.0.0.1" and not _is_loopback_name(request.host):
            # Some web page that points its own name at this machine (DNS rebinding) must not read from here.
            return web.Response(status=403, text="This address is not served here.\n")
        if self._pending >= PENDING_MAX:
            refusal = _RefusedError(202, "TOO_MANY_SIMULTANEOUS_QUERIES", "Too many simultaneous queries")
            return _error_response(str(refusal), headers)
        self._pending += 1
        try:
            statement = await self._parse(request)
            if not statement.text.strip():
                return web.Response(text="Ok.\n", headers=headers)
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(self._pool, self._engine.run, statement)
        except (_RefusedError, RuntimeError) as error:
            return _error_response(str(error), headers)
        except (UnicodeDecodeError, cramjam.DecompressionError) as error:
            return _error_response(str(_RefusedError(36, "BAD_ARGUMENTS", str(error))), headers)
        finally:
            self._pending -= 1
        headers["X-ClickHouse-Summary"] = json.dumps(answer.summary)
        headers["Content-Type"] = "text/plain; charset=UTF-8"
        if answer.result_format is not None:
            headers["X-ClickHouse-Format"] = answer.result_format
            headers["Content-Type"] = _content_type(answer.result_format)
        return web.Response(body=answer.body, headers=headers)

    async def _parse(self, request: web.Request) -> Statement:
        arguments = dict(request.query)
        if request.content_type == "multipart/form-data":
            # clickhouse_connect sends long queries and parameters so.
            arguments |= {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
            body = b""
        else:
            body = await request.read()
        encoding = request.headers.get("Content-Encoding", "identity")
        if body and encoding != "identity":
            decode = _DECODERS.get(encoding)
            if decode is None:
                raise _RefusedError(36, "BAD_ARGUMENTS", f"Unknown Content-Encoding {encoding}")
            body = await asyncio.to_thread(decode, body)
        query = arguments.get("query", "").encode()
        settings = {
            name: value
            for name, value in arguments.items()
            if name not in _TRANSPORT_PARAMETERS and not name.startswith("param_")
        }
        if request.method in {"GET", "HEAD"} and not self._engine.read_only:
            settings["readonly"] = "2"  # as a server does: GET only reads
        return Statement(
            text=query + b"\n" + body if query and body else query or body,
            database=arguments.get("database") or request.headers.get("X-ClickHouse-Database") or self._database,
            output_format=arguments.get("default_format")
            or request.headers.get("X-ClickHouse-Format")
            or "TabSeparated",
            parameters={
                name.removeprefix("param_"): value for name, value in arguments.items() if name.startswith("param_")
            },
            settings=settings,
        )


def _error_response(message: str, headers: dict[str, str]) -> web.Response:
    found = _ERROR_CODE.search(message)
    code = int(found[1]) if found else 0
    text = message[found.start() :] if found else message
    return web.Response(
        status=_STATUS.get(code, 500),
        text=text.strip() + "\n",
        headers=headers | {"X-ClickHouse-Exception-Code": str(code)},
    )


def _syntax_message(message: str) -> str:
    """Without the frame of our own statement around the user's."""
    text = message.split(": In scope", 1)[0]
    return text.rsplit("DB::Exception: ", 1)[-1].rstrip(". ")


def _quoted(text: str, mark: str = "'") -> str:
    return mark + text.replace("\\", "\\\\").replace(mark, "\\" + mark) + mark


def _is_loopback_name(host: str) -> bool:
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    return name in {"localhost", "127.0.0.1", "[::1]"}


def _content_type(result_format: str) -> str:
    if result_format.startswith("JSON"):
        return "application/json; charset=UTF-8"
    if result_format.startswith(("TabSeparated", "TSV", "Pretty", "CSV", "Vertical", "Markdown")):
        return "text/plain; charset=UTF-8"
    return "application/octet-stream"
