"""English and German dates, as words and digits, to 8 digits: by a Transformer (2 + 2 layers of 40,
71,240 parameters) and a GRU (64 units, both directions, 60,960) with additive attention."""

import re

import torch

from regard.data.batches import Batch, pad
from regard.data.embedded.dates import DatesDataset
from regard.data.embedded.dates_config import DatesConfig
from regard.data.tokenizer import Ends
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import is_right, mean, token_model, train
from regard.models.cores.recurrent import Recurrent
from regard.models.cores.transformer import Transformer


def run(trial: Trial) -> Numbers:
    """Return the share of 1,000 new dates right after 600 steps of 64, by number of examples."""
    years = {"first_year": 2000, "last_year": 2019, "case_noise": 0, "space_noise": 0}
    dates = DatesDataset(DatesConfig(locales=("en", "de"), **years), seed=trial.seed)
    find_words, ids = re.compile(r"\d|[^\W\d]+|\S").findall, {}  # ids in order of occurrence

    def draw(split: str, taken: list[int]) -> Batch:
        examples = [dates.example(split, index=index) for index in taken]
        texts = [one.iso.replace("-", "") for one in examples] + [one.text for one in examples]
        rows = [[ids.setdefault(word, len(ids) + 1) for word in find_words(text)] for text in texts]
        return Batch(pad(rows[len(taken) :]), pad(rows[: len(taken)], Ends((0,))), tuple(taken))

    def make(random: torch.Generator) -> Batch:
        return draw("train", torch.randint(count, (64,), generator=random).tolist())

    test, numbers = draw("test", [*range(1000)]), {}
    for count in (30_000,) if trial.sabotage else (300, 3000, 30_000):
        torch.manual_seed(trial.seed)
        attention = "none" if trial.sabotage else "additive"
        rnn = Recurrent(width=32, hidden=64, attention=attention, attention_hidden=32)
        core = rnn if trial.arm == "RNN" else Transformer(layers=2, width=40, feedforward=80)
        model = token_model(core, 120)
        train(model, make, trial, steps=600)
        numbers[f"dates at {count}"] = mean(is_right(model, test).all(-1))
    return numbers


CLAIM = Claim(
    entry=("D.11", "Transformers are more accurate than RNNs, at least with much data"),
    sabotage={"RNN": "has no attention"},
    arms=("RNN", "Transformer"),
    rates=(0.01,),  # the better of 0.005 and 0.01 for both, on another seed
    x_name="number of training examples",
    hypotheses=(Difference("dates at 30000", more="Transformer", less="RNN", margin=0.02),),
    controls=(Bound("dates at 30000", "Transformer", at_least=0.85),),
    remark="Both learn these dates; the RNN needs fewer examples. They decide nothing on larger "
    "data: on captions, the Transformer is more accurate (benchmarks/README.md, one seed).",
)
