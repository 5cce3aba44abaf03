"""Record what a model reads while it answers: `record` around `predict`, `forward`, or anything that runs it.

    with record(run) as capture:                   a trained run, or any module with reads
        run.predict(["3 maart 2019"])
    capture.save("look.html")

A trained run tells what its inputs are and what it said (regard.telling), so that queries and keys have labels and
beams are resolved. Of a bare module the entries are numbered, unless `scenes` says what the rows of its calls are.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.look.capture import Capture
from regard.look.gradients import Taken
from regard.look.listen import TILE_BYTES, listen
from regard.look.scene import Scene
from regard.look.story import Story
from regard.telling import hearing


@contextmanager
def record(
    model: Any,
    *,
    scenes: Sequence[Scene] | None = None,
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
    """Keep what every read of `model` read, until the context ends.

    Recording changes no output and draws no random number. The numbers are those of the read's own score, choice, mask
    and bias, computed by the formula from the very queries and keys, whichever kernel the model ran on.

    model:   what `regard.load` gives, or a module.
    scenes:  what the rows of each call are, if the model does not tell: their axes "source", "queries", "said", "fed"
             give labels to queries and keys (regard.look.names says which read has which).
    only, rows, heads, queries, steps, to, dtype, tile_bytes:  what is kept, and where; see regard.look.listen.
    gradients: keep the graph of what runs, so that capture.differentiate(y) can tell how much each weight mattered.
    Raises:  as `listen`; ValueError if only a part is recorded with gradients.
    """
    module = model if isinstance(model, nn.Module) else model._model
    if gradients and (rows, heads, queries, to) != (None, None, None, None):
        raise ValueError("gradients need whole calls in memory: leave rows, heads, queries and to out")
    taken: list[Taken] | None = [] if gradients else None
    settings = {"only": only, "rows": rows, "heads": heads, "queries": queries, "steps": steps}
    with listen(module, **settings, to=to, dtype=dtype, tile_bytes=tile_bytes, taken=taken) as recording:
        story = Story(recording.counts, scenes=scenes)
        title = str(getattr(model, "folder", type(module).__name__))
        count = sum(value.numel() for value in module.parameters())
        with hearing(story.hear):
            about = f"{type(module).__name__}, {count:,} weights"
            yield Capture.of(recording, story, title=title, model=about, taken=taken)
