"""Operations in a row, and between two positions, in self-attention and in recurrent layers."""

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
    """Measure the graph that autograd keeps of the last output."""
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
    key="C.4",
    quote="any two positions are one read apart",
    experiment="Operations of the last of 4 to 32 outputs, in the graph of autograd: the longest "
    "chain that must run in a row, the shortest path from the first item, and how many more at 32.",
    sabotage="Each item waits for the output before it, as in a decoder that generates.",
    sabotaged=("self-attention",),
    run=run,
    arms=("self-attention", *CELLS),
    x_name="number of items",
    hypotheses=(
        *(Bound(measure=f"{name}, more", arm="self-attention", at_most=0) for name in NAMES),
        *(Bound(measure=f"{PATH}, more", arm=cell, at_least=28) for cell in CELLS),
    ),
    remark="Both are constant with self-attention; in a recurrent layer each item adds operations, "
    "also with gates. A decoder that generates still waits for each output.",
)
