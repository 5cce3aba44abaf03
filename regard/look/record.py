"""Record the attention of a model: `record` around `predict`, `forward`, or any code that runs the model.

    with record(run) as capture:                   a trained run, or any module with reads
        run.predict(["3 maart 2019"])
    capture.save("look.html")

A trained run emits its inputs and outputs as events (regard.trace), so that queries and keys have labels and beams
are resolved. For a bare module, queries and keys are numbered, unless `samples` describes the rows of its calls.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.look.capture import Capture
from regard.look.hooks import TILE_BYTES, record_weights
from regard.look.measures import GradientCall
from regard.look.sample import Sample
from regard.look.segments import Trace
from regard.trace import subscribe


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
) -> Iterator[Capture]:
    """Record the attention weights of every read of `model`, until the context ends.

    Recording changes no output and uses no random numbers. The weights are computed with the reference formula from the
    same queries and keys, score, choice, mask and bias, whichever kernel the model runs.

    model:     result of `regard.load`, or a module.
    samples:   samples of the rows of each call, if the model emits none: their axes "source", "queries", "output" and
               "decoder input" label the queries and keys (see regard.look.roles).
    only, rows, heads, queries, steps, to, dtype, tile_bytes:  see regard.look.hooks.record_weights.
    gradients: keep the autograd graph, for capture.differentiate(y).
    Raises:    as `record_weights`; ValueError if only a part is recorded with gradients.
    """
    module = model if isinstance(model, nn.Module) else model._model
    if gradients and (rows, heads, queries, to) != (None, None, None, None):
        raise ValueError("gradients=True requires whole calls in memory: rows, heads, queries and to must be None")
    graph_calls: list[GradientCall] | None = [] if gradients else None
    selection = {"only": only, "rows": rows, "heads": heads, "queries": queries, "steps": steps}
    options = {**selection, "to": to, "dtype": dtype, "tile_bytes": tile_bytes, "graph_calls": graph_calls}
    with record_weights(module, **options) as recording:
        trace = Trace(recording.counts, samples=samples)
        title = str(getattr(model, "folder", type(module).__name__))
        count = sum(value.numel() for value in module.parameters())
        with subscribe(trace.add):
            description = f"{type(module).__name__}, {count:,} parameters"
            yield Capture.of(recording, trace, title=title, model=description, graph_calls=graph_calls)
