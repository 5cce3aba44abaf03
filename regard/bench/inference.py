"""Inference speed of a trained run: one input at a time, and in batches.

    one at a time   latency (median and 95th percentile), decoding steps, rate at which parameters
    are read
    batched         answers per second, batched as the run does it

An autoregressive model reads all its parameters in each step, for one multiplication and one
addition each at batch size 1, so the bandwidth of the memory limits its speed. Of an embedding only
the rows looked up count.
"""

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.bench.profile import ENGINE, count_flops, mark, profile_calls
from regard.bench.timing import time_calls
from regard.compat.torch import TorchDispatchMode, tree_leaves
from regard.decode.config import DecodeConfig, SampleConfig
from regard.errors import UserError
from regard.recipes.base.run import Run
from regard.recipes.base.trained import TrainedRun
from regard.recipes.load import create_recipe

MANY = 64
"""Maximum number of inputs in a batch."""
_ONE_BY_ONE = 16
"""Number of inputs that are answered one at a time, in turn."""
_SAMPLED = 50
"""Maximum number of tokens to generate."""
_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
_MAX_SECONDS = 5.0
"""Time for reading inputs."""
_LOOK_UPS = ("aten::embedding", "aten::index_select", "aten::index.Tensor", "aten::gather")


@dataclass(frozen=True, kw_only=True)
class InferenceMode:
    """Decoding mode to measure, such as greedy or beam search."""

    name: str
    options: dict[str, Any]
    """Options of `predict`."""
    beam: int = 1
    """Beam size."""


def inference_modes(trained: TrainedRun) -> list[InferenceMode]:
    """Return greedy search and the run's own beam for a run that decodes, otherwise its only
    mode."""
    decode = getattr(trained.config, "decode", None)
    sampling = getattr(trained.config, "sample", None)
    if isinstance(decode, DecodeConfig):
        names = dict.fromkeys((1, decode.beam))
        return [
            InferenceMode(
                name="greedy" if beam == 1 else f"beam {beam}", options={"beam": beam}, beam=beam
            )
            for beam in names
        ]
    if isinstance(sampling, SampleConfig):
        length = min(_SAMPLED, sampling.length)
        return [InferenceMode(name=f"{length} new tokens", options={"length": length})]
    return [InferenceMode(name="answers", options={})]


def measure_mode(
    trained: TrainedRun,
    reference: TrainedRun,
    inputs: Sequence[Any],
    mode: InferenceMode,
    device: torch.device,
    *,
    seconds: float,
) -> dict[str, Any]:
    """Time a mode one input at a time, then batched.

    reference: the run with the torch engine. What it reads is counted: other engines take the same
               steps, possibly with smaller parameters.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `predict` reports unusual inputs
        calls, duration = _single_calls(trained, inputs, mode, device)
        # Counting is a few times slower than answering.
        calls = calls[: max(2, int(seconds / (4 * duration)))]
        counts = [
            count_reads(reference._model, partial(reference.predict, [item], **mode.options))
            for item in inputs[: len(calls)]
        ]
        times = time_calls(calls, seconds=seconds, device=device)
        batch = list(inputs[: max(2, min(MANY, int(2 * seconds / duration)))])
        answer = partial(trained.predict, batch, **mode.options)
        answer()
        batched_times = time_calls([answer], seconds=seconds, device=device, least=2)
    size = _BYTES.get(trained.engine.compute_type, 4) / 4
    single = {
        "inputs": len(calls),
        **times.to_dict(),
        "answers_per_second": times.rate([1] * len(calls)),
        "parameters_read_gb_s": times.rate([size * read for _, read in counts]) / 1e9,
    }
    if any(steps for steps, _ in counts):
        single["steps_per_answer"] = sum(steps for steps, _ in counts) / len(counts)
        single["steps_per_second"] = times.rate([steps for steps, _ in counts])
    batched = {
        "inputs": len(batch),
        **batched_times.to_dict(),
        "answers_per_second": batched_times.rate([len(batch)]),
    }
    return {"mode": mode.name, "beam": mode.beam, "single": single, "batched": batched}


def profile_mode(
    trained: TrainedRun,
    inputs: Sequence[Any],
    mode: InferenceMode,
    device: torch.device,
    *,
    seconds: float,
) -> dict[str, Any]:
    """Profile a mode one input at a time. The FLOPs of the torch engine are counted."""
    with warnings.catch_warnings(), _marked_engine(trained):
        warnings.simplefilter("ignore")
        calls, duration = _single_calls(trained, inputs, mode, device)
        calls = calls[: max(1, int(seconds / 4 / duration))]
        flops: Counter[str] = Counter()
        if trained.engine.name == "torch":
            with _without_gradients(trained._model):
                flops = sum((count_flops(call) for call in calls), flops)
        return {"mode": mode.name, **profile_calls(calls, device, flops=flops)}


def count_reads(model: nn.Module, call: Callable[[], object]) -> tuple[int, int]:
    """Return the number of calls of the model's `step`, and the bytes of parameters that operators
    read in a call.

    Views read nothing. Code outside torch operators is not counted.
    """
    count, step = 0, getattr(model, "step", None)

    def counting(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        return step(*args, **kwargs)  # pyrefly: ignore[not-callable]

    if step is not None:
        model.step = counting  # pyrefly: ignore[bad-argument-type]
    try:
        with torch.no_grad(), _Reads(model) as reads:
            call()
    finally:
        if step is not None:
            del model.step
    return count, reads.bytes


class _Reads(TorchDispatchMode):
    """Counter of the bytes of parameters that operators read; torch has none."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.bytes = 0
        self._weights = {
            value.untyped_storage().data_ptr() for value in model.parameters() if value.numel()
        }

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            is_look_up = func.name().startswith(_LOOK_UPS)
            for value in tree_leaves((args, kwargs or {})):
                if (
                    isinstance(value, Tensor)
                    and value.untyped_storage().data_ptr() in self._weights
                ):
                    # A view that repeats its elements reads no more than its storage.
                    self.bytes += (
                        out.nbytes
                        if is_look_up
                        else min(value.nbytes, value.untyped_storage().nbytes())
                    )
        return out


