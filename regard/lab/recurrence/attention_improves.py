"""GRU encoder (both directions) and decoder, of 64 units, from the bytes of English, German or
Spanish dates to 2019-03-01. Without attention, the decoder only starts from the last state."""

import torch

from regard.data.batches import Batch, pad
from regard.data.embedded.dates import DateExample, DatesDataset, normalize
from regard.data.embedded.dates_config import DatesConfig
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import is_right, mean, pairs, recurrent_model, train

DATES = DatesDataset(DatesConfig(locales=("en", "de", "es")))


def batch_of(examples: list[DateExample]) -> Batch:
    """Return the bytes of texts, and of their dates."""
    texts = [[*normalize(example.text).encode()] for example in examples]
    dates = torch.tensor([[*example.iso.encode()] for example in examples])
    return Batch(pad(texts), pairs(None, dates).target, tuple(range(len(texts))))


def run(trial: Trial) -> Numbers:
    """Return the shares of 500 new dates, and characters, that are right after 400 steps of 32."""
    attention = "none" if trial.sabotage else trial.arm
    model = recurrent_model(255, attention=attention, width=32, hidden=64)

    def make(random: torch.Generator) -> Batch:
        first = int(torch.randint(2**40, (), generator=random))
        return batch_of([DATES.example("train", index=first + i) for i in range(32)])

    train(model, make, trial, steps=400)
    right = is_right(model, batch_of([DATES.example("test", index=i) for i in range(500)]))
    return {"dates": mean(right.all(-1)), "characters": mean(right)}


CLAIM = Claim(
    entry=("B.10", "improves much"),
    sabotage={"additive": "has no attention"},
    arms=("none", "additive"),
    rates=(0.005, 0.01),
    tuned_by="characters",
    hypotheses=(Difference("dates", more="additive", less="none", margin=0.3),),
    controls=(Bound("characters", "none", at_least=0.4),),
    remark="It shows how much after few steps: with more, the last state also learns some dates.",
)
