"""/metrics: a collector that reads live state when it is asked, so that the series of a lost group disappear.

Beside what the table names, the process itself: memory, CPU and open files, under the usual `process_` names.

Knows the table of metrics and nothing of where the values come from.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from citegauge.metrics import BY_NAME, METRICS, Sample


class LiveCollector(Collector):
    """Turns samples into metric families, in the order of the table."""

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        """Every family that has a sample. KeyError for a name that is not in the table: a defect."""
        families = {
            metric.name: (CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily)(
                metric.name, metric.help, labels=metric.labels
            )
            for metric in METRICS
        }
        seen: set[str] = set()
        for sample in self._samples():
            assert len(sample.labels) == len(BY_NAME[sample.name].labels), sample.name
            families[sample.name].add_metric(sample.labels, sample.value)
            seen.add(sample.name)
        return (family for name, family in families.items() if name in seen)


class Exporter:
    """Renders the exposition text."""

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(LiveCollector(samples))
        ProcessCollector(registry=self._registry)
        self._one_at_a_time = threading.Lock()
        self._begun_ns = -1
        self._rendered = b""

    def render(self) -> tuple[bytes, str]:
        """Text and content type. Takes about 0.1 ms and 1 kB a series, so call it in a thread.

        One at a time: who asks meanwhile gets what was begun after they asked. So visitors who gave up leave no queue.
        """
        asked_ns = time.monotonic_ns()
        with self._one_at_a_time:
            if self._begun_ns < asked_ns:
                self._begun_ns = time.monotonic_ns()
                self._rendered = generate_latest(self._registry)
            return self._rendered, CONTENT_TYPE_LATEST
