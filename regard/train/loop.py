"""The training loop: step, look, save, until a limit is reached.

Killed at any moment and started again, a run ends with the same weights, bit for bit on a CPU, as if it had
never stopped: the order of the data and all chance are pure functions of seed, epoch and step, and a
checkpoint holds the rest. (Not where the clock decides: a limit in minutes, a schedule with no other end.)
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from regard.errors import UserError
from regard.run_files import check_no_link, claim_folder
from regard.train.average import MovingAverage
from regard.train.checkpoint import CheckpointError, Saved, Store
from regard.train.config import TrainConfig
from regard.train.contracts import Batches
from regard.train.directory import RunDirectory, held
from regard.train.distribution import Replica, joined
from regard.train.fingerprint import check_settings
from regard.train.interrupt import caught
from regard.train.log import Log
from regard.train.optimizer import build_optimizer, load_moments, moments
from regard.train.progress import Progress
from regard.train.schedule import learning_rate
from regard.train.step import add_gradients
from regard.train.tensor_file import read_tensors, write_tensors
from regard.train.validation import Validation
from regard.train.weights import fill, not_finite, tensors_of, ties_of


class Diverged(UserError):  # noqa: N818  # it says what happened
    """The loss, its gradient or a weight is no finite number; the message names the step, and the rows or weight."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended."""

    stopped: str
    """Why: steps, epochs, minutes, patience, or interrupted (by a signal: the same command goes on)."""
    chosen: str
    """Which weights model.safetensors holds: best, ema (the best ones, of the moving average), average, none."""
    metrics: dict[str, float]
    """What the validation of these weights measured."""
    progress: Progress
    """How far the run came: step, epoch, tokens, seconds, best_step."""
    weights: Path
    """The file model.safetensors."""

    @property
    def is_interrupted(self) -> bool:
        """Whether a signal stopped the run; a command then exits with 130."""
        return self.stopped == "interrupted"


def fit(
    model: nn.Module,
    batches: Batches,
    *,
    config: TrainConfig,
    folder: Path | RunDirectory,
    seed: int,
    validate: Callable[[nn.Module], Mapping[str, float]],
    metric: str,
    maximize: bool,
    fingerprint: Mapping[str, Any] | None = None,
) -> Result:
    """Train `model`, or go on where an earlier call for the same folder stopped; the chosen weights end in
    it.

    model        has loss(batch) and count(batch), see contracts.py; for FSDP also blocks(), the modules that
                 its loss calls one after the other. It is moved to the device that config names.
    folder       gets model.safetensors (the best weights so far, in the end the chosen ones), checkpoints/,
                 snapshots/, log.jsonl and tb/. All processes must see it, one at a time trains in it. A RunDirectory
                 is one that the caller holds.
    validate     measures a model in eval mode, without gradients; called on the main process only.
    metric       the entry of its result that decides; larger is better if `maximize`.
    fingerprint  the settings of the rest of the run, as JSON, which a resumed run must share. Its entries
                 "seed" and "train" are replaced by `seed` and what in `config` decides the weights.

    The mean of the last validations' weights is chosen if it scores at least as well as the best, else the
    best.

    Raises:  Diverged if the loss is NaN or infinite; CheckpointError if a checkpoint is damaged, newer than
             this program, or of a run with other settings; DirectoryChangedError, after a save, if `folder` has
             become the name of another directory; UserError if the device or a batch is unusable, another process
             trains in the folder, or a file of the run is a symbolic link.
    """
    settings = {**(fingerprint or {}), "seed": seed, "train": config.decisive()}
    with joined(config.device) as world, caught() as interruption, ExitStack() as stack:
        directory = world.on_main(lambda: _opened(folder, stack))
        replica = Replica(model, world, shard=config.shard, compiled=config.compile)
        validation = Validation(validate, metric=metric, maximize=maximize, replica=replica, interruption=interruption)
        run = _Run(
            replica, validation, batches=batches, config=config, directory=directory, seed=seed, settings=settings
        )
        with run.log:
            return run.until_stopped()


