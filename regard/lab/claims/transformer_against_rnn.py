"""Dates to ISO 8601 by a Transformer and an RNN with attention, from few and many examples."""

import torch

from regard.data.batches import Batch, pad
from regard.data.embedded.dates import DatesDataset
from regard.data.embedded.dates_config import DatesConfig
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import token_model, train
from regard.models.cores.recurrent import Recurrent
from regard.models.cores.transformer import Transformer


def draw(dates: DatesDataset, split: str, indices: list[int]) -> Batch:
    """Return examples of a split: the characters of the text, and the 8 digits of the date."""
    examples = [dates.example(split, index=index) for index in indices]
    source = pad([[ord(letter) for letter in one.text] for one in examples])
    digits = [[ord(digit) for digit in one.iso.replace("-", "")] for one in examples]
    return Batch(source, pad(digits, before=(0,)), tuple(indices))


def run(trial: Trial) -> Numbers:
    """Train on each number of examples, and return the share of new dates that are all right."""
    locales, years = ("en", "de"), {"first_year": 2000, "last_year": 2019}
    config = DatesConfig(locales=locales, case_noise=0, space_noise=0, **years)
    dates, numbers = DatesDataset(config, seed=trial.seed), {}
    test = draw(dates, "test", [*range(1000)])
    for count in (30_000,) if trial.sabotage else (300, 3000, 30_000):
        torch.manual_seed(trial.seed)
        attention = "none" if trial.sabotage else "additive"
        core = Recurrent(width=32, hidden=64, attention=attention, attention_hidden=32)
        if trial.arm == "Transformer":
            core = Transformer(layers=2, width=40, heads=4, feedforward=80)
        model = token_model(core, 255)

        def make(random: torch.Generator, count: int = count) -> Batch:
            return draw(dates, "train", torch.randint(count, (64,), generator=random).tolist())

        train(model, make, trial, steps=300)
        with torch.no_grad():
            right = model(test.source, test.target).argmax(-1) == test.target.items[:, 1:]
        numbers[f"dates at {count}"] = float(right.all(-1).double().mean())
        numbers["years"] = float(right[:, :4].all(-1).double().mean())
    return numbers


CLAIM = Claim(
    key="D.11",
    quote="Transformers are more accurate than RNNs, at least with much data",
    experiment="English and German dates, letter by letter, to 8 digits: share of 1,000 dates not "
    "trained on that are right, after 300 steps of 64 of 300, 3,000 or 30,000 examples. A "
    "Transformer (2 + 2 layers, width 40) and a GRU with additive attention have about 70,000 "
    "parameters.",
    sabotage="The RNN has no attention.",
    sabotaged=("RNN",),
    run=run,
    arms=("RNN", "Transformer"),
    rates=(0.005, 0.01),
    tuned_by="dates at 30000",
    x_name="number of training examples",
    hypotheses=(Difference(measure="dates at 30000", more="Transformer", less="RNN", margin=0.02),),
    controls=(Bound(measure="years", arm="Transformer", at_least=0.7),),
    remark="In 300 steps, more examples than 3,000 help little: the Transformer needs more steps. "
    "After 1,200, in a trial of one seed, it has 99 % right, the RNN 100 %. On 29,000 captions, "
    "the Transformer is more accurate (benchmarks/README.md, one seed): a small run decides "
    "nothing about such sizes.",
)
