"""Written dates in three languages to their ISO form, with and without attention."""

import torch

from regard.data.batches import Batch, pad
from regard.data.embedded.dates import DateExample, DatesDataset, normalize
from regard.data.embedded.dates_config import DatesConfig
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import pairs, share_weights, token_model, train
from regard.models.cores.recurrent import Recurrent
from regard.models.model import Model

DATES = DatesDataset(DatesConfig(locales=("en", "de", "es")))


def make_model(attention: str) -> Model:
    """Return a GRU of the bytes 1 to 255 with this attention."""
    return token_model(Recurrent(width=32, hidden=64, attention=attention), 255)


def batch_of(examples: list[DateExample]) -> Batch:
    """Return the bytes of texts, and of their dates."""
    texts = [[*normalize(example.text).encode()] for example in examples]
    dates = torch.tensor([[*example.iso.encode()] for example in examples])
    return Batch(pad(texts), pairs(None, dates).target, tuple(range(len(texts))))


def run(trial: Trial) -> Numbers:
    """Return the share of other dates of which every character is right, and of characters."""
    reference = make_model("none")
    model = make_model("none" if trial.sabotage else trial.arm)
    share_weights(model, reference)

    def make(random: torch.Generator) -> Batch:
        first = int(torch.randint(2**40, (), generator=random))
        return batch_of([DATES.example("train", index=first + i) for i in range(32)])

    train(model, make, trial, steps=400)
    batch = batch_of([DATES.example("test", index=i) for i in range(500)])
    right = model(batch.source, batch.target).argmax(-1) == batch.target.items[:, 1:]
    right = right.double()
    return {"dates": float(right.amin(-1).mean()), "characters": float(right.mean())}


CLAIM = Claim(
    key="B.10",
    quote="improves much",
    experiment="A GRU of 64 numbers reads a date as people write it in English, German or Spanish "
    "and writes it as 2019-03-01 (400 steps of 32 dates). Share of 500 other dates that are right.",
    sabotage="The arm with attention has none.",
    sabotaged=("additive",),
    run=run,
    arms=("none", "additive"),
    rates=(0.005, 0.01),
    tuned_by="characters",
    hypotheses=(Difference(measure="dates", more="additive", less="none", margin=0.3),),
    controls=(Bound(measure="characters", arm="none", at_least=0.4),),
    remark="It shows how much after few steps on short texts: with more steps and numbers the last "
    "state also learns some dates. A date counts if greedy decoding writes it.",
)
