"""Memories of random keys (16 numbers, norm 4) and values (32 signs), read by their own keys: by
equality, by softmax of beta q . k / 4, or by linear attention, sum_j (q . k_j) v_j."""

import torch
from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.choices import Soft
from regard.attention.memory import Memory
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import largest, mean


def read(memory: Memory, queries: Tensor, trial: Trial) -> Tensor:
    """Return the value of each query by the read of an arm."""
    if trial.arm == "equality" and not trial.sabotage:
        return memory[queries]
    if trial.arm == "linear":  # the sum of all k v^T is one matrix
        return queries @ (memory.keys.T @ memory.values)
    return attend(queries, memory, choice=Soft(4.0 if trial.arm == "softmax, beta 4" else 1.0))


def run(trial: Trial) -> Numbers:
    """Return the share whose own value is nearest, and the error of 8 pairs after 4 changes."""
    keys = 4 * nn.functional.normalize(torch.randn(1024, 16, dtype=torch.float64))
    values = torch.randn(1024, 32, dtype=torch.float64).sign()
    changed = Memory(keys[:8], values[:8]).delete(keys[:2]).put(keys[4:6], values[8:10])
    numbers = {"error": largest(read(changed, keys[2:8], trial) - values[[2, 3, 8, 9, 6, 7]])}
    for count in (4, 8, 16, 32, 64, 128, 256, 512, 1024):
        memory = Memory(keys[:count], values[:count])
        likeness = read(memory, memory.keys, trial) @ memory.values.T
        numbers[f"share found at {count}"] = mean(likeness.argmax(1) == torch.arange(count))
    return numbers


CLAIM = Claim(
    entry=("A.6", "Retrieval is a hard read whose score is equality of query and key."),
    sabotage={"equality": "reads by softmax"},
    arms=("equality", "softmax", "softmax, beta 4", "linear"),
    x_name="number of pairs",
    remark="Equality is exact by construction. Softmax holds more pairs with a larger beta; linear "
    "attention about as many as a key has numbers.",
    hypotheses=(
        Bound("error", "equality", at_most=0),
        Difference("share found at 256", more="softmax", less="linear", margin=0.3),
    ),
    controls=(Bound("share found at 4", "linear", at_least=0.75),),
)
