"""How fast a trained run answers here: one input after the other, and many handed over at once.

    one at a time   latency: median and 95th percentile; steps of the search; how fast its weights are read
    many at once    answers a second, batched as the run does it

A model that writes token after token reads its weights once a step: at batch 1 that is what bounds it.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from regard.decode.config import DecodeConfig, SampleConfig
from regard.recipes.bench.groups import CHOOSING
from regard.recipes.bench.reads import Steps, WeightReads, counted_steps
from regard.recipes.bench.timing import timed
from regard.recipes.bench.watch import scoped, watched
from regard.recipes.task import Trained

MANY = 64
"""Inputs handed over at once, at most."""
_ONE_BY_ONE = 16
"""Inputs that are answered one at a time, in turns."""
_SAMPLED = 50
"""Tokens that a text is gone on with, at most."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """One of the ways in which a run can be asked."""

    name: str
    options: dict[str, Any]
    """Of `predict`."""
    beam: int = 1
    """Hypotheses that are kept of each input."""


def ways_of(trained: Trained) -> list[Way]:
    """Greedy search and the run's own beam, where there is a search; else the run's own way."""
    decode = getattr(trained.config, "decode", None)
    sampling = getattr(trained.config, "sample", None)
    if isinstance(decode, DecodeConfig):
        beams = dict.fromkeys((1, decode.beam))
        names = {1: "greedy"}
        return [Way(name=names.get(beam, f"beam {beam}"), options={"beam": beam}, beam=beam) for beam in beams]
    if isinstance(sampling, SampleConfig):
        length = min(_SAMPLED, sampling.length)
        return [Way(name=f"{length} tokens more", options={"length": length})]
    return [Way(name="answers", options={})]


def measure_way(
    trained: Trained, inputs: Sequence[Any], way: Way, device: torch.device, *, seconds: float
) -> dict[str, Any]:
    """One at a time, then many at once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd inputs the user hears from predict
        ones = [partial(trained.predict, [one], **way.options) for one in inputs[:_ONE_BY_ONE]]
        each = min(timed(ones[:1], seconds=0.0, device=device, least=2).seconds)
        # Counting takes a few times as long as answering.
        ones = ones[: max(2, int(seconds / (4 * each)))]
        known = _known(trained, ones)
        alone = timed(ones, seconds=seconds, device=device)
        many = list(inputs[: max(2, min(MANY, int(2 * seconds / each)))])
        together = partial(trained.predict, many, **way.options)
        # Other engines take no step of the model.
        counting = counted_steps(trained._model) if trained.engine.name == "torch" else nullcontext(Steps())
        with counting as counted:
            together()
        batched = timed([together], seconds=seconds, device=device, least=2)
    one_by_one: dict[str, Any] = {
        "inputs": len(ones),
        **alone.told(),
        "answers_per_second": alone.rate([1] * len(ones)),
    }
    if any(steps.count for steps, _ in known):
        one_by_one |= {
            "steps_an_answer": sum(steps.count for steps, _ in known) / len(known),
            "steps_per_second": alone.rate([steps.count for steps, _ in known]),
        }
    one_by_one["weights_read_gb_s"] = alone.rate([read for _, read in known]) / 1e9
    at_once: dict[str, Any] = {"inputs": len(many), **batched.told(), "answers_per_second": batched.rate([len(many)])}
    if counted.count:
        at_once["rows_per_second"] = batched.rate([counted.rows])
    return {"way": way.name, "beam": way.beam, "one_by_one": one_by_one, "at_once": at_once}


def look_into(
    trained: Trained, inputs: Sequence[Any], way: Way, device: torch.device, *, seconds: float
) -> dict[str, Any]:
    """Where the time of answers one at a time goes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calls = [partial(scoped(trained.predict, CHOOSING), [one], **way.options) for one in inputs[:_ONE_BY_ONE]]
        each = min(timed(calls[:1], seconds=0.0, device=device, least=2).seconds)
        few = max(1, min(len(calls), int(seconds / 4 / each)))
        looked = watched(calls[:few], trained._model, device)
    return {"way": way.name, **looked.told(few)}


_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


def _known(trained: Trained, calls: Sequence[Callable[[], object]]) -> list[tuple[Steps, int]]:
    """Steps of each call, and bytes of weights that it reads; it warms up as well.

    Other engines take the same steps, of weights that may have fewer bytes, but only torch's can be counted.
    """
    name, compute_type = trained.engine.name, trained.engine.compute_type
    if name == "torch":
        return [_counted(trained, call) for call in calls]
    trained.compile("torch")
    known = [_counted(trained, call) for call in calls]
    trained.compile(name, compute_type=compute_type)
    calls[0]()
    return [(steps, read * _BYTES.get(compute_type, 4) // 4) for steps, read in known]


def _counted(trained: Trained, call: Callable[[], object]) -> tuple[Steps, int]:
    """The steps of a call, and the bytes of weights that it reads; it warms up as well."""
    with torch.no_grad(), counted_steps(trained._model) as steps, WeightReads(trained._model) as reads:
        call()
    return steps, reads.bytes
