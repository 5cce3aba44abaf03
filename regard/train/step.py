"""The gradient of one step: a step's batches, spread over processes, add up as if they were one batch.

    loss = sum over all batches and processes of their losses / sum over them of their target tokens

so the tokens of all batches are counted before the first is differentiated. Whatever is random (dropout)
depends on the seed, the step, the batch's place in the step and the process alone, so no generator's state is
ever saved.
"""

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import UserError
from regard.train.contracts import Batch, Batches
from regard.train.distribution import Replica
from regard.train.precision import PRECISIONS


@dataclass(frozen=True, kw_only=True)
class Sums:
    """What one process adds up in a step; only `count` is over all of them."""

    totals: list[float]
    """The loss of each batch, summed over its tokens."""
    nll: float
    """Negative log-likelihood, summed over all tokens."""
    count: int
    """Target tokens of the step, on all processes."""


def seed_of(*numbers: int) -> int:
    """A seed that differs for any other numbers, in order: 63 bits of their SHA-256."""
    digest = hashlib.sha256("/".join(map(str, numbers)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def add_gradients(
    replica: Replica,
    batches: Batches,
    plan: Sequence[tuple[int, ...]],
    *,
    epoch: int,
    step: int,
    seed: int,
    precision: str,
) -> Sums:
    """Add the gradient of step number `step`, whose batches hold the rows in `plan`, to the weights' own.

    Process r of n computes the rows r, r + n, r + 2 n ... of each batch. One without rows computes another's
    and counts it zero times: it must take part in the exchange of gradients.
    """
    world = replica.world
    shares = [_share(batches, epoch, rows, rank=world.rank, size=world.size) for rows in plan]
    counted = sum(replica.count(batch) for batch, weight in shares if weight)
    count = round(world.sum([counted])[0])
    if count == 0:
        raise UserError(f"a batch has no target token: its rows are {list(plan[0])[:10]} in epoch {epoch + 1}.")
    sums: list[Tensor] = []
    weights = [weight for _, weight in shares for _ in ("total", "nll")]
    for place, (batch, weight) in enumerate(shares):
        torch.manual_seed(seed_of(seed, step, place, world.rank))
        with replica.adding_up(last=place == len(shares) - 1):
            with _autocast(world.device, precision):
                loss = replica.loss(batch.to(world.device))
            # DDP and FSDP take the mean over processes; times their number it is the sum.
            (loss.total * (weight * world.size / count)).backward()
        sums += [loss.total.detach().float(), loss.nll.detach().float()]
    # One transfer a step, after all of it is queued on the device.
    values = [value * weight for value, weight in zip(torch.stack(sums).tolist(), weights, strict=True)]
    return Sums(totals=values[::2], nll=sum(values[1::2]), count=count)


def _share(batches: Batches, epoch: int, rows: tuple[int, ...], *, rank: int, size: int) -> tuple[Batch, int]:
    """The rows of a batch that a process computes, and how often they count: 0 if it has none of its own."""
    own = rows[rank::size]
    return batches.collate(epoch, own or rows[:1]), int(bool(own))


def _autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    if precision not in PRECISIONS:
        raise ValueError(f"`precision` must be {' or '.join(PRECISIONS)}, got {precision!r}")
    return nullcontext() if precision == "float32" else torch.autocast(device.type, dtype=torch.bfloat16)
