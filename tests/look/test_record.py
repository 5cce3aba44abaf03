"""Recording: weights equal those of the reads; nothing the model computes changes."""

import pytest
import torch
from torch import nn

from regard.attention.masks import causal, padding
from regard.attention.memory import Memory
from regard.attention.scores import General
from regard.layers.multihead import MultiHead
from regard.layers.read import Read
from regard.look.hooks import record_weights
from tests.helpers import close

KERNELS = ["reference", "sdpa", "auto"]


class TwoReads(nn.Module):
    """Self-attention with three heads, then a read of a memory with one head."""

    def __init__(self, *, kernel: str = "auto"):
        super().__init__()
        self.own = MultiHead(7, num_heads=3, kernel=kernel)
        self.drop = nn.Dropout(0.3)
        self.other = Read(General(7, 5), kernel=kernel)

    def forward(self, items: torch.Tensor, memory: Memory) -> torch.Tensor:
        items = self.own(items, self.own.memory(items, padding([11, 4])), mask=causal())
        return self.other(self.drop(items), memory)


def inputs() -> tuple[torch.Tensor, Memory]:
    memory = Memory(torch.randn(2, 13, 5), torch.randn(2, 13, 3), padding([13, 6]))
    return torch.randn(2, 11, 7), memory


def train_once(model: nn.Module, items: torch.Tensor, memory: Memory) -> list[torch.Tensor]:
    """Return output, gradients and generator state of a training step with a fixed seed."""
    torch.manual_seed(3)
    model.zero_grad()
    out = model(items, memory)
    out.square().sum().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters()), torch.get_rng_state()]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "autocast"])
def test_recording_changes_no_output_no_gradient_and_no_random_number(kernel, mixed):
    model, (items, memory) = TwoReads(kernel=kernel), inputs()
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        without = train_once(model, items, memory)
        with record_weights(model):
            during = train_once(model, items, memory)
        after = train_once(model, items, memory)
    assert all(torch.equal(a, b) for a, b in zip(without, during, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(without, after, strict=True))


@pytest.mark.parametrize("kernel", KERNELS)
def test_weights_are_those_of_the_read(kernel):
    model, (items, memory) = TwoReads(kernel=kernel).eval(), inputs()
    with record_weights(model) as maps:
        out = model(items, memory)
    assert maps.names == ("own.read", "other")
    (own,), (other,) = maps["own.read"], maps["other"]
    assert own.shape == (2, 3, 11, 11)
    assert other.shape == (2, 11, 13)
    assert own.triu(1).count_nonzero() == 0
    assert own[1, ..., 4:].count_nonzero() == 0
    assert other[1, :, 6:].count_nonzero() == 0
    close(other @ memory.values, out)


def test_weights_are_kept_in_float32_on_the_cpu_without_gradient(device):
    read = Read(General(7, 5)).to(device, torch.bfloat16)
    query, memory = inputs()
    query, keys, values = (
        x.to(device, torch.bfloat16) for x in (query, memory.keys, memory.values)
    )
    with record_weights(read) as maps:
        read(query, Memory(keys, values))
    (weights,) = maps[""]
    assert weights.dtype == torch.float32
    assert weights.device.type == "cpu"
    assert not weights.requires_grad
    close(weights.sum(-1).to(torch.bfloat16), torch.ones(2, 11))


def test_nothing_is_left_on_the_model_when_it_fails():
    model = TwoReads()
    model.other = None
    with pytest.raises(TypeError), record_weights(model) as maps:
        model(*inputs())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert len(maps["own.read"]) == 1


def test_recordings_may_be_nested():
    model, (items, memory) = TwoReads().eval(), inputs()
    with record_weights(model) as outer:
        with record_weights(model, only=["other"]) as inner:
            model(items, memory)
        model(items, memory)
    assert [len(outer["other"]), len(inner["other"])] == [2, 1]
    assert torch.equal(outer["other"][0], inner["other"][0])


@pytest.mark.parametrize(
    "only",
    ["other", ["other"], {"other"}, lambda name: "own" not in name],
    ids=["text", "list", "set", "function"],
)
def test_only_chooses_the_reads(only):
    model, (items, memory) = TwoReads(), inputs()
    with record_weights(model, only=only) as maps:
        model(items, memory)
    assert maps.names == tuple(maps) == ("other",)


@pytest.mark.parametrize("only", [["other", "own"], lambda name: False], ids=["names", "function"])
def test_only_is_refused_when_it_names_no_read(only):
    message = r"only must select some of own\.read, other, got"
    with pytest.raises(ValueError, match=message), record_weights(TwoReads(), only=only):
        pass


def test_model_without_reads_is_refused():
    with pytest.raises(ValueError, match=r"Linear has no Read"), record_weights(nn.Linear(2, 3)):
        pass


def test_compiled_model_is_refused():
    whole = torch.compile(TwoReads(), backend="eager")
    part = TwoReads()
    part.own.compile(backend="eager")
    for model, name in ((whole, "the model"), (part, "own")):
        with (
            pytest.raises(ValueError, match=rf"compiled modules cannot be recorded, but {name} is"),
            record_weights(model),
        ):
            pass
