"""Inference speed of a trained run: one input at a time, and in batches.

    one at a time   latency (median and 95th percentile), decoding steps, rate at which parameters are read
    batched         answers per second, batched as the run does it

An autoregressive model reads all its parameters in each step: at batch size 1 this limits its speed.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from regard.bench.groups import SEARCH
from regard.bench.profile import profile_calls, with_scope
from regard.bench.timing import time_calls
from regard.bench.weight_reads import Steps, WeightReads, count_steps
from regard.decode.config import DecodeConfig, SampleConfig
from regard.recipes.base.recipe import TrainedRun

MANY = 64
"""Maximum number of inputs in a batch."""
_ONE_BY_ONE = 16
"""Number of inputs that are answered one at a time, in turn."""
_SAMPLED = 50
"""Maximum number of tokens to generate."""
_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True, kw_only=True)
class InferenceMode:
    """Decoding mode to measure, such as greedy or beam search."""

    name: str
    options: dict[str, Any]
    """Options of `predict`."""
    beam: int = 1
    """Beam size."""


def inference_modes(trained: TrainedRun) -> list[InferenceMode]:
    """Return greedy search and the run's own beam for a run that decodes, otherwise its only mode."""
    decode = getattr(trained.config, "decode", None)
    sampling = getattr(trained.config, "sample", None)
    if isinstance(decode, DecodeConfig):
        beams = dict.fromkeys((1, decode.beam))
        names = {1: "greedy"}
        return [
            InferenceMode(name=names.get(beam, f"beam {beam}"), options={"beam": beam}, beam=beam) for beam in beams
        ]
    if isinstance(sampling, SampleConfig):
        length = min(_SAMPLED, sampling.length)
        return [InferenceMode(name=f"{length} new tokens", options={"length": length})]
    return [InferenceMode(name="answers", options={})]


def measure_mode(
    trained: TrainedRun, inputs: Sequence[Any], mode: InferenceMode, device: torch.device, *, seconds: float
) -> dict[str, Any]:
    """Time a mode one input at a time, then batched."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `predict` reports unusual inputs
        calls = [partial(trained.predict, [item], **mode.options) for item in inputs[:_ONE_BY_ONE]]
        duration = min(time_calls(calls[:1], seconds=0.0, device=device, least=2).seconds)
        # Counting is a few times slower than answering.
        calls = calls[: max(2, int(seconds / (4 * duration)))]
        counts = _count_reads(trained, calls)
        single_times = time_calls(calls, seconds=seconds, device=device)
        batch = list(inputs[: max(2, min(MANY, int(2 * seconds / duration)))])
        batch_call = partial(trained.predict, batch, **mode.options)
        # Other engines do not call the model's `step`.
        counting = count_steps(trained._model) if trained.engine.name == "torch" else nullcontext(Steps())
        with counting as counted:
            batch_call()
        batched_times = time_calls([batch_call], seconds=seconds, device=device, least=2)
    single: dict[str, Any] = {
        "inputs": len(calls),
        **single_times.to_dict(),
        "answers_per_second": single_times.rate([1] * len(calls)),
    }
    if any(steps.count for steps, _ in counts):
        single |= {
            "steps_per_answer": sum(steps.count for steps, _ in counts) / len(counts),
            "steps_per_second": single_times.rate([steps.count for steps, _ in counts]),
        }
    single["parameters_read_gb_s"] = single_times.rate([read for _, read in counts]) / 1e9
    batched: dict[str, Any] = {
        "inputs": len(batch),
        **batched_times.to_dict(),
        "answers_per_second": batched_times.rate([len(batch)]),
    }
    if counted.count:
        batched["rows_per_second"] = batched_times.rate([counted.rows])
    return {"mode": mode.name, "beam": mode.beam, "single": single, "batched": batched}


def profile_mode(
    trained: TrainedRun, inputs: Sequence[Any], mode: InferenceMode, device: torch.device, *, seconds: float
) -> dict[str, Any]:
    """Profile a mode one input at a time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calls = [partial(with_scope(trained.predict, SEARCH), [item], **mode.options) for item in inputs[:_ONE_BY_ONE]]
        duration = min(time_calls(calls[:1], seconds=0.0, device=device, least=2).seconds)
        few = max(1, min(len(calls), int(seconds / 4 / duration)))
        profile = profile_calls(calls[:few], trained._model, device)
    return {"mode": mode.name, **profile.to_dict(few)}


def _count_reads(trained: TrainedRun, calls: Sequence[Callable[[], object]]) -> list[tuple[Steps, int]]:
    """Count the decoding steps of each call and the bytes of parameters that it reads; this also warms up.

    Only torch's reads can be counted. Other engines take the same steps, possibly with smaller parameters.
    """
    name, compute_type = trained.engine.name, trained.engine.compute_type
    if name == "torch":
        return [_count_call(trained, call) for call in calls]
    trained.compile("torch")
    counts = [_count_call(trained, call) for call in calls]
    trained.compile(name, compute_type=compute_type)
    calls[0]()
    return [(steps, read * _BYTES.get(compute_type, 4) // 4) for steps, read in counts]


def _count_call(trained: TrainedRun, call: Callable[[], object]) -> tuple[Steps, int]:
    """Count the decoding steps of a call and the bytes of parameters that it reads."""
    with torch.no_grad(), count_steps(trained._model) as steps, WeightReads(trained._model) as reads:
        call()
    return steps, reads.bytes
