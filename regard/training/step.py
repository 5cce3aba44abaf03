"""Gradient of one step, accumulated over batches and processes as if they were one batch.

    loss = sum of the losses of all batches and processes / sum of their target tokens

so the target tokens of all batches are counted before the first backward pass. Random numbers
(dropout) depend only on the seed, the step, the index of the batch in the step and the rank, so no
generator state needs to be saved.
"""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import UserError
from regard.training.distribution import Replica
from regard.training.precision import tf32_products
from regard.training.protocols import TrainingBatches
from regard.training.seeds import derive_seed


def add_gradients(
    replica: Replica,
    batches: TrainingBatches,
    plan: Sequence[tuple[int, ...]],
    *,
    epoch: int,
    step: int,
    seed: int,
    precision: str,
) -> tuple[Float[Tensor, "batches 2"], int]:
    """Compute the gradient of step `step`, with batches of the rows in `plan`; add it to `.grad`.

    Returns the loss and the sum of -log p of each batch of this process, summed over its tokens,
    on its device, for which nothing waits here; and the number of target tokens on all processes.

    Process r of n computes the rows r, r + n, r + 2 n ... of each batch. A process without rows
    computes the first row with weight zero, as it must take part in the synchronization of
    gradients.
    """
    world = replica.world
    own_batches = []
    for rows in plan:
        own = rows[world.rank :: world.size]
        own_batches.append((batches.collate(epoch, own or rows[:1]), int(bool(own))))
    own_count = sum(replica.model.count(batch) for batch, weight in own_batches if weight)
    count = round(world.sum([own_count])[0])
    if count == 0:
        raise UserError(
            f"a batch has no target token: its rows are {list(plan[0])[:10]} in epoch {epoch + 1}."
        )
    sums: list[Tensor] = []
    for number, (batch, weight) in enumerate(own_batches):
        torch.manual_seed(derive_seed(seed, step, number, world.rank))
        is_last = number == len(own_batches) - 1
        products = tf32_products() if precision == "tf32" else nullcontext()
        with replica.accumulate(last=is_last), products:
            is_half = precision == "bfloat16"
            cast = torch.autocast(world.device.type, torch.bfloat16) if is_half else nullcontext()
            with cast:
                loss = replica.objective(batch.to(world.device))
            # DDP and FSDP average over processes; times their number this is the sum.
            (loss.total * (weight * world.size / count)).backward()
        sums += [weight * loss.total.detach().float(), weight * loss.nll.detach().float()]
    return torch.stack(sums).view(-1, 2), count
