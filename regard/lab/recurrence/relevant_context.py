"""Weights of an LSTM-Network on the one earlier word that is relevant to the new one."""

import torch

from regard.data.batches import Batch
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import generator, pairs, token_model, train
from regard.look.record import record
from regard.models.cores.self_attentive import SelfAttentive

KINDS, WORDS = 3, 4


def draw(
    random: torch.Generator, rows: int = 64, *, anew: bool = False
) -> tuple[Batch, torch.Tensor]:
    """Draw words, one of each kind, then each kind with its word; and the position of the word."""
    word = torch.randint(1, WORDS + 1, (rows, KINDS), generator=random)
    kinds = torch.rand(rows, KINDS, generator=random).argsort(-1)  # in order of the first words
    asked = torch.rand(rows, KINDS, generator=random).argsort(-1)  # positions of the first words
    words = word + kinds * WORDS
    word = word[torch.randperm(rows, generator=random)] if anew else word
    again = torch.stack((1 + KINDS * WORDS + kinds, word + kinds * WORDS), -1)
    again = again.take_along_dim(asked.unsqueeze(-1), 1).flatten(1)
    target = torch.cat((words, again), 1)
    return Batch(None, pairs(target, target).target, tuple(range(rows))), asked


def run(trial: Trial) -> Numbers:
    """Return the weight of the word of a kind when its kind comes, and the accuracy."""
    core = SelfAttentive(
        width=16, hidden=32, self_attention_hidden=32, encodes=False, attention="none"
    )
    model = token_model(core, KINDS * (WORDS + 1)).eval()
    if trial.arm == "trained":
        train(model, lambda random: draw(random, anew=trial.sabotage)[0], trial, steps=500)
    batch, asked = draw(generator(trial.seed, 2), 500)
    with record(model) as capture, torch.no_grad():
        logits = model(None, batch.target)
    (name,) = capture.recording.names
    calls = capture.recording[name]
    weight, right = 0.0, 0.0
    for number in range(KINDS):
        at = 1 + KINDS + 2 * number  # of the kind, after BOS and the words
        place = 1 + asked[:, number : number + 1]
        weight += float(calls[at - 1][:, 0].gather(-1, place).double().mean())
        answers = logits[:, at].argmax(-1) == batch.target.items[:, at + 1]
        right += float(answers.double().mean())
    return {"weight of the word": weight / KINDS, "accuracy": right / KINDS}


CLAIM = Claim(
    key="B.12",
    quote="looks at what is relevant to the new word",
    experiment="An LSTM-Network of 32 numbers reads a word of each of 3 kinds (4 words each), then "
    "the names of the kinds, after each of which it must write the word of that kind (500 steps of "
    "64 rows). Measured as it reads a name: the weight of the one earlier word that is relevant.",
    sabotage="In training, the words after the names are those of other rows.",
    sabotaged=("trained",),
    run=run,
    arms=("untrained", "trained"),
    rates=(0.01, 0.02),
    tuned_by="accuracy",
    hypotheses=(
        Difference(measure="weight of the word", more="trained", less="untrained", margin=0.1),
    ),
    controls=(Bound(measure="accuracy", arm="trained", at_least=0.8),),
    remark="Uniform weights are 1 of 4 at the first name to 1 of 8 at the last. Training makes "
    "it larger, not near 1: the states of later words remember earlier ones too.",
)
