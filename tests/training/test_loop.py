import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.overrides import TorchFunctionMode

from regard.errors import UserError
from regard.models.model import BatchLoss
from regard.training import loop
from regard.training.config import TrainConfig
from regard.training.loop import Diverged, Result
from regard.training.tensors import load_weights
from tests.training.toy import ToyBatch, ToyBatches, ToyModel, settings, train, validate


def log_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == kind]


def steps_in(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1].split(".")[0]) for path in folder.iterdir())


def validation_with(values: list[float]) -> Any:
    """Return a validation function that returns these values in turn, and then the last one."""
    remaining = list(values)
    return lambda model: {"nll": remaining.pop(0) if len(remaining) > 1 else remaining[0]}


def test_training_lowers_the_loss_and_returns_the_best_weights(tmp_path: Path) -> None:
    model = ToyModel(dropout=0.1)
    before = validate(model.eval())["nll"]
    result = train(tmp_path, settings(steps=60, validate_every=20), model=model)
    assert result.stop_reason == "steps"
    assert result.progress.step == 60
    assert result.metrics["nll"] < 0.6 * before
    assert result.metrics == validate(model)
    loaded = ToyModel(seed=8).eval()
    load_weights(tmp_path / "model.safetensors", loaded)
    assert validate(loaded) == result.metrics


