"""The position-wise feed-forward network against two convolutions over the positions."""

import torch
from torch.nn.functional import conv1d, relu

from regard.lab.protocol import EXACT, Bound, Claim, Numbers, Trial
from regard.lab.tasks import largest
from regard.layers.feedforward import FeedForward


def run(trial: Trial) -> Numbers:
    """Return the difference of the network and convolutions with the same weights."""
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
    return {
        "error": largest(network(items) - outputs),
        "effect of others": largest(outputs[0, 0] - outputs[1, 0]),
    }


CLAIM = Claim(
    key="D.4",
    quote="The feed-forward network equals two 1x1 convolutions.",
    experiment="Outputs of a feed-forward network at 9 positions against those of two convolutions "
    "(torch.nn.functional.conv1d) with its weights, of width 1, or of width 3 with more weights, "
    "and how much the other items change the first output of the convolutions.",
    sabotage="The convolutions of width 1 have width 3.",
    sabotaged=("width 1",),
    run=run,
    arms=("width 1", "width 3"),
    hypotheses=(
        Bound(measure="error", arm="width 1", at_most=EXACT),
        Bound(measure="effect of others", arm="width 1", at_most=EXACT),
    ),
    controls=(
        Bound(measure="error", arm="width 3", at_least=0.1),
        Bound(measure="effect of others", arm="width 3", at_least=0.1),
    ),
)
