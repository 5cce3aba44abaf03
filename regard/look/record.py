"""Record the attention of a model: `record` around `predict`, `forward`, or any code that runs the
model.

    with record(run) as capture:                   a trained run, or any module with reads
        run.predict(["3 maart 2019"])
    capture.save("look.html")

A trained run adds its inputs and outputs to a trace (regard.trace), so that queries and keys have
labels and beams are resolved. For a bare module, queries and keys are numbered, unless `samples`
describes the rows of its calls; a search of it is resolved if it is given the trace:

    with record(model) as capture:
        search(model, sentences, ..., trace=capture.trace)
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.look.capture import Capture
from regard.look.hooks import TILE_BYTES, record_weights
from regard.look.measures import GradientCall
from regard.look.sample import Sample
from regard.trace import Trace


@contextmanager
def record(
    model: Any,
    *,
    samples: Sequence[Sample] | None = None,
    only: Callable[[str], bool] | Collection[str] | None = None,
    rows: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    queries: Sequence[int] | None = None,
    steps: Collection[int] | None = None,
    to: str | Path | None = None,
    dtype: torch.dtype = torch.float32,
    tile_bytes: int = TILE_BYTES,
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
    only, rows, heads, queries, steps, to, dtype, tile_bytes:  see regard.look.hooks.record_weights.
    gradients: keep the autograd graph, for capture.differentiate(y).
    vectors:   record items, queries, keys, values, scores and outputs too, for the view "walk"
    (regard.look.vectors). A run is recorded by one thread, and predicts in no other thread
    meanwhile. Raises:    as `record_weights`; UserError if another thread records the run;
                          ValueError if only a part is recorded
               with gradients or vectors.
    """
    for name, is_whole in (("gradients", gradients), ("vectors", vectors)):
        if is_whole and (rows, heads, queries, to) != (None, None, None, None):
            raise ValueError(
                f"{name}=True requires whole calls in memory: rows, heads, queries and to must be "
                f"None"
            )
    if not isinstance(model, nn.Module) and not hasattr(model, "turns"):
        raise TypeError(
            f"model must be the result of regard.load, or a module with attention, got "
            f"{model!r:.80}"
        )
    run = None if isinstance(model, nn.Module) else model
    module = model if run is None else run._model
    outer = None if run is None else run.trace
    trace = (
        Trace(samples) if outer is None else outer
    )  # a recording inside another one of the same run shares its trace
    graph_calls: list[GradientCall] | None = [] if gradients else None
    selection = {"only": only, "rows": rows, "heads": heads, "queries": queries, "steps": steps}
    options = {
        **selection,
        "to": to,
        "dtype": dtype,
        "tile_bytes": tile_bytes,
        "graph_calls": graph_calls,
    }
    alone = nullcontext() if run is None else run.turns.record()
    with alone, record_weights(module, **options, trace=trace, vectors=vectors) as recording:
        title = str(getattr(model, "folder", type(module).__name__))
        count = sum(value.numel() for value in module.parameters())
        description = f"{type(module).__name__}, {count:,} parameters"
        if run is not None:
            run.trace = trace
        try:
            yield Capture.of(
                recording, trace, title=title, model=description, graph_calls=graph_calls
            )
        finally:
            if run is not None:
                run.trace = outer
