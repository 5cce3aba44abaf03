"""Of 8 symbols two are A or B, and the first of them is to be written: by an encoder and decoder
without positions or with sinusoidal ones, or by a causal decoder without positions."""

import torch

from regard.data.batches import Batch
from regard.lab.protocol import EXACT, Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import generator, largest, mean, pairs, token_model, train
from regard.models.cores.transformer import Transformer


def draw(random: torch.Generator, rows: int = 32) -> torch.Tensor:
    """Draw 8 symbols: at two places 1 or 2, elsewhere 3 to 8."""
    source = torch.randint(3, 9, (rows, 8), generator=random)
    places = torch.rand(rows, 8, generator=random).argsort(1)[:, :2]
    return source.scatter(1, places, torch.randint(1, 3, (rows, 2), generator=random))


def as_batch(source: torch.Tensor, arm: str) -> Batch:
    """Return sources with the first of their 1s and 2s; of a decoder one sequence, 9 between."""
    first = source.gather(1, (source < 3).int().argmax(1, keepdim=True))
    sequence = torch.cat([source, torch.full_like(first, 9), first], 1)
    return pairs(None, sequence) if "causal" in arm else pairs(source, first)


def run(trial: Trial) -> Numbers:
    """Return the accuracy after 250 steps of 32 (at 2, chance is 0.5), and the change by a swap."""
    kind = "sinusoidal" if trial.arm == "positions" and not trial.sabotage else "none"
    sizes = {"layers": 1 if "1" in trial.arm else 2, "width": 32, "heads": 4, "feedforward": 64}
    model = token_model(Transformer(**sizes, positions=kind, encodes="causal" not in trial.arm), 9)
    train(model, lambda random: as_batch(draw(random), trial.arm), trial, steps=250)
    source = draw(generator(trial.seed, 2), 1000)
    both = (source == 1).any(1) & (source == 2).any(1)
    batch = as_batch(torch.cat([source, torch.where(source < 3, 3 - source, source)]), trial.arm)
    with torch.no_grad():
        a, b = model.double()(batch.source, batch.target)[:, -1].chunk(2)  # b: 1 and 2 swapped
    right = (torch.cat([a, b]).argmax(-1) == batch.target.items[:, -1]).view(2, 1000)
    numbers = {"accuracy at 1": mean(right[:, ~both]), "accuracy at 2": mean(right[:, both])}
    return numbers | {"change by a swap": largest((a - b)[both])}


CLAIM = Claim(
    entry=("C.3", "no sequential information is preserved"),
    sabotage={"positions": "has no positions"},
    arms=("none", "positions", "causal, 1 layer", "causal, 2 layers"),
    rates=(0.003, 0.01),
    tuned_by="accuracy at 2",
    x_name="number of different symbols among the two",
    hypotheses=(
        Bound("change by a swap", "none", at_most=EXACT),
        Difference("accuracy at 2", more="positions", less="none", margin=0.3),
        Difference("accuracy at 2", more="causal, 2 layers", less="none", margin=0.3),
    ),
    controls=(Bound("accuracy at 1", "none", at_least=0.9),),
    remark="Without positions, a swap of A and B changes nothing by construction. Two causal "
    "layers know the order: by the mask, items of the first read different sets.",
)