def test_same_seed_gives_same_weights_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        train(tmp_path / name, settings(), seed=seed)
    first, repeated, other = (load_file(tmp_path / name / "model.safetensors") for name in "abc")
    assert all(torch.equal(first[name], repeated[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_epochs_end_the_run_after_whole_passes(tmp_path: Path) -> None:
    # Nine batches an epoch, two a step: the fifth step of each has one only.
    batch_numbers: list[int] = []
    batches = ToyBatches(before_batch=batch_numbers.append)
    config = settings(steps=None, epochs=2, accumulate=2, validate_every=0)
    result = train(tmp_path, config, batches=batches)
    assert (result.stop_reason, result.progress.step, result.progress.epoch) == ("epochs", 10, 2)
    assert len(batch_numbers) == 18
    assert [line["step"] for line in log_of(tmp_path, "validation")] == [5, 10]


def test_minutes_end_the_run_and_count_over_resumed_parts(tmp_path: Path) -> None:
    config = settings(steps=None, minutes=1 / 600, schedule="linear")
    first = train(tmp_path, config)
    assert first.stop_reason == "minutes"
    assert first.progress.seconds >= 0.1
    assert first.progress.step >= 1
    resumed = train(tmp_path, config)
    assert resumed.progress.step == first.progress.step
    longer = dataclasses.replace(config, minutes=first.progress.seconds / 60 + 1 / 600)
    assert train(tmp_path, longer).progress.step > first.progress.step
    rates = [line["lr"] for line in log_of(tmp_path, "train")]
    assert len(rates) < 4 or rates[-1] < max(rates)


class Clock:
    """Clock of the loop that counts `step` seconds for a batch, thrice for the first 5 batches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now, self.step = 0.0, 1.0
        monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: self.now))

    def count(self, batch: int) -> None:
        self.now += 3 * self.step if batch <= 5 else self.step

    def validate(self, model: nn.Module) -> dict[str, float]:
        self.now += 2.0
        return validate(model)

    def train(self, folder: Path, config: TrainConfig, *, stop: int = 0) -> Result:
        """Train, or stop as by a crash at a batch."""

        def before_batch(number: int) -> None:
            assert number != stop, "crash"
            self.count(number)

        batches = ToyBatches(before_batch=before_batch)
        return train(folder, config, batches=batches, validate=self.validate)


PLANNED = settings(
    **{"steps": 1000, "minutes": 4.0, "warmup": 100, "schedule": "cosine", "validate_every": 50},
    **{"average": 2, "log_every": 1},
)
"""A tenth of the 240 s is over after 15 s in the first 5 steps, and 9 s in 9 more."""


@pytest.fixture(scope="module")
def planned_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result, float]:
    """Return a run whose minutes are planned, its result, and the time at its end."""
    folder = tmp_path_factory.mktemp("planned")
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        return folder, clock.train(folder, PLANNED), clock.now


def test_schedule_and_warmup_fit_the_minutes(planned_run: tuple[Path, Result, float]) -> None:
    folder, result, seconds = planned_run
    assert 14 + int(0.95 * (240 - 24)) == 219
    assert (result.stop_reason, result.progress.step) == ("minutes", 219)
    assert 230 < seconds <= 240 + 2  # the average is validated
    [line] = log_of(folder, "schedule")
    assert (line["step"], line["planned_steps"], line["warmup_steps"]) == (14, 219, 14 + 22)
    assert line["step_seconds"] == 1
    assert [line["step"] for line in log_of(folder, "validation")] == [50, 100, 150, 200, 219]
    rates = [line["lr"] / 0.02 for line in log_of(folder, "train")]
    assert rates[13] == pytest.approx(0.14)
    assert rates[24] == pytest.approx((0.14 + 1) / 2)  # half of the way to the peak
    assert rates[35] == pytest.approx(1)
    assert max(rates) == 1
    assert rates[-1] < 1e-3


@pytest.mark.parametrize("stop", [20, 120])
def test_resumed_run_has_the_planned_schedule_bit_for_bit(
    planned_run: tuple[Path, Result, float],
    stop: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    with pytest.raises(AssertionError, match="crash"):
        clock.train(tmp_path, PLANNED, stop=stop)
    clock.step = 0.3  # a faster machine
    assert clock.train(tmp_path, PLANNED).progress.step == 219
    first, resumed = (load_file(path / "model.safetensors") for path in (planned_run[0], tmp_path))
    assert all(torch.equal(first[name], resumed[name]) for name in first)
    rates = [[line["lr"] for line in log_of(path, "train")] for path in (planned_run[0], tmp_path)]
    assert rates[0] == rates[1]


def test_run_that_becomes_slower_ends_in_time_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    with pytest.raises(AssertionError, match="crash"):
        clock.train(tmp_path, PLANNED, stop=60)
    clock.step = 2.0
    result = clock.train(tmp_path, PLANNED)
    assert result.stop_reason == "minutes"
    assert 240 <= clock.now <= 240 + 2 + 2 + 2 + 10
    text, end = " ".join(capsys.readouterr().err.split()), result.progress.step
    plan = "--train.minutes 4: 219 steps of 1 s; --train.warmup 100 does not fit: 22 steps"
    assert plan in text
    assert f"--train.minutes 4: the time is up after step {end} of 219, at " in text
    longer = dataclasses.replace(PLANNED, minutes=10.0)
    assert clock.train(tmp_path, longer).progress.step > 240
    assert [line["step"] for line in log_of(tmp_path, "schedule")] == [14, end + 10]


def test_warmup_fits_the_epochs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"epochs": 4, "accumulate": 2, "warmup": 400, "log_every": 1, "validate_every": 0}
    result = train(tmp_path, settings(**options, steps=1000, schedule="linear"))
    assert (result.stop_reason, result.progress.step) == ("epochs", 20)
    text = " ".join(capsys.readouterr().err.split())
    assert "--train.epochs 4: 20 steps; --train.warmup 400 does not fit: 5 steps" in text
    rates = [line["lr"] / 0.02 for line in log_of(tmp_path, "train")]
    assert rates[:6] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1])
    assert rates[-1] < 0.1


def test_patience_ends_the_run_after_validations_without_a_new_best(tmp_path: Path) -> None:
    measure = validation_with([5.0, 4.0, 4.0, float("nan"), 4.5, 1.0])
    result = train(tmp_path, settings(steps=None, patience=3, validate_every=2), validate=measure)
    assert (result.stop_reason, result.progress.step) == ("patience", 10)
    assert (result.progress.best_step, result.metrics) == (6, {"nll": 4.0})


def test_larger_is_better_with_maximize(tmp_path: Path) -> None:
    measure = validation_with([1.0, 3.0, 2.0])
    result = train(tmp_path, settings(steps=6, validate_every=2), validate=measure, maximize=True)
    assert (result.progress.best_step, result.metrics) == (4, {"nll": 3.0})


def test_weights_of_the_best_validation_are_selected(tmp_path: Path) -> None:
    validated: list[torch.Tensor] = []
    measure = validation_with([3.0, 1.0, 2.0, 2.0])

    def watch(model: nn.Module) -> dict[str, float]:
        validated.append(model.state_dict()["embed.weight"].clone())
        return measure(model)

    result = train(tmp_path, settings(steps=8, validate_every=2, keep=1), validate=watch)
    assert result.selected == "best"
    assert torch.equal(load_file(tmp_path / "model.safetensors")["embed.weight"], validated[1])
    assert steps_in(tmp_path / "checkpoints") == [8]
    assert steps_in(tmp_path / "snapshots") == [4, 8]


@pytest.mark.parametrize(("last", "selected"), [(1.0, "average"), (2.0, "average"), (2.5, "best")])
def test_average_of_the_last_weights_is_selected_unless_worse(
    tmp_path: Path, last: float, selected: str
) -> None:
    validated: list[torch.Tensor] = []
    measure = validation_with([4.0, 3.0, 2.0, 5.0, last])

    def watch(model: nn.Module) -> dict[str, float]:
        validated.append(model.state_dict()["layers.1.weight"].clone())
        return measure(model)

    model = ToyModel()
    result = train(
        tmp_path, settings(steps=8, validate_every=2, average=3), model=model, validate=watch
    )
    assert len(validated) == 5
    torch.testing.assert_close(validated[4], (validated[1] + validated[2] + validated[3]) / 3)
    assert result.selected == selected
    assert result.metrics == {"nll": last if selected == "average" else 2.0}
    expected = validated[4] if selected == "average" else validated[2]
    assert torch.equal(load_file(tmp_path / "model.safetensors")["layers.1.weight"], expected)
    assert torch.equal(model.layers[1].weight, expected)


@pytest.mark.parametrize(("nll", "selected"), [(3.0, "average"), (4.0, "average"), (4.5, "best")])
def test_average_with_the_score_of_the_best_weights_is_selected_unless_its_loss_is_higher(
    tmp_path: Path, nll: float, selected: str
) -> None:
    losses = iter([5.0, 4.0, nll])
    config, measure = (
        settings(steps=4, validate_every=2, average=2),
        lambda _: {"bleu": 10.0, "nll": next(losses)},
    )
    result = train(tmp_path, config, metric="bleu", maximize=True, validate=measure)
    assert result.selected == selected
    assert result.metrics == {"bleu": 10.0, "nll": min(nll, 4.0)}


def test_moving_average_is_validated_and_selected(tmp_path: Path) -> None:
    raw: list[torch.Tensor] = []

    class Watched(ToyModel):
        def loss(self, batch: ToyBatch) -> BatchLoss:
            if self.training:
                raw.append(self.layers[0].weight.detach().clone())
            return super().loss(batch)

    model = Watched()
    result = train(tmp_path, settings(steps=3, validate_every=3, ema=0.3), model=model)
    last = load_file(tmp_path / "checkpoints/step-00000003/model.safetensors")["layers.0.weight"]
    average = raw[0]
    # The decays are 2/11, 3/12 and 0.3 (below 4/13).
    for weights, decay in zip([*raw[1:], last], [2 / 11, 3 / 12, 0.3], strict=True):
        average = decay * average + (1 - decay) * weights
    assert result.selected == "ema"
    torch.testing.assert_close(
        load_file(tmp_path / "model.safetensors")["layers.0.weight"], average
    )
    assert result.metrics == validate(model)


def test_validation_does_not_change_training(tmp_path: Path) -> None:
    weights = []
    for every in (1, 99):
        train(tmp_path / str(every), settings(validate_every=every, ema=0.9))
        path = tmp_path / str(every) / "checkpoints/step-00000010/model.safetensors"
        weights.append(load_file(path))
    often, never = weights
    assert all(torch.equal(often[name], never[name]) for name in often)


def test_unclipped_gradient_takes_a_longer_step(tmp_path: Path) -> None:
    for name, clip in (("free", 0.0), ("short", 0.01)):
        train(tmp_path / name, settings(steps=2, clip=clip, log_every=1, eps=1.0))
    free, short = (log_of(tmp_path / name, "train") for name in ("free", "short"))
    assert free[0]["grad_norm"] == short[0]["grad_norm"] > 1
    start = ToyModel().embed.weight
    distances = [
        (load_file(tmp_path / name / "model.safetensors")["embed.weight"] - start).norm()
        for name in ("free", "short")
    ]
    assert distances[0] > 10 * distances[1]


class NanLossModel(ToyModel):
    """Model whose loss is NaN for row 12."""

    def loss(self, batch: ToyBatch) -> BatchLoss:
        loss = super().loss(batch)
        if self.training and 12 in batch.indices:
            return loss._replace(total=loss.total * math.nan)
        return loss


def test_nan_loss_stops_the_run_before_the_weights_change(tmp_path: Path) -> None:
    plan = ToyBatches().plan(0)
    at = next(number for number, rows in enumerate(plan) if 12 in rows)
    rows = ", ".join(map(str, sorted(plan[at])))
    config = settings(steps=50, checkpoint_every=1, accumulate=2)
    message = rf"step {at // 2 + 1} of epoch 1: the loss is nan\. The rows .* are {rows} \("
    with pytest.raises(Diverged, match=message):
        train(tmp_path, config, model=NanLossModel())
    assert steps_in(tmp_path / "checkpoints")[-1] == at // 2
    for path in tmp_path.rglob("*.safetensors"):
        assert all(value.isfinite().all() for value in load_file(path).values())
    assert log_of(tmp_path, "diverged")[0]["indices"] == sorted(plan[at])


@pytest.mark.parametrize("max_unread", [1, 3, 50])
def test_sums_are_read_for_lines_and_checkpoints_alone_on_an_accelerator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_unread: int
) -> None:
    class Reads(TorchFunctionMode):
        """Count of the steps whose numbers a program waits for."""

        def __torch_function__(self, function, types, args=(), kwargs=None):
            reads = torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.__float__
            counts[-1] += function in reads
            return function(*args, **kwargs or {})

    class Counted(ToyModel):
        def count(self, batch: ToyBatch) -> int:
            return sum(2 + index % 5 for index in batch.indices)

    class Watched(ToyBatches):
        def collate(self, epoch: int, indices: tuple[int, ...]) -> ToyBatch:
            counts.append(0)
            return super().collate(epoch, indices)

    counts = [0]
    config = settings(steps=12, log_every=5, validate_every=12, checkpoint_every=8)
    train(tmp_path / "cpu", config, model=Counted())
    monkeypatch.setattr(loop, "_steps_per_read", lambda device: max_unread)
    with Reads():
        train(tmp_path / "other", config, model=Counted(), batches=Watched())
    due = {number for number in range(1, 12) if number % 5 == 0 or number == 8}
    unread = 0
    for number in range(1, 12):
        unread += 1
        is_read = number in due or unread == max_unread
        assert (counts[number] > 0) == is_read, number
        unread = 0 if is_read else unread
    timed = {"seconds", "tokens_per_s"}
    for kind in ("train", "validation", "end"):
        first, second = (
            [{k: v for k, v in line.items() if k not in timed} for line in log_of(f, kind)]
            for f in (tmp_path / "cpu", tmp_path / "other")
        )
        assert first == second
    first, second = (load_file(tmp_path / f / "model.safetensors") for f in ("cpu", "other"))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("steps", ["lines", "checkpoint", "validation", "limit", "full"])
def test_first_step_with_a_nan_loss_is_named_when_it_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: str
) -> None:
    plan = ToyBatches().plan(0)
    at = 1 + next(number for number, rows in enumerate(plan) if 12 in rows)
    changes = {
        "lines": {"log_every": at + 3},
        "checkpoint": {"checkpoint_every": at + 2},
        "validation": {"validate_every": at + 1},
        "limit": {"steps": at + 2},
        "full": {},
    }[steps]
    plain = {"steps": 50, "log_every": 100, "validate_every": 100, "checkpoint_every": at - 1}
    monkeypatch.setattr(loop, "_steps_per_read", lambda device: 6 if steps == "full" else 99)
    with pytest.raises(Diverged, match=rf"at step {at} of epoch 1: the loss is nan"):
        train(tmp_path, settings(**plain | changes), model=NanLossModel())
    assert log_of(tmp_path, "diverged")[0]["failed_step"] == at
    assert log_of(tmp_path, "diverged")[0]["indices"] == sorted(plan[at - 1])
    for path in tmp_path.rglob("*.safetensors"):
        assert all(value.isfinite().all() for value in load_file(path).values())


def test_nan_gradient_stops_the_run(tmp_path: Path) -> None:
    class Steep(ToyModel):
        def loss(self, batch: ToyBatch) -> BatchLoss:
            loss = super().loss(batch)
            return loss._replace(total=loss.total + (self.embed.weight.sum() * 0).sqrt())

    with pytest.raises(Diverged, match=r"the gradient's norm is nan.*There is no checkpoint yet"):
        train(tmp_path, settings(), model=Steep())


def test_metric_that_is_always_nan_selects_no_weights(tmp_path: Path) -> None:
    with pytest.raises(Diverged, match="nll was NaN in every validation"):
        train(tmp_path, settings(steps=4), validate=lambda model: {"nll": math.nan})
    assert not (tmp_path / "model.safetensors").exists()


def overwrite(weight: torch.Tensor, value: float) -> Callable[[torch.Tensor], None]:
    def hook(gradient: torch.Tensor) -> None:
        weight.data.fill_(value)

    return hook


@pytest.mark.parametrize(
    ("ema", "value", "name"), [(0.0, math.nan, "NaN"), (0.5, math.inf, "NaN|infinity")]
)
def test_weights_that_are_not_finite_are_never_saved(
    tmp_path: Path, ema: float, value: float, name: str
) -> None:
    class Broken(ToyModel):
        """Model with a weight that the last step overwrites, after its loss was computed."""

        def loss(self, batch: ToyBatch) -> BatchLoss:
            loss = super().loss(batch)
            if self.training:
                self.steps = getattr(self, "steps", 0) + 1
                if self.steps == 4:
                    self.norm.bias.register_hook(overwrite(self.norm.bias, value))
            return loss

    with pytest.raises(Diverged, match=rf"after step 4 of epoch 1: norm\.bias holds ({name})"):
        train(tmp_path, settings(steps=4, validate_every=2, ema=ema), model=Broken())
    assert steps_in(tmp_path / "checkpoints") == [2]
    for path in tmp_path.rglob("*.safetensors"):
        assert all(tensor.isfinite().all() for tensor in load_file(path).values())


def test_resumed_run_with_other_settings_is_refused_with_their_names(tmp_path: Path) -> None:
    task = {"data": {"path": "a.tsv", "sizes": [3, 4]}, "model": {"layers": 2}}
    train(tmp_path, settings(steps=4), fingerprint=task)
    other = {"data": {"path": "b.tsv", "sizes": (3, 4)}, "extra": 1}
    with pytest.raises(UserError, match="other settings") as error:
        train(tmp_path, settings(steps=4, lr=0.5), seed=6, fingerprint=other)
    message = str(error.value)
    for part in ("data.path was 'a.tsv', is 'b.tsv'", "model was {'layers': 2}, is None"):
        assert part in message
    for part in ("extra was None, is 1", "seed was 5, is 6", "train.lr was 0.02, is 0.5"):
        assert part in message
    assert "sizes" not in message
    longer = settings(steps=5, patience=2, keep=7)
    assert train(tmp_path, longer, fingerprint=task).progress.step == 5


def test_log_of_a_resumed_run_equals_that_of_one_run(tmp_path: Path) -> None:
    config = settings(steps=12, validate_every=6, log_every=3, tensorboard=True)

    class Stopped(Exception):  # noqa: N818
        pass

    def stop(number: int) -> None:
        if number == 11:
            raise Stopped

    with pytest.raises(Stopped):
        train(tmp_path, config, batches=ToyBatches(before_batch=stop))
    assert [line["step"] for line in log_of(tmp_path, "train")] == [3, 6, 9]
    with (tmp_path / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"kind": "tr')
    train(tmp_path, config)
    train(tmp_path / "whole", config)
    timed = {"seconds", "tokens_per_s"}
    for kind, count in (("train", 4), ("validation", 2), ("end", 1)):
        lines = [
            [{k: v for k, v in line.items() if k not in timed} for line in log_of(f, kind)]
            for f in (tmp_path, tmp_path / "whole")
        ]
        assert lines[0] == lines[1]
        assert len(lines[0]) == count
    assert list((tmp_path / "tb").glob("events.out.tfevents.*"))


def test_finished_run_started_again_ends_the_same_without_training(tmp_path: Path) -> None:
    config = settings(average=2)
    first = train(tmp_path, config)
    batches = ToyBatches()
    repeated = train(tmp_path, config, batches=batches)
    assert batches.number == 0
    assert (repeated.selected, repeated.metrics) == (first.selected, first.metrics)
    assert repeated.progress.step == first.progress.step


def test_metrics_without_the_deciding_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"validate must return the metric bleu, got nll, share\."):
        train(tmp_path, settings(steps=1), metric="bleu")


def test_data_without_batches_are_refused(tmp_path: Path) -> None:
    class Empty(ToyBatches):
        def plan(self, epoch: int) -> list[tuple[int, ...]]:
            return []

    with pytest.raises(ValueError, match=r"no batch in epoch 1"):
        train(tmp_path, settings(), batches=Empty())