def find_inputs(
    trained: TrainedRun, inputs: Sequence[Any], *, most: int, notify: Callable[[str], None]
) -> tuple[list[Any], str]:
    """Return at most `most` inputs and their origin: given ones, or those of the run's test or
    validation data.

    Raises: UserError with the reason if there are none.
    """
    if inputs:
        return list(inputs[:most]), "given inputs"
    problems = []
    for name, run in (
        ("test data", trained.run),
        ("validation data", with_validation_as_test(trained.run)),
    ):
        if run is None:
            continue
        try:
            reader = trained
            if run is not trained.run:
                recipe = create_recipe(run, notify)
                recipe.open(Path(trained.folder))
                reader = TrainedRun(recipe, trained._model, trained.folder)
            return _read_inputs(reader, most), name
        except (ValueError, OSError) as error:
            problems.append(str(error))
    raise UserError("; ".join(dict.fromkeys(problems)))


def with_validation_as_test(run: Run) -> Run | None:
    """Return the run with its validation data in place of its test data; None if it has no
    validation data."""
    config: Any = run.config
    data = config.data
    names = {field.name for field in fields(data)}
    pairs = {
        f"test{name[3:]}": name
        for name in names
        if name.startswith("val") and f"test{name[3:]}" in names
    }
    if not getattr(data, "val", None):
        return None
    changed = {test: getattr(data, val) for test, val in pairs.items()}
    return replace(run, config=replace(config, data=replace(data, **changed)))


def _read_inputs(trained: TrainedRun, most: int) -> list[Any]:
    """Return the first inputs that are not empty, as many as can be read in a few seconds."""
    inputs: list[Any] = []
    end = time.monotonic() + _MAX_SECONDS
    for number in range(2 * most):
        try:
            item = trained.test_input(number)
        except UserError:
            if not number:
                raise
            break  # there are no more
        if not isinstance(item, str | list) or (item.strip() if isinstance(item, str) else item):
            inputs.append(item)
        if len(inputs) == most or time.monotonic() > end:
            break
    if not inputs:
        raise UserError("all inputs are empty")
    return inputs


def _single_calls(
    trained: TrainedRun, inputs: Sequence[Any], mode: InferenceMode, device: torch.device
) -> tuple[list[Callable[[], object]], float]:
    """Return a call for each of the first inputs, and the seconds of one call when it is warm."""
    calls: list[Callable[[], object]] = [
        partial(trained.predict, [item], **mode.options) for item in inputs[:_ONE_BY_ONE]
    ]
    return calls, min(time_calls(calls[:1], seconds=0.0, device=device, least=2).seconds)


@contextmanager
def _without_gradients(model: nn.Module) -> Iterator[None]:
    """Switch off the gradients of the parameters."""
    # torch's FlopCounterMode fails at a view of a parameter in inference mode, which requires a
    # gradient but has no gradient function (torch 2.13).
    weights = [value for value in model.parameters() if value.requires_grad]
    for weight in weights:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in weights:
            weight.requires_grad_()


@contextmanager
def _marked_engine(trained: TrainedRun) -> Iterator[None]:
    """Mark the calls of an engine other than torch for the profiler, which sees no operators in
    it."""
    engine: Any = trained.engine
    names = () if engine.name == "torch" else ("search", "generate")
    for name in names:
        setattr(engine, name, mark(ENGINE)(getattr(engine, name)))
    try:
        yield
    finally:
        for name in names:
            delattr(engine, name)
