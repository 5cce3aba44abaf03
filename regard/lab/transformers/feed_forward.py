"""A feed-forward network (random weights) at 9 positions against two convolutions with its matrices
as kernels of width 1, or as the middle of random kernels of width 3."""

import torch
from torch.nn.functional import conv1d, relu

from regard.lab.protocol import EXACT, Bound, Claim, Numbers, Trial
from regard.lab.tasks import largest
from regard.layers.feedforward import FeedForward

MEASURES = ("error", "effect of others")


def run(trial: Trial) -> Numbers:
    """Return the largest difference, and the effect of other items on the first output."""
    width = 3 if trial.arm == "width 3" or trial.sabotage else 1
    network = FeedForward(6, 10).double().requires_grad_(False)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter)
    items = torch.randn(2, 9, 6, dtype=torch.float64)
    items[1, 0] = items[0, 0]  # two sequences with the same first item
    hidden = items.transpose(1, 2)
    for layer in (network.expand, network.contract):
        kernel = torch.randn(*layer.weight.shape, width, dtype=torch.float64)
        kernel[..., width // 2] = layer.weight
        hidden = conv1d(hidden, kernel, layer.bias, padding="same")
        hidden = relu(hidden) if layer is network.expand else hidden
    outputs = hidden.transpose(1, 2)
    error, effect = largest(network(items) - outputs), largest(outputs[0, 0] - outputs[1, 0])
    return {"error": error, "effect of others": effect}


CLAIM = Claim(
    entry=("D.4", "The feed-forward network equals two 1x1 convolutions."),
    sabotage={"width 1": "has width 3"},
    arms=("width 1", "width 3"),
    hypotheses=[Bound(name, "width 1", at_most=EXACT) for name in MEASURES],
    controls=[Bound(name, "width 3", at_least=0.1) for name in MEASURES],
    remark="By definition: this tests the code, not the statement.",
)
