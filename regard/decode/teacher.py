"""Teacher forcing with a trace: the steps of a search whose outputs are known.

A Transformer reads all tokens of an output in one pass, which is part of the first step; the other
cores read them one by one. Weights and probabilities are those of the search, up to rounding.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.decode.progress import UNWRITTEN
from regard.decode.stepper import trace_likely
from regard.models.cores.transformer import Transformer
from regard.models.model import Model
from regard.trace import SearchOutput, Trace

_LOG_SOFTMAX = partial(torch.log_softmax, dim=-1, dtype=torch.float32)


@torch.no_grad()
def trace_outputs(
    model: Model,
    source: Any,
    outputs: Sequence[Sequence[int]],
    trace: Trace,
    *,
    log_probs: Callable[[Tensor], Tensor] = _LOG_SOFTMAX,
    banned: Sequence[int] = (),
    likely: int = 1,
) -> None:
    """Run the model over outputs for one row of a source, and add steps and outputs to a trace.

    source:    None for a language model.
    outputs:   ids of each output after the first input of the decoder. UNWRITTEN as the last id of
               a single output is the most likely one that is not `banned`.
    log_probs: function from logits (rows, vocab) to the log-probability of each token.
    likely:    least number of tokens of a step that are added, as of `trace_likely`.
    """
    rows, longest = len(outputs), max(map(len, outputs))
    ids = [[*own, *[0] * (longest - len(own))] for own in outputs]
    device = next(model.parameters()).device
    tokens = torch.tensor(ids, device=device)
    banned_ids = torch.tensor(banned, dtype=torch.int64, device=device)
    state = model.start(source, rows=rows)
    if source is not None:
        state = state.select(tokens.new_zeros(rows))
    items, core, hidden = model.writer.embed(tokens[:, :-1]), state.core, None
    chosen, chosen_log_probs = [], []
    for t in range(longest - 1):
        trace.begin_step([0] * rows)
        if not isinstance(model.core, Transformer):
            item, core = model.core.step(items[:, t], core)
        else:
            hidden = model.core(items, core) if hidden is None else hidden
            item = hidden[:, t]
        found = log_probs(model.writer.answer(item))
        trace_likely(trace, found, likely)
        next_tokens = tokens[:, t + 1]
        if ids[0][t + 1] == UNWRITTEN:
            next_tokens = found.index_fill(1, banned_ids, -torch.inf).argmax(-1)
        chosen.append(next_tokens)
        chosen_log_probs.append(found.gather(1, next_tokens[:, None])[:, 0])
    written, values = torch.stack(chosen, 1).tolist(), torch.stack(chosen_log_probs, 1).tolist()
    traced = []
    for row, own in enumerate(outputs):
        size = len(own) - 1
        begin = own[0] if source is None else None
        numbers = values[row][:size]
        traced.append(SearchOutput(written[row][:size], [row] * size, numbers, begin))
    trace.add_outputs([traced])
