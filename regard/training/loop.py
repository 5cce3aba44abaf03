"""Training loop: step, validate and save until a limit is reached.

A run that is killed at any moment and resumed ends with the same weights as one that never stopped,
bit for bit on a CPU: the order of the data and all random numbers are pure functions of seed, epoch
and step, and a checkpoint holds everything else. (With a limit in minutes once the number of steps
that fit into it is fixed, by the speed of the first ones, and unless the time is up before.)
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from regard.errors import UserError
from regard.layers.lora import merged_tensors, remove_adapters
from regard.ops.dispatch import unsupported_reason
from regard.system.interrupt import Interrupted, Interruption, handle_signals
from regard.system.lock import lock_folder
from regard.training.average import MovingAverage, average_weights
from regard.training.checkpoint import CheckpointStore, State, check_settings
from regard.training.config import TrainConfig
from regard.training.distribution import Replica, World, join_process_group
from regard.training.log import Log
from regard.training.optimizer import (
    build_optimizers,
    learning_rate,
    load_optimizer_tensors,
    optimizer_tensors,
    trainable_parameters,
    uses_muon,
)
from regard.training.partial import restrict_training
from regard.training.precision import resolve_precision
from regard.training.progress import Progress, is_at_least, steps_per_epoch
from regard.training.protocols import TrainingBatches
from regard.training.step import add_gradients
from regard.training.tensors import (
    find_nonfinite,
    is_sharded,
    load_tensors,
    read_tensors,
    tensors_of,
    ties_of,
    write_tensors,
)

_UNMEASURED, _MEASURED, _LEAST_MEASURED = 5, 30, 5
"""Steps before their speed is measured, which may compile code, and measured steps."""


class Diverged(UserError):  # noqa: N818  # named like StopIteration
    """Error for a loss, gradient or weight that is not finite, with its step and rows or name."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a run."""

    stop_reason: str
    """Limit that ended the run: steps, epochs, minutes, patience; interrupted (by a signal); paused
    (`until`)."""
    selected: str
    """Weights in model.safetensors: best, ema (the best EMA), average (of the last) or none."""
    metrics: dict[str, float]
    """Validation metrics of these weights."""
    progress: Progress
    """Progress at the end: step, epoch, tokens, seconds, best_step."""

    @property
    def is_interrupted(self) -> bool:
        """True if a signal stopped the run; commands then exit with status 130."""
        return self.stop_reason == "interrupted"


def fit(
    model: nn.Module,
    batches: TrainingBatches,
    *,
    config: TrainConfig,
    folder: Path,
    seed: int,
    validate: Callable[[nn.Module], Mapping[str, float]],
    metric: str,
    maximize: bool,
    fingerprint: Mapping[str, Any] | None = None,
    unit: str = "tokens",
    world: World | None = None,
    until: float = 1.0,
) -> Result:
    """Train `model`, or resume a run that was stopped in the same folder. The model ends with the
    selected weights: the mean of the last validations if it scores at least as well as the best
    weights, else these.

    Args:
        model: has loss(batch) and count(batch), see regard.training.protocols; for FSDP also
            blocks(), the modules that its loss calls one after the other; and whole_batch, if a
            step must be one batch of one process, its reason. It is moved to the device of
            `config`.
        folder: receives model.safetensors, checkpoints/, snapshots/, log.jsonl and tb/. All
            processes must see it, and only one process group may train in it at a time.
        validate: returns the metrics of a model in eval mode, without gradients; called on the main
            process only.
        metric: the metric that selects the best weights; larger is better if `maximize`.
        fingerprint: further settings of the run, as JSON, which must be the same when it is
            resumed.
        unit: what rates in the log count: tokens, or a name of the examples.
        world: the processes that train together; by default those of torchrun.
        until: fraction of the run, by steps or by whole epochs, from which on it pauses after
            a validation.

    Raises:
        Diverged: the loss is NaN or infinite.
        UserError: the checkpoint is of a run with other settings, a file is damaged, the device or
            a batch cannot be used, or another process works in the folder.
    """
    settings = {
        **(fingerprint or {}),
        "seed": seed,
        "train": config.training_fingerprint(),
        # With and without compiled code, dropout draws other bits.
        "native": unsupported_reason() is None,
    }
    with (
        nullcontext(world) if world else join_process_group(config.device) as joined,
        handle_signals() as interruption,
        ExitStack() as stack,
    ):
        reason = getattr(model, "whole_batch", None)
        if reason is not None and (joined.size > 1 or config.accumulate > 1):
            given = f"train.accumulate {config.accumulate} and {joined.size} processes"
            raise UserError(f"a step must be one batch of one process with {reason}, got {given}")
        if uses_muon(model, config) and joined.size > 1 and config.shard == "fsdp":
            raise UserError(
                f"train.optimizer {config.optimizer} is Muon, which needs whole matrices, and "
                "train.shard fsdp splits them: set train.shard ddp or train.optimizer adamw"
            )
        joined.run_on_main(lambda: stack.enter_context(lock_folder(folder)))
        if (config.freeze, config.lora) != (None, None):
            restrict_training(model, config, seed=seed)
        run = _Run(
            Replica(model, joined, shard=config.shard, compiled=config.compile),
            interruption,
            batches=batches,
            config=config,
            folder=folder,
            seed=seed,
            validation=validate,
            metric=metric,
            maximize=maximize,
            settings=settings,
            unit=unit,
            until=until,
        )
        with run.log:
            return run.run()


