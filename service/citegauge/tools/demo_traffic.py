"""The demo's traffic as a process of its own, so that making it does not slow the worker. Started by `tools.demo`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time

from aiokafka import AIOKafkaProducer

from citegauge.tools.simulate_output import WallClock, produce
from citegauge.tools.simulate_spec import demo_spec


async def send(arguments: argparse.Namespace) -> None:
    """Back-fill, then go on live for good."""
    producer = AIOKafkaProducer(bootstrap_servers=arguments.bootstrap, linger_ms=20, max_batch_size=256 * 1024)
    await producer.start()
    try:
        spec = demo_spec(arguments.seed, arguments.end_ns, hours=arguments.hours, live=True)
        await produce(spec, producer, arguments.topic, realtime=True, clock=WallClock(now_ns=time.time_ns))
    finally:
        await producer.stop()


def main() -> None:
    """Read the arguments and send until terminated."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--hours", type=int, required=True)
    parser.add_argument("--end-ns", type=int, required=True)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(send(parser.parse_args()))


if __name__ == "__main__":
    main()
