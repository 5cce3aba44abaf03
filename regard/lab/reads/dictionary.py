"""A memory as a dictionary, and how many pairs softmax and linear attention find in one."""

import torch
from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.choices import Soft
from regard.attention.memory import Memory
from regard.lab.protocol import Bound, Claim, Difference, Numbers, Trial
from regard.lab.tasks import largest


def read(memory: Memory, queries: Tensor, trial: Trial) -> Tensor:
    """Return the value of each query by the read of an arm."""
    if trial.arm == "equality" and not trial.sabotage:
        return memory[queries]
    if trial.arm == "linear":  # the sum of all k v^T is one matrix
        return queries @ (memory.keys.T @ memory.values)
    return attend(queries, memory, choice=Soft(4.0 if trial.arm == "softmax, beta 4" else 1.0))


def run(trial: Trial) -> Numbers:
    """Return the error after changes of a memory, and the share of pairs found in larger ones."""
    keys = 4 * nn.functional.normalize(torch.randn(1024, 16, dtype=torch.float64))
    values = torch.randn(1024, 32, dtype=torch.float64).sign()
    changed = Memory(keys[:8], values[:8]).delete(keys[:2]).put(keys[4:6], values[8:10])
    numbers = {"error": largest(read(changed, keys[2:8], trial) - values[[2, 3, 8, 9, 6, 7]])}
    for count in (4, 8, 16, 32, 64, 128, 256, 512, 1024):
        memory = Memory(keys[:count], values[:count])
        likeness = read(memory, memory.keys, trial) @ memory.values.T
        found = (likeness.argmax(1) == torch.arange(count)).double()
        numbers[f"share found at {count}"] = float(found.mean())
    return numbers


CLAIM = Claim(
    key="A.6",
    quote="Retrieval is a hard read whose score is equality of query and key.",
    experiment="Error of the values read by key after changes of 8 pairs; then, of up to 1,024 "
    "random keys of 16 numbers and one norm, the share whose value is the nearest to the output.",
    sabotage="The arm of equality reads by softmax.",
    sabotaged=("equality",),
    run=run,
    arms=("equality", "softmax", "softmax, beta 4", "linear"),
    x_name="number of pairs",
    remark="Softmax holds more pairs with a larger beta; linear attention about the size of a key.",
    hypotheses=(
        Bound(measure="error", arm="equality", at_most=0),
        Difference(measure="share found at 256", more="softmax", less="linear", margin=0.3),
    ),
    controls=(Bound(measure="share found at 4", arm="linear", at_least=0.75),),
)
