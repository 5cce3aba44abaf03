"""Metrics for Prometheus. They hold no texts, keys or addresses."""

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

from regard.serve.queue import Job

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """Counters and histograms of the service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._requests = Counter(
            "regard_requests", "Requests.", ["route", "code"], registry=self.registry
        )
        self._seconds = Histogram(
            "regard_request_seconds",
            "Duration of requests.",
            ["route"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._waits = Histogram(
            "regard_wait_seconds",
            "Time that inputs waited for a worker.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._inputs = Counter(
            "regard_inputs", "Inputs that were answered.", ["run"], registry=self.registry
        )
        self._tokens = Counter(
            "regard_tokens", "Tokens read and written.", ["run", "side"], registry=self.registry
        )
        self._cancelled = Counter(
            "regard_cancelled", "Requests whose client left.", registry=self.registry
        )

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Report a number that is read when the metrics are asked for."""
        Gauge(name, text, registry=self.registry).set_function(read)

    def start_job(self, job: Job) -> None:
        self._waits.observe(time.perf_counter() - job.begin)

    def finish_request(self, route: str, code: int, seconds: float) -> None:
        self._requests.labels(route, code).inc()
        self._seconds.labels(route).observe(seconds)

    def finish_inputs(self, run: str, count: int) -> None:
        self._inputs.labels(run).inc(count)

    def add_tokens(self, run: str, side: str, count: int) -> None:
        """Count tokens; side: input or output."""
        self._tokens.labels(run, side).inc(count)

    def cancel(self) -> None:
        self._cancelled.inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)
