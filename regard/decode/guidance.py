"""Sampling with classifier-free guidance: sequences of a given length, many rows at once.

    log p = log p(u | empty) + g (log p(u | source) - log p(u | empty))        g = 1: no guidance

The model must have been trained with some sources replaced by the empty one. Each row has its own
random numbers, so it does not depend on the other rows of its batch, apart from rounding in the
model.

Source: ho2022, equation 6 (classifier-free guidance); gafni2022, section 3.5 (image tokens).
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.masks import Padded
from regard.decode.config import DrawingConfig
from regard.decode.rules import make_rules
from regard.decode.sample import filter_logits
from regard.decode.stepper import StateT, Stepper, trace_likely
from regard.trace import SearchOutput, Trace


@torch.no_grad()
def sample_guided(
    stepper: Stepper[StateT],
    source: Padded,
    *,
    empty_source: Sequence[int],
    length: int,
    config: DrawingConfig,
    bos: int,
    banned: Sequence[int],
    seeds: Sequence[int],
    trace: Trace | None = None,
) -> tuple[Int[Tensor, "rows length"], Float[Tensor, " rows"]]:
    """Sample `length` tokens for each row of the source; return them and their mean log p.

    The latter is per token under the model with the source, without guidance.

    empty_source: ids of the source that stands for no condition.
    banned:       ids that are never drawn.
    seeds:        one per row; the same seed, source and settings give the same output.
    trace:        receives the steps and the outputs (regard.trace).
    Raises: ValueError if there is not one seed per row.
    """
    rows = len(source.lengths)
    if len(seeds) != rows:
        raise ValueError(f"seeds must be one for each of {rows} rows, got {len(seeds)}")
    device, is_guided = source.items.device, config.guidance != 1
    rules = make_rules(config)
    uniforms = torch.empty(length, rows, dtype=torch.float64, device="cpu")
    for row, seed in enumerate(seeds):
        generator = torch.Generator("cpu").manual_seed(seed)
        uniforms[:, row] = torch.rand(
            length, generator=generator, dtype=torch.float64, device="cpu"
        )
    if is_guided:  # as many rows of the empty source follow
        empty = torch.zeros_like(source.items)
        empty[:, : len(empty_source)] = torch.tensor(list(empty_source), device=device)
        lengths = torch.full_like(source.lengths, len(empty_source))
        source = Padded(torch.cat((source.items, empty)), torch.cat((source.lengths, lengths)))
    state = stepper.start(source)
    banned_ids = torch.tensor(list(banned), dtype=torch.int64, device=device)
    tokens = torch.full((rows,), bos, dtype=torch.int64, device=device)
    all_tokens, all_log_probs = [], []
    for uniform in uniforms.to(device):
        if trace is not None:
            trace.begin_step(range(rows))  # the rows with the empty source follow
        logits, state = stepper.step(tokens.repeat(2) if is_guided else tokens, state)
        logits.index_fill_(1, banned_ids, -math.inf)
        log_probs = logits.log_softmax(-1, dtype=torch.float32)
        conditional = log_probs[:rows]
        trace_likely(trace, conditional)
        if is_guided:
            unconditional = log_probs[rows:]
            guided = unconditional + config.guidance * (conditional - unconditional)
            log_probs = torch.where(conditional.isfinite(), guided, conditional)
        if rules.active and all_tokens:
            log_probs = log_probs.clone()  # the score is without amounts
            rules.apply(log_probs, log_probs, torch.stack(all_tokens, 1))
            rules.check(log_probs)
        tokens = sample_inverse_cdf(filter_logits(log_probs, config), uniform)
        all_log_probs.append(conditional.gather(1, tokens[:, None])[:, 0])
        all_tokens.append(tokens)
    sequences, log_prob = torch.stack(all_tokens, 1), torch.stack(all_log_probs, 1)
    if trace is not None:
        pairs = zip(sequences.tolist(), log_prob.tolist(), strict=True)
        trace.add_outputs(
            [[SearchOutput(ids, [row] * len(ids), log_p)] for row, (ids, log_p) in enumerate(pairs)]
        )
    return sequences, log_prob.mean(1)


def sample_inverse_cdf(
    probs: Float[Tensor, "rows vocab"], uniform: Float[Tensor, " rows"]
) -> Int[Tensor, " rows"]:
    """Sample a token per row by inverting the cumulative distribution."""
    cumulative = probs.double().cumsum(-1)
    return torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True)[:, 0]
