"""Operations of the last of 4 to 32 outputs, in the graph of autograd of an untrained layer."""

import torch
from torch.autograd.graph import Node, get_gradient_edge

from regard.lab.protocol import Bound, Claim, Numbers, Trial
from regard.layers.attention import Attention
from regard.layers.recurrent.cells import CELLS

NAMES = ROW, PATH = "operations in a row", "operations from first to last"


def paths(node: Node, known: dict[Node, tuple[float, float]]) -> tuple[float, float]:
    """Return the operations of the longest chain to a node, and of the shortest from the first."""
    if node not in known:
        inputs = [paths(one, known) for one, _ in node.next_functions if one is not None]
        longest, shortest = zip(*inputs, strict=True) if inputs else ((0,), (torch.inf,))
        known[node] = max(longest) + 1, min(shortest) + 1
    return known[node]


def run(trial: Trial) -> Numbers:
    """Return the longest chain, to run in a row, and the shortest from the first item to it."""
    numbers: Numbers = {}
    for count in (4, 8, 16, 32):
        items = [torch.randn(1, 1, 6, requires_grad=True) for _ in range(count)]
        if trial.arm == "self-attention":
            layer = Attention(6, kernel="reference")
            for end in range(1, count if trial.sabotage else 1):
                items[end] = items[end] + layer(torch.cat(items[:end], 1))[:, -1:]
            output = layer(torch.cat(items, 1))[:, -1]
        else:
            cell = CELLS[trial.arm](6, 6)
            output, *_ = state = cell.begin(1)
            for item in items:
                output, *_ = state = cell(cell.project(item[0]), state)
        first = get_gradient_edge(items[0]).node
        row, path = paths(get_gradient_edge(output).node, {first: (0, 0)})
        numbers |= {f"{ROW} at {count}": row, f"{PATH} at {count}": path}
    return numbers | {f"{n}, more": numbers[f"{n} at 32"] - numbers[f"{n} at 4"] for n in NAMES}


CLAIM = Claim(
    entry=("C.4", "any two positions are one read apart"),
    sabotage={"self-attention": "waits for the output before each item, as in generation"},
    arms=("self-attention", *CELLS),
    x_name="number of items",
    hypotheses=(
        *(Bound(f"{name}, more", "self-attention", at_most=0) for name in NAMES),
        *(Bound(f"{PATH}, more", cell, at_least=28) for cell in CELLS),
    ),
    remark="By construction. In generation, self-attention waits for each output, too.",
)
