"""Validation of weights with the metrics of a task."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from regard.system.interrupt import Interrupted, Interruption
from regard.training.average import average_weights
from regard.training.distribution import Replica
from regard.training.progress import is_better


class Validation:
    """Validation function of a task, and the metric that decides which weights are best."""

    def __init__(
        self,
        measure: Callable[[nn.Module], Mapping[str, float]],
        *,
        metric: str,
        maximize: bool,
        replica: Replica,
        interruption: Interruption,
    ):
        self._measure = measure
        self.metric = metric
        self.maximize = maximize
        self._replica = replica
        self.interruption = interruption

    def measure(self, weights: Mapping[str, Tensor] | None) -> dict[str, float] | None:
        """Return the metrics of the model's weights, or of `weights`; None if interrupted.

        The main process validates, the others wait for its result.
        """
        metrics = None
        if self._replica.world.is_main:
            try:
                with (
                    self._replica.evaluation_model(weights) as model,
                    self.interruption.interruptible(),
                ):
                    metrics = {name: float(value) for name, value in self._measure(model).items()}
            except Interrupted:
                metrics = None
        metrics = self._replica.world.broadcast(metrics)
        if metrics is not None and self.metric not in metrics:
            raise ValueError(
                f"validate must return the metric {self.metric}, got "
                f"{', '.join(metrics) or 'none'}."
            )
        return metrics

    def measure_mean(
        self, paths: Sequence[Path]
    ) -> tuple[dict[str, Tensor], dict[str, float] | None]:
        """Return the mean of the weights in files (on the main process), and its metrics."""
        mean = average_weights(paths) if self._replica.world.is_main else {}
        return mean, self.measure(mean)

    def is_at_least(self, metrics: Mapping[str, float], other: Mapping[str, float]) -> bool:
        """Return True if metrics are at least as good as others; any but NaN is better than none.

        Of equal metrics, those with the lower loss (`nll`) are better.
        """
        value, other_value = metrics[self.metric], other.get(self.metric)
        if value == other_value:
            return metrics.get("nll", 0.0) <= other.get("nll", 0.0)
        return is_better(value, other_value, maximize=self.maximize)
