"""Operations of all products of an untrained RNN (16 units), with dot attention or without."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from regard.attention.masks import Padded
from regard.lab.protocol import Bound, Claim, Numbers, Trial
from regard.lab.tasks import generator
from regard.models.cores.recurrent import Recurrent

SIZE = 16


def run(trial: Trial) -> Numbers:
    """Return counts at equal lengths, and the coefficient of m t at random lengths m and t."""
    sizes = {"width": SIZE, "hidden": SIZE, "directions": 1}
    attention = "none" if trial.sabotage else trial.arm
    core = Recurrent(cell="rnn", **sizes, attention=attention, kernel="reference")

    def count(m: int, t: int) -> int:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            source = Padded(torch.zeros(1, m, SIZE), torch.tensor([m]))
            core(torch.zeros(1, t, SIZE), core.start(source))
        return counter.get_total_flops()

    numbers: Numbers = {f"operations at {n}": count(n, n) for n in (32, 64, 96, 128, 192, 256)}
    m, t, p, q = torch.randint(2, 50, (4,), generator=generator(trial.seed)).tolist()
    mixed = count(m + p, t + q) - count(m + p, t) - count(m, t + q) + count(m, t)
    numbers["coefficient of m t"] = mixed / (p * q)
    return numbers | {"ratio 256 to 128": count(256, 256) / count(128, 128)}


CLAIM = Claim(
    entry=("B.9", "O(m + t) without attention, O(m t) with attention"),
    sabotage={"dot": "has no attention"},
    arms=("none", "dot"),
    x_name="source and target positions, m = t",
    hypotheses=(
        Bound("coefficient of m t", "none", at_least=0, at_most=0),
        Bound("coefficient of m t", "dot", at_least=4 * SIZE, at_most=4 * SIZE),
        Bound("ratio 256 to 128", "none", at_most=2.1),
        Bound("ratio 256 to 128", "dot", at_least=3),
    ),
    remark="By construction: each pair of positions costs 32 operations for its score and 32 for "
    "its value. In time, on short sequences the steps of the RNN take longer than its reads.",
)
