"""Linear reads under torch.compile and torch.export; run by tests/contracts/test_transforms.py."""

import pytest
import torch
from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.choices import Proportional
from regard.attention.masks import Mask, causal
from regard.attention.memory import LinearState, Memory
from regard.attention.scores import FeatureMap, Features, RandomFeatures
from tests.helpers import close


class Reader(nn.Module):
    """Linear read of keys and values."""

    def __init__(self, score: Features, mask: Mask | None):
        super().__init__()
        self.score, self.choice, self.mask = score, Proportional(), mask

    def forward(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        memory = keys, values
        return attend(
            query, memory, score=self.score, choice=self.choice, mask=self.mask, kernel="linear"
        )


class Step(nn.Module):
    """Extend a linear state by one pair, then read it."""

    def __init__(self, score: Features):
        super().__init__()
        self.score, self.choice = score, Proportional()

    def forward(
        self, state: LinearState, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, LinearState]:
        state = state.extend(self.score.map_keys(key), value)
        return attend(query, state, score=self.score, choice=self.choice, mask=causal()), state


def make_pairs(time: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(3, 2, time, 5), torch.randn(3, 2, time, 5), torch.randn(3, 2, time, 7)


@pytest.mark.parametrize("mask", [None, causal()], ids=["none", "causal"])
def test_compiled_and_exported_reads_are_the_same(mask: Mask | None) -> None:
    score = FeatureMap()
    module, short, long = Reader(score, mask), make_pairs(150), make_pairs(64 * 19)
    leaves = tuple(tensor.clone().requires_grad_() for tensor in short)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")(*leaves)
    close(compiled, module(*short))
    gradients = torch.autograd.grad(compiled.square().sum(), leaves)
    expected = torch.autograd.grad(module(*leaves).square().sum(), leaves)
    for actual, reference in zip(gradients, expected, strict=True):
        close(actual, reference)
    fixed = torch.export.export(module, short).module()
    close(fixed(*short), module(*short))
    # Any length only if every query attends to the same keys; causal reads by whole chunks.
    time = (
        torch.export.Dim("time", min=2) if mask is None else 64 * torch.export.Dim("chunks", min=2)
    )
    exported = torch.export.export(
        module, make_pairs(192), dynamic_shapes=({2: time},) * 3
    ).module()
    for inputs in (make_pairs(128), long):
        close(exported(*inputs), module(*inputs))


def test_steps_are_compiled_once() -> None:
    score = RandomFeatures(5, 11)
    step, inputs = Step(score), make_pairs(1)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    state = plain = LinearState.of(Memory(*inputs[1:]).map_keys_with(score))
    for repetition in range(3):
        with torch._dynamo.config.patch(error_on_recompile=repetition > 0):
            out, state = compiled(state, *inputs)
        expected, plain = step(plain, *inputs)
        close(out, expected)