class _Run:
    """One call of fit: a model in training, where it stands, and its folder."""

    def __init__(
        self,
        replica: Replica,
        validation: Validation,
        *,
        batches: Batches,
        config: TrainConfig,
        directory: RunDirectory,
        seed: int,
        settings: dict[str, Any],
    ):
        self.replica, self.validation, self.batches = replica, validation, batches
        self.config, self.directory, self.seed, self.settings = config, directory, seed, settings
        self.world, self.model = replica.world, replica.model.train()
        self.interruption, self.stopping = validation.interruption, False
        self.ties = ties_of(self.model)
        self.optimizer = build_optimizer(self.model, config)
        self.average = MovingAverage(self.model, decay=config.ema) if config.ema else None
        self.store = Store(directory, keep=config.keep)
        self.epoch_plan: tuple[int, Sequence[tuple[int, ...]]] = (-1, ())
        self.progress, log_bytes = self.resume()
        self.saved = (self.progress.step, self.progress.seconds)
        self.began = time.monotonic() - self.progress.seconds
        writes = {"speaks": self.world.is_main, "tensorboard": config.tensorboard}
        self.log = Log(directory.path, step=self.progress.step, log_bytes=log_bytes, **writes)

    @property
    def weights(self) -> Path:
        """The file of the chosen weights."""
        return self.directory.path / "model.safetensors"

    def check_directory(self) -> None:
        """Stop after a save if the run's directory has lost its name: what is found under it next is not this run."""
        step = self.saved[0]
        saved = f"it holds this training as saved after step {step}" if step else "nothing was to be saved yet"
        self.world.on_main(lambda: self.directory.check(saved))

    def until_stopped(self) -> Result:
        """The loop."""
        progress, config = self.progress, self.config
        if progress.step:
            self.log.note(f"Going on after step {progress.step}, in epoch {progress.epoch + 1}.")
        while True:
            if progress.is_validation_due(config):
                self.look()
                self.check_directory()
            elif self.is_checkpoint_due():
                self.save()
                self.check_directory()
            limit = progress.limit(config)
            if limit or self.is_stopping():
                break
            self.step()
        if limit and progress.validated != progress.step and not self.is_stopping():
            self.look()
        finished = None if self.is_stopping() or not limit else self.finish(limit)
        return finished or self.pause()

    def is_stopping(self) -> bool:
        """Whether a signal has asked this process to stop or, with several, all have agreed that one was."""
        return self.stopping or (self.world.size == 1 and self.interruption.is_asked)

    def step(self) -> None:
        """One update of the weights."""
        progress, config = self.progress, self.config
        begun = time.monotonic()
        plan = self.plan()
        rows = plan[progress.position : progress.position + config.accumulate]
        number, done = progress.step + 1, progress.done(config, batches=len(plan))
        place = {"epoch": progress.epoch, "step": number, "seed": self.seed}
        sums = add_gradients(self.replica, self.batches, rows, precision=config.precision, **place)
        clock = self.clock() if self.world.is_main else 0.0
        news = self.world.sum([*sums.totals, sums.nll, float(self.interruption.is_asked), clock])
        *totals, nll, asked, seconds = news
        norm = self.clip()
        if not all(map(math.isfinite, [*totals, norm])):
            self.stop_diverged(rows, totals, norm)
        lr = learning_rate(config, step=number, done=done, warm_at=progress.warm_at)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average:
            self.average.update(number)
        progress.advance(config, used=len(rows), batches=len(plan))
        progress.seconds, progress.tokens = seconds, progress.tokens + sums.count
        self.stopping = asked > 0
        new = (sum(totals), nll, sums.count)
        progress.unlogged = [before + value for before, value in zip(progress.unlogged, new, strict=True)]
        share = max(progress.shares(config, batches=len(plan)).values(), default=0.0)
        is_line = number % config.log_every == 0
        spent = {"tokens": sums.count, "seconds": time.monotonic() - begun}
        self.log.trained(progress, lr=lr, norm=norm, share=share, is_line=is_line, **spent)
        if is_line:
            progress.unlogged = [0.0, 0.0, 0.0]

    def plan(self) -> Sequence[tuple[int, ...]]:
        """The rows of each batch of the present epoch."""
        epoch = self.progress.epoch
        if self.epoch_plan[0] != epoch:
            self.epoch_plan = (epoch, self.batches.plan(epoch))
        if not self.epoch_plan[1]:
            raise UserError(f"the training data give no batch in epoch {epoch + 1}.")
        return self.epoch_plan[1]

    def clip(self) -> float:
        """The norm of the gradient; a longer one than config.clip is scaled down to it."""
        weights = [value for value in self.model.parameters() if value.grad is not None]
        norm = get_total_norm([value.grad for value in weights if value.grad is not None])
        if self.config.clip:
            clip_grads_with_norm_(weights, self.config.clip, norm)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def stop_diverged(self, rows: Sequence[tuple[int, ...]], totals: Sequence[float], norm: float) -> NoReturn:
        """Refuse a step whose loss or gradient is no number; the checkpoints stay as they are."""
        bad = [group for group, total in zip(rows, totals, strict=True) if not math.isfinite(total)] or rows
        indices = sorted(index for group in bad for index in group)
        what = f"the loss is {sum(totals)}" if bad is not rows else f"the gradient's norm is {norm}"
        step, epoch = self.progress.step + 1, self.progress.epoch + 1
        self.log.record("diverged", self.progress, {"failed_step": step, "indices": indices, "what": what})
        shown = ", ".join(map(str, indices[:10])) + (f" ... ({len(indices)} in all)" if len(indices) > 10 else "")
        raise Diverged(
            f"training stopped at step {step} of epoch {epoch}: {what}. The rows of the batch are {shown} "
            f"(all of them in {self.directory.path / 'log.jsonl'}). {self.last_good()}"
        )

    def last_good(self) -> str:
        """What there is to go on from, and what may help."""
        there = f"The last good checkpoint is of step {self.saved[0]}; in another run folder a"
        begin = there if self.saved[0] else "There is no checkpoint yet. A"
        return f"{begin} lower lr, longer warmup, larger eps or smaller clip may help."

    def check_finite(self, tensors: Mapping[str, Tensor]) -> None:
        """Refuse weights that are no numbers, before they are kept: a step may make them so unseen, its loss being of
        the weights before."""
        if bad := self.world.share(not_finite(self.model, tensors) if self.world.is_main else None):
            self.log.record("diverged", self.progress, {"failed_step": self.progress.step, "what": bad})
            raise Diverged(
                f"training stopped after step {self.progress.step} of epoch {self.progress.epoch + 1}: {bad}. "
                f"{self.last_good()}"
            )

    def look(self) -> None:
        """Validate the weights, or their moving average; keep them while they may be needed; save."""
        progress, log = self.progress, self.log
        log.busy("validating")
        weights = self.replica.whole(self.average.weights() if self.average else tensors_of(self.model))
        self.check_finite(weights)
        metrics = self.validation.of(weights if self.average or self.replica.is_sharded else None)
        progress.seconds = self.world.share(self.clock())
        if metrics is None:
            self.stopping = True
            return
        window = max(self.config.average, 1)
        validation = {"metric": self.validation.metric, "maximize": self.validation.maximize}
        is_best = progress.judge(metrics, window=window, **validation)
        log.record("validation", progress, metrics)
        log.note(f"step {progress.step}  {_told(metrics)}{'  (best)' if is_best else ''}")
        if self.world.is_main:
            self.store.keep_snapshot(progress.step, weights, ties=self.ties)
        self.save()
        if self.world.is_main and is_best:
            self.store.publish(progress.step)

    def is_checkpoint_due(self) -> bool:
        """Whether enough steps or time went by since the last checkpoint."""
        config, (step, seconds) = self.config, self.saved
        if step == self.progress.step:
            return False
        if config.checkpoint_every and self.progress.step % config.checkpoint_every == 0:
            return True
        return 0 < 60 * config.checkpoint_minutes <= self.progress.seconds - seconds

    def save(self) -> None:
        """Write a checkpoint."""
        files = {"model": tensors_of(self.model), "optimizer": moments(self.optimizer, self.model)}
        if self.average:
            files["ema"] = self.average.tensors
        whole = {name: self.replica.whole(tensors) for name, tensors in files.items()}
        self.check_finite(whole["model"])
        if self.world.is_main:
            rest = {"ties": self.ties, "settings": self.settings, "log_bytes": self.log.size()}
            self.store.save(self.progress, whole, **rest)
        self.saved = (self.progress.step, self.progress.seconds)

    def resume(self) -> tuple[Progress, int]:
        """Take up the last checkpoint: where the run stands and how long its log was."""

        def find() -> Saved | None:
            check_no_link(self.directory.path, self.weights.name)
            claim_folder(self.directory.path / "tb")
            self.store.clean()
            return self.store.latest()

        saved = self.world.on_main(find)
        if saved is None and self.world.on_main(self.weights.exists):
            raise CheckpointError(
                f"{self.weights} holds trained weights, but there is no checkpoint to go on from. To begin anew, use "
                "another run folder, or remove this file."
            )
        if saved is None:
            return Progress(), 0
        check_settings(saved, self.settings)
        # The path as this process sees it, which may differ from the main one's.
        saved = replace(saved, folder=self.directory.path / "checkpoints" / saved.folder.name)
        origin = str(saved.folder)
        fill(self.model, saved.tensors("model"), origin=origin)
        load_moments(self.optimizer, self.model, saved.tensors("optimizer"), origin=origin)
        if self.average:
            self.average.load(saved.tensors("ema"), origin=origin)
        self.world.share(None)  # nothing goes before all have loaded theirs
        self.world.on_main(lambda: self.store.accept(saved))
        return saved.progress, saved.log_bytes

    def pause(self) -> Result:
        """Leave the run so that it can go on."""
        progress = self.progress
        if self.saved[0] != progress.step:
            self.save()
        self.check_directory()
        self.log.note(f"Stopped after step {progress.step}; saved. The same command goes on from there.")
        return self.result("interrupted", self.best_kind() if progress.best_step else "none", progress.best)

    def finish(self, limit: str) -> Result | None:
        """Choose the weights to keep; None if a signal cut that off."""
        progress, chosen, metrics, mean = self.progress, "none", {}, {}
        paths = [self.store.snapshot(step) for step in progress.recent]
        if progress.best_step:
            chosen, metrics = self.best_kind(), progress.best
        if len(paths) > 1 and self.config.average > 1:
            self.log.busy("validating the average")
            mean, measured = self.validation.of_mean(paths)
            if measured is None:
                return None
            self.log.note(f"mean of the last {len(paths)}  {_told(measured)}")
            if self.validation.prefers(measured, to=metrics):
                chosen, metrics = "average", measured
        if chosen == "none":
            what = f"{self.validation.metric} was NaN in every validation, so no weights can be chosen"
            raise Diverged(f"training ended after step {progress.step}, but {what}. {self.last_good()}")
        if self.world.is_main and chosen == "average":
            self.directory.write(lambda root: write_tensors(root / self.weights.name, mean, ties=self.ties))
        elif self.world.is_main:
            self.store.publish(progress.best_step)
        self.check_directory()  # which makes the others wait until the file is there
        self.log.record("end", progress, {"stopped": limit, "chosen": chosen, **metrics})
        self.log.note(f"Done after step {progress.step} ({limit}); kept: {chosen}  {_told(metrics)}")
        fill(self.model, read_tensors(self.weights), origin=str(self.weights))
        self.model.eval()
        return self.result(limit, chosen, metrics)

    def result(self, stopped: str, chosen: str, metrics: Mapping[str, float]) -> Result:
        """What fit returns."""
        progress = Progress.from_json(asdict(self.progress))
        return Result(stopped=stopped, chosen=chosen, metrics=dict(metrics), progress=progress, weights=self.weights)

    def best_kind(self) -> str:
        """What the best validated weights are."""
        return "ema" if self.average else "best"

    def clock(self) -> float:
        """Seconds trained so far, over all resumed parts."""
        return time.monotonic() - self.began


def _opened(folder: Path | RunDirectory, stack: ExitStack) -> RunDirectory:
    """The run's directory, held until the stack ends."""
    if isinstance(folder, RunDirectory):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    return stack.enter_context(held(folder))


def _told(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
