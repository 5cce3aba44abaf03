"""Record the attention of a model: `record` around `predict`, `forward`, or any code that runs it.

A trained run adds its inputs and outputs to a trace (regard.trace), so that queries and keys have
labels and beams are resolved. For a bare module, queries and keys are numbered, unless `samples`
describes the rows of its calls; a search of it is resolved if it is given the trace:

    with record(model) as capture:
        search(model, sentences, ..., trace=capture.trace)

A run is recorded from one thread, and predicts in no other thread meanwhile: their predictions
would be part of the recording.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from regard.look.capture import Capture
from regard.look.hooks import record_weights
from regard.look.measures import GradientCall
from regard.look.resolve import resolve
from regard.look.sample import Sample
from regard.trace import Trace


@contextmanager
def record(
    model: Any,
    *,
    samples: Sequence[Sample] | None = None,
    only: Callable[[str], bool] | Collection[str] | None = None,
    dtype: torch.dtype = torch.float32,
    gradients: bool = False,
    vectors: bool = False,
) -> Iterator[Capture]:
    """Record the attention weights of every read of `model`, until the context ends.

    Recording changes no output and uses no random numbers. The weights are computed with the
    reference formula from the same queries and keys, score, choice, mask and bias, whichever kernel
    the model runs.

    model:     result of `regard.load`, or a module.
    samples:   samples of the rows of each call, if the trace has none: their axes "source",
               "queries", "output" and "decoder input" label the queries and keys (see
               regard.layers.read.Role).
    only:      reads to record: names, or a predicate of a name; None is all.
    dtype:     of the recorded weights: float32, float64 or float16.
    gradients: keep the autograd graph, for capture.differentiate(y).
    vectors:   record items, queries, keys, values, scores and outputs too, for the view "walk"
               (regard.look.vectors).
    Raises:    as `record_weights`.
    """
    is_module = isinstance(model, nn.Module)
    module = model if is_module else model._model
    # A recording inside another one of the same run shares its trace.
    outer = None if is_module else model.trace
    trace = Trace(samples) if outer is None else outer
    graph_calls: list[GradientCall] | None = [] if gradients else None
    with record_weights(
        module, only=only, dtype=dtype, graph_calls=graph_calls, trace=trace, vectors=vectors
    ) as recording:
        count = sum(value.numel() for value in module.parameters())
        capture = Capture(
            lambda: resolve(recording, trace),
            title=str(getattr(model, "folder", type(module).__name__)),
            model=f"{type(module).__name__}, {count:,} parameters",
            recording=recording,
            trace=trace,
            graph_calls=graph_calls,
        )
        if not is_module:
            model.trace = trace
        try:
            yield capture
        finally:
            if not is_module:
                model.trace = outer
