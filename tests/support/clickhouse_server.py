"""A child process that is a ClickHouse server to its client: the HTTP front, read-write, over chDB.

    python clickhouse_server.py DIRECTORY PORT

Prints `ready` when it answers; ends when its standard input is closed, so that it cannot outlive the test run.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from citegauge.adapters.clickhouse_http import ClickHouseHttp, Engine


async def serve(path: Path, port: int) -> None:
    """Serve until standard input ends."""
    engine = Engine(path, read_only=False)
    server = ClickHouseHttp(engine, port=port)
    await server.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()
    engine.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