class _Sums(NamedTuple):
    """Sums of a step and the norm of its gradient, on the device until they are read."""

    number: int
    epoch: int
    rows: Sequence[tuple[int, ...]]
    values: Float[Tensor, "batches 2"]
    norm: Tensor
    count: int


@dataclass(eq=False)
class _Run:
    """State of one call of `fit`: the model in training, its progress and its folder."""

    replica: Replica
    interruption: Interruption
    batches: TrainingBatches
    config: TrainConfig
    folder: Path
    seed: int
    validation: Callable[[nn.Module], Mapping[str, float]]
    metric: str
    maximize: bool
    settings: dict[str, Any]
    unit: str
    until: float

    def __post_init__(self) -> None:
        config, folder = self.config, self.folder
        self.world, self.stopping = self.replica.world, False
        self.unread: list[_Sums] = []
        self.max_unread = _steps_per_read(self.world.device)
        self.norm = 0.0
        self.model = self.replica.model.train()
        self.weights, self.ties = folder / "model.safetensors", ties_of(self.model)
        self.optimizers = build_optimizers(self.model, config)
        self.average = MovingAverage(self.model, decay=config.ema) if config.ema else None
        self.best_kind = "ema" if config.ema else "best"
        self.store = CheckpointStore(folder, keep=config.keep)
        self.plan = lru_cache(maxsize=1)(self.batches.plan)
        saved = self.world.run_on_main(self.store.open)
        self.device_before = saved[1].device if saved else ""
        self.precision = config.precision
        if self.precision == "tf32" and self.world.device.type == "cpu":
            # A run of a GPU goes on; a new one is refused.
            self.precision = "float32" if saved else resolve_precision("tf32", self.world.device)
        self.progress, log_bytes = self.resume(*saved) if saved else (Progress(), 0)
        if self.progress.planned_minutes != config.minutes:
            self.progress.planned_steps = 0
        self.step_seconds: list[float] = []
        self.saved = (self.progress.step, self.progress.seconds)
        self.start_time = time.monotonic() - self.progress.seconds
        self.log = Log(
            folder,
            is_enabled=self.world.is_main,
            tensorboard=config.tensorboard,
            step=self.progress.step,
            log_bytes=log_bytes,
            unit=self.unit,
        )

    def run(self) -> Result:
        progress, config = self.progress, self.config
        if progress.step:
            self.log.note(f"Resuming after step {progress.step}, in epoch {progress.epoch + 1}.")
        if (config.freeze, config.lora) != (None, None):
            trained = trainable_parameters(self.model).values()
            self.log.note(f"training {sum(map(torch.numel, trained)):,} parameters")
        if self.device_before not in ("", self.world.device.type):
            self.log.note(
                f"The run was on {self.device_before} so far; on {self.world.device.type} rounding "
                f"and random numbers differ, so its weights will not be the same bit for bit."
            )
        if self.precision != config.precision:
            self.log.note(f"Products are of float32, since a cpu has no {config.precision}.")
        if not progress.step and config.epochs and (note := self.fit_warmup()):
            count = config.epochs * steps_per_epoch(config, batches=len(self.plan(0)))
            self.log.note(f"--train.epochs {config.epochs:,}: {count:,} steps{note}")
        while True:
            if config.minutes is not None and self.is_measuring() and self.is_measured():
                self.plan_steps(config.minutes)
            if progress.is_validation_due(config):
                self.validate()
            elif progress.is_checkpoint_due(config, saved=self.saved):
                self.save()
            limit = progress.limit_reached(config)
            if limit or self.is_stopping() or progress.is_pause_due(config, self.until):
                break
            self.step()
        if limit == "minutes" and not 0 < progress.planned_steps <= progress.step:
            rate = learning_rate(config, progress, batches=len(self.plan(progress.epoch)))
            planned = f" of {progress.planned_steps:,}" if progress.planned_steps else ""
            self.log.note(
                f"--train.minutes {config.minutes:g}: the time is up after step {progress.step:,}"
                f"{planned}, at {rate / config.lr:.1%} of the peak learning rate"
            )
        if limit and progress.last_validation != progress.step and not self.is_stopping():
            self.validate()
        result = None if self.is_stopping() or not limit else self.finish(limit)
        return result or self.pause()

    def is_stopping(self) -> bool:
        """Return True if a signal requested a stop; of several processes, once all agree."""
        return self.stopping or (self.world.size == 1 and self.interruption.is_requested)

    def is_measuring(self) -> bool:
        """Return True if the number of steps that fit into the minutes is not fixed yet."""
        return self.config.minutes is not None and not self.progress.planned_steps

    def is_measured(self) -> bool:
        """Return True after 35 steps, or from 10 on after a tenth of the minutes."""
        is_long = self.progress.seconds >= 6 * (self.config.minutes or 0.0)
        return len(self.step_seconds) >= _UNMEASURED + (_LEAST_MEASURED if is_long else _MEASURED)

    def plan_steps(self, minutes: float) -> None:
        """Fix the number of steps that fit into the minutes by their mean time, and save it."""
        progress, measured = self.progress, self.step_seconds[_UNMEASURED:]
        mean = sum(measured) / len(measured)
        progress.plan_steps(minutes, step_seconds=mean)
        planned, note = progress.planned_steps, self.fit_warmup()
        self.log.note(f"--train.minutes {minutes:g}: {planned:,} steps of {mean:.3g} s{note}")
        values = {"planned_steps": planned, "warmup_steps": progress.warmup_steps}
        self.log.record("schedule", progress, values | {"step_seconds": mean})
        self.save()

    def fit_warmup(self) -> str:
        """Shorten a warm-up that does not fit; return a note, empty if it fits."""
        progress, given = self.progress, self.config.warmup
        steps = progress.fit_warmup(self.config, batches=len(self.plan(progress.epoch)))
        return "" if steps is None else f"; --train.warmup {given:,} does not fit: {steps:,} steps"

    def step(self) -> None:
        progress, config = self.progress, self.config
        start, is_measuring = time.monotonic(), self.is_measuring()
        plan = self.plan(progress.epoch)
        if not plan:
            expected = "training data must have at least one batch per epoch"
            raise UserError(f"{expected}, got no batch in epoch {progress.epoch + 1}.")
        rows = plan[progress.position : progress.position + config.accumulate]
        number = progress.step + 1
        sums, count = add_gradients(
            self.replica,
            self.batches,
            rows,
            epoch=progress.epoch,
            step=number,
            seed=self.seed,
            precision=self.precision,
        )
        # The norm before clipping.
        norm = clip_grad_norm_(self.model.parameters(), config.clip or math.inf)
        norm = norm.full_tensor() if is_sharded(norm) else norm
        self.unread.append(_Sums(number, progress.epoch, rows, sums, norm, count))
        is_line = number % config.log_every == 0
        if is_line or is_measuring or len(self.unread) >= self.max_unread:
            self.read_sums()
        clock = self.clock() if self.world.is_main else 0.0
        stop_requests, seconds = self.world.sum([float(self.interruption.is_requested), clock])
        lr = learning_rate(config, progress, batches=len(plan))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr * group["scale"]
            optimizer.step()
            optimizer.zero_grad()
        if self.average:
            self.average.update(number)
        if is_measuring:
            self.step_seconds.append(seconds - progress.seconds)
        progress.advance(config, used=len(rows), batches=len(plan), count=count, seconds=seconds)
        self.stopping = stop_requests > 0
        self.log.record_step(
            progress,
            lr=lr,
            norm=self.norm,
            fraction=progress.completed_fraction(config, batches=len(plan)),
            count=count if self.unit == "tokens" else sum(map(len, rows)),
            seconds=time.monotonic() - start,
            is_line=is_line,
        )
        if is_line:
            progress.log_sums = [0.0, 0.0, 0.0]

    def read_sums(self) -> None:
        """Read the sums of the steps since the last read; raise Diverged for the first that is not
        finite. An accelerator finishes its queue, so it has steps read together: one that is not
        finite may have changed the weights, which are not saved before they are read.
        """
        for step in self.unread:
            losses, nlls = zip(*step.values.tolist(), strict=True)
            *totals, nll = self.world.sum([*losses, sum(nlls)])
            self.norm = float(step.norm)
            if not all(map(math.isfinite, [*totals, self.norm])):
                pairs = zip(step.rows, totals, strict=True)
                bad = [group for group, total in pairs if not math.isfinite(total)]
                value = f"loss is {sum(totals)}" if bad else f"gradient's norm is {self.norm}"
                indices = sorted(chain(*(bad or step.rows)))
                self.stop("at", step.number, step.epoch, f"the {value}", indices)
            sums = zip(self.progress.log_sums, (sum(totals), nll, step.count), strict=True)
            self.progress.log_sums = [before + value for before, value in sums]
        self.unread.clear()

    def stop(
        self, when: str, step: int, epoch: int, what: str, indices: Sequence[int] = ()
    ) -> NoReturn:
        """Raise Diverged, after a line in the log; checkpoints stay. indices: rows of the batch."""
        values = {"failed_step": step, "indices": list(indices), "what": what}
        self.log.record("diverged", self.progress, values)
        if indices:
            first, log = ", ".join(map(str, indices[:10])), self.folder / "log.jsonl"
            what += f". The rows of the batch are {first} (all {len(indices)} in {log})"
        raise Diverged(
            f"training stopped {when} step {step} of epoch {epoch + 1}: {what}. "
            f"{self.divergence_advice()}"
        )

    def divergence_advice(self) -> str:
        """Return the last good checkpoint and settings that may help, for an error message."""
        checkpoint = f"The last good checkpoint is of step {self.saved[0]}; in another run folder a"
        start = checkpoint if self.saved[0] else "There is no checkpoint yet. A"
        return f"{start} lower lr, longer warmup, larger eps or smaller clip may help."

    def check_finite(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise Diverged for weights that are not finite, before they are saved.

        The loss of a step is that of the weights before it, so it does not show this.
        """
        bad = find_nonfinite(self.model, tensors) if self.world.is_main else None
        if bad := self.world.broadcast(bad):
            self.stop("after", self.progress.step, self.progress.epoch, bad)

    def validate(self) -> None:
        """Validate the weights or their moving average, save a snapshot, write a checkpoint."""
        progress, log, config = self.progress, self.log, self.config
        self.read_sums()
        log.show_status("validating")
        weights = self.average.weights() if self.average else tensors_of(self.model)
        weights = self.replica.gather(weights)
        if config.lora is not None:
            weights = merged_tensors(weights)
        self.check_finite(weights)
        is_other = self.average or self.replica.is_sharded or config.lora
        metrics = self.measure(weights if is_other else None)
        progress.seconds = self.world.broadcast(self.clock())
        if metrics is None:
            self.stopping = True
            return
        is_best = progress.record_validation(
            metrics, metric=self.metric, maximize=self.maximize, window=max(config.average, 1)
        )
        log.record("validation", progress, metrics)
        log.note(f"step {progress.step}  {_format_metrics(metrics)}{'  (best)' if is_best else ''}")
        if self.world.is_main:
            path = self.store.snapshot_path(progress.step)
            path.parent.mkdir(exist_ok=True)
            write_tensors(path, weights, ties=self.ties)
        self.save()
        if self.world.is_main and is_best:
            self.store.publish(progress.step)

    def measure(self, weights: Mapping[str, Tensor] | None) -> dict[str, float] | None:
        """Return the metrics of the model's weights, or of `weights`; None if interrupted.

        The main process validates, the others wait for its result.
        """
        metrics = None
        if self.world.is_main:
            with (
                suppress(Interrupted),
                self.replica.evaluation_model(weights) as model,
                self.interruption.interruptible(),
            ):
                metrics = {name: float(value) for name, value in self.validation(model).items()}
        metrics = self.world.broadcast(metrics)
        if metrics is not None and self.metric not in metrics:
            given = ", ".join(metrics) or "none"
            raise ValueError(f"validate must return the metric {self.metric}, got {given}.")
        return metrics

    def save(self) -> None:
        self.read_sums()
        files = {"model": tensors_of(self.model)}
        files["optimizer"] = optimizer_tensors(self.optimizers, self.model)
        if self.average:
            files["ema"] = self.average.tensors
        whole = {name: self.replica.gather(tensors) for name, tensors in files.items()}
        self.check_finite(whole["model"])
        if self.world.is_main:
            size = self.log.size()
            state = State(
                progress=self.progress,
                settings=self.settings,
                log_bytes=size,
                device=self.world.device.type,
            )
            self.store.save(state, whole, ties=self.ties)
        self.saved = (self.progress.step, self.progress.seconds)

    def resume(self, folder: Path, state: State) -> tuple[Progress, int]:
        """Load a checkpoint, and return its progress and the length of its log."""
        check_settings(folder, state, self.settings)
        # The path as seen by this process, which may differ from that of the main process.
        folder = self.folder / "checkpoints" / folder.name
        load_tensors(self.model, read_tensors(folder / "model.safetensors"), origin=str(folder))
        tensors = read_tensors(folder / "optimizer.safetensors")
        load_optimizer_tensors(self.optimizers, self.model, tensors)
        if self.average:
            self.average.load(read_tensors(folder / "ema.safetensors"))
        self.world.broadcast(None)  # nothing is removed before all processes have loaded it
        self.world.run_on_main(lambda: self.store.accept(state))
        return state.progress, state.log_bytes

    def pause(self) -> Result:
        """Stop the run so that it can be resumed."""
        progress = self.progress
        if self.saved[0] != progress.step:
            self.save()
        self.log.note(f"Stopped after step {progress.step}; saved. Run the same command to resume.")
        selected = self.best_kind if progress.best_step else "none"
        reason = "interrupted" if self.is_stopping() else "paused"
        return self.result(reason, selected, progress.best)

    def finish(self, limit: str) -> Result | None:
        """Select the final weights; return None if a signal interrupts that."""
        progress, selected, metrics, mean = self.progress, "none", {}, {}
        paths = [self.store.snapshot_path(step) for step in progress.recent_validations]
        if progress.best_step:
            selected, metrics = self.best_kind, progress.best
        if len(paths) > 1 and self.config.average > 1:
            self.log.show_status("validating the average")
            mean = average_weights(paths) if self.world.is_main else {}
            mean_metrics = self.measure(mean)
            if mean_metrics is None:
                return None
            self.log.note(
                f"average of the last {len(paths)} validations  {_format_metrics(mean_metrics)}"
            )
            if is_at_least(mean_metrics, metrics, metric=self.metric, maximize=self.maximize):
                selected, metrics = "average", mean_metrics
        if selected == "none":
            raise Diverged(
                f"training ended after step {progress.step}, but {self.metric} was NaN in every "
                f"validation, so no weights can be selected. {self.divergence_advice()}"
            )
        if self.world.is_main and selected == "average":
            write_tensors(self.weights, mean, ties=self.ties)
        elif self.world.is_main:
            self.store.publish(progress.best_step)
        self.world.broadcast(None)  # the other processes wait here until the file exists
        self.log.record("end", progress, {"stop_reason": limit, "selected": selected, **metrics})
        self.log.note(
            f"Done after step {progress.step} ({limit}); selected: {selected}  "
            f"{_format_metrics(metrics)}"
        )
        remove_adapters(self.model)
        load_tensors(self.model, read_tensors(self.weights), origin=str(self.weights))
        self.model.eval()
        return self.result(limit, selected, metrics)

    def result(self, stop_reason: str, selected: str, metrics: Mapping[str, float]) -> Result:
        return Result(
            stop_reason=stop_reason,
            selected=selected,
            metrics=dict(metrics),
            progress=deepcopy(self.progress),
        )

    def clock(self) -> float:
        """Return the training time in seconds, including that before the run was resumed."""
        return time.monotonic() - self.start_time


def _steps_per_read(device: torch.device) -> int:
    """Return the number of steps whose losses are read together, if no line of the log is due."""
    return 1 if device.type == "cpu" else 50


def _format_metrics(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
