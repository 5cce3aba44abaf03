"""An LSTM-Network (language model, 32 units) reads a word of each of 3 kinds, then their names, and
predicts after each the word of that kind; untrained, or after 500 steps of 64 rows."""

import torch

from regard.data.batches import Batch
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import generator, is_right, mean, pairs, token_model, train
from regard.look.record import record
from regard.models.cores.self_attentive import SelfAttentive


def draw(random: torch.Generator, rows: int, *, anew: bool) -> tuple[Batch, torch.Tensor]:
    """Draw words, one of each kind, then each kind with its word; and the position of the word."""
    words = torch.randint(1, 5, (rows, 3), generator=random)
    kinds = torch.rand(rows, 3, generator=random).argsort(-1)  # in order of the first words
    asked = torch.rand(rows, 3, 1, generator=random).argsort(1)  # positions of the first words
    said = words[torch.randperm(rows, generator=random)] if anew else words
    again = torch.stack((13 + kinds, said + 4 * kinds), -1).take_along_dim(asked, 1)
    return pairs(None, torch.cat((words + 4 * kinds, again.flatten(1)), 1)), asked


def run(trial: Trial) -> Numbers:
    """Return the weight of the word of a kind when its name comes, and the accuracy after it."""
    core = SelfAttentive(width=16, hidden=32, self_attention_hidden=32, encodes=False)
    model = token_model(core, 15).eval()
    if trial.arm == "trained":
        train(model, lambda random: draw(random, 64, anew=trial.sabotage)[0], trial, steps=500)
    batch, asked = draw(generator(trial.seed, 2), 500, anew=False)
    with record(model) as capture:
        right = is_right(model, batch)
    (name,) = capture.recording.names
    weight, accuracy = 0.0, 0.0
    for number in range(3):
        at = 4 + 2 * number  # of the kind, after BOS and the words
        weights = capture.recording[name][at - 1][:, 0]
        weight += mean(weights.gather(-1, 1 + asked[:, number]))
        accuracy += mean(right[:, at])
    return {"weight of the word": weight / 3, "accuracy": accuracy / 3}


CLAIM = Claim(
    entry=("B.12", "looks at what is relevant to the new word"),
    sabotage={"trained": "learns from names that the words of other rows follow"},
    arms=("untrained", "trained"),
    rates=(0.01, 0.02),
    hypotheses=[Difference("weight of the word", more="trained", less="untrained", margin=0.1)],
    controls=(Bound("accuracy", "trained", at_least=0.8),),
    remark="Uniform weights are 1/4 to 1/8. It is not near 1: later states may know the word, too.",
)
