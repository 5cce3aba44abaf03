"""Metrics for Prometheus. They hold no texts, keys or addresses."""

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """Counters and histograms of the service."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry, buckets=_SECONDS)
        self.requests = counter("regard_requests", "Requests.", ["route", "code"])
        self.seconds = histogram("regard_request_seconds", "Duration of requests.", ["route"])
        self.waits = histogram("regard_wait_seconds", "Time that inputs waited for a worker.")
        self.inputs = counter("regard_inputs", "Inputs that were answered.", ["run"])
        text = "Tokens read (side input) and written (output)."
        self.tokens = counter("regard_tokens", text, ["run", "side"])
        self.cancelled = counter("regard_cancelled", "Requests whose client left.")

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Report a number that is read when the metrics are asked for."""
        Gauge(name, text, registry=self._registry).set_function(read)

    def text(self) -> bytes:
        return generate_latest(self._registry)
