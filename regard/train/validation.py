"""Measuring weights on data that they were not trained on, and what follows: the best ones, the ones kept."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from regard.train.average import mean_of_files
from regard.train.distribution import Replica
from regard.train.interrupt import Interrupted, Interruption
from regard.train.progress import is_better


class Validation:
    """A task's measure, of which one entry decides."""

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

    def of(self, weights: Mapping[str, Tensor] | None) -> dict[str, float] | None:
        """What the model measures with its present weights, or with these; None if a signal cut it off.

        The main process measures, the others wait and get the same, None included.
        """
        metrics = None
        if self._replica.world.is_main:
            try:
                with self._replica.holding(weights) as model, self.interruption.cutting():
                    metrics = {name: float(value) for name, value in self._measure(model).items()}
            except Interrupted:
                metrics = None
        metrics = self._replica.world.share(metrics)
        if metrics is not None and self.metric not in metrics:
            raise ValueError(f"validate must measure {self.metric}, but measured {', '.join(metrics) or 'nothing'}.")
        return metrics

    def of_mean(self, paths: Sequence[Path]) -> tuple[dict[str, Tensor], dict[str, float] | None]:
        """The mean of the weights in these files (on the main process), and what it measures."""
        mean = mean_of_files(paths) if self._replica.world.is_main else {}
        return mean, self.of(mean)

    def prefers(self, metrics: Mapping[str, float], to: Mapping[str, float]) -> bool:
        """Whether these measurements are at least as good as others; anything but NaN is better than none."""
        value, other = metrics[self.metric], to.get(self.metric)
        return value == other or is_better(value, other, maximize=self.maximize)
