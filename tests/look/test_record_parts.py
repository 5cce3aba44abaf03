"""Metadata of recorded calls, tiles, random choices, autocast, torch.func."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from regard.attention.attend import attention_weights
from regard.attention.biases import TensorBias
from regard.attention.choices import Choice, Hard
from regard.attention.kernels import gather
from regard.attention.masks import causal, padding
from regard.attention.memory import Memory, RingMemory, StaticMemory
from regard.attention.scores import BareAdditive, Dot, ScaledDot
from regard.layers.multihead import MultiHead
from regard.layers.read import Read
from regard.look.hooks import record_weights
from tests.helpers import close

DRAWING = ["gumbel", "reinforce"]


class Own(nn.Module):
    """Self-attention with five heads."""

    def __init__(self, *, kernel: str = "auto", choice: Choice | None = None):
        super().__init__()
        self.heads = MultiHead(10, num_heads=5, kernel=kernel, choice=choice)

    def forward(self, items: Tensor) -> Tensor:
        return self.heads(items, self.heads.memory(items, padding([7, 4, 6])), mask=causal())


def items_of(num_rows: int = 3) -> Tensor:
    return torch.randn(num_rows, 7, 10)


@pytest.mark.parametrize("tile", [1, 100, 1 << 20])
@pytest.mark.parametrize("score", [ScaledDot(), BareAdditive(10)], ids=["products", "sums"])
def test_tiles_give_the_same_weights(monkeypatch, score, tile):
    read, items = Read(score), items_of()
    bias = TensorBias(torch.randn(7, 7))
    memory = Memory(items, items, padding([7, 4, 6]))
    monkeypatch.setattr("regard.look.hooks._MAX_TILE", tile)
    with record_weights(read) as maps:
        read(items, memory, mask=causal(), bias=bias)
    weights = attention_weights(items, memory, score=score, mask=causal(), bias=bias)
    close(maps[""][0], weights)


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "products"])
def test_a_call_has_its_kernel_masks_and_sizes(kernel):
    model = Own(kernel=kernel)
    with record_weights(model) as maps:
        model(items_of())
    (call,) = maps.calls["heads.read"]
    assert call.facts == {"kernel": kernel, "mask": "(causal() & padding([7, 4, 6]))"}
    assert call.weights.shape == (3, 5, 7, 7)


@pytest.mark.parametrize("enabled", [True, False])
def test_auto_is_recorded_as_the_selected_kernel(enabled):
    read, query = Read(Dot()), torch.randn(2, 3, 5)
    with record_weights(read) as maps, torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        read(query, Memory(query, query))
        read(query[:, :1], Memory(query, query), bias=TensorBias(torch.randn(1, 3)))
    first, second = maps.calls[""]
    assert first.facts["kernel"] == "products"
    assert second.facts["bias"] == "TensorBias(1, 3)"
    autocast = {first.facts.get("autocast"), second.facts.get("autocast")}
    assert autocast == {"bfloat16" if enabled else None}


def test_weights_are_those_of_autocast():
    read, query = Read(ScaledDot(), kernel="reference"), torch.randn(2, 3, 64)
    memory = Memory(torch.randn(2, 5, 64), torch.eye(5).expand(2, 5, 5))
    with record_weights(read) as maps, torch.autocast("cpu", torch.bfloat16):
        out = read(query, memory)  # the weights, rounded to bfloat16 at the end
    (weights,) = maps[""]
    exact = ((query @ memory.keys.mT) / 8).softmax(-1)
    assert out.dtype == torch.bfloat16
    assert torch.equal(weights.bfloat16(), out)
    torch.testing.assert_close(weights, exact)


def test_recording_does_not_fill_the_autocast_cache(monkeypatch):
    """A weight first cast without gradient would have none when the model uses it next."""
    score = BareAdditive(5)
    read, query = Read(score), torch.randn(2, 3, 5)
    monkeypatch.setattr("regard.layers.read.attend", lambda query, *_, **__: query)
    with torch.autocast("cpu", torch.bfloat16):
        with record_weights(read):
            read(query, Memory(query, query))
        (query.tanh() @ score.v).sum().backward()
    assert score.v.grad is not None


@pytest.mark.parametrize("gradient", DRAWING)
@pytest.mark.parametrize("kernel", ["reference", "gather"])
def test_draws_are_those_that_the_read_used(monkeypatch, kernel, gradient):
    monkeypatch.setattr(gather, "TILE", 200)  # several tiles
    read = Read(Dot(), choice=Hard(gradient), kernel=kernel)
    query, keys = torch.randn(3, 5, 7, 2), torch.randn(3, 5, 11, 2)
    memory = Memory(
        keys, torch.eye(11).expand(3, 5, 11, 11), padding([11, 4, 6])
    )  # outputs are the weights
    with torch.no_grad():
        with record_weights(read) as maps:
            out = read(query, memory)
        again = read(query, memory)
    assert torch.equal(maps[""][0], out)
    assert not torch.equal(out, again)


@pytest.mark.parametrize("gradient", DRAWING)
def test_recording_draws_no_number_that_the_model_would_have_drawn(gradient):
    model, items = Own(choice=Hard(gradient)), items_of()
    runs = []
    for context in (nullcontext(), record_weights(model), nullcontext()):
        torch.manual_seed(3)
        with torch.no_grad(), context:
            runs.append([model(items), model(items), torch.get_rng_state()])
    for other in runs[1:]:
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(runs[0], other, strict=True))
    assert not torch.equal(runs[0][0], runs[0][1])


def test_empty_slots_have_no_weight():
    read, new = Read(Dot()), torch.randn(4, 2, 3, 1, 5)
    empty = (
        StaticMemory.empty((2, 3), capacity=6, key_dim=5),
        RingMemory.empty((2, 3), window=6, key_dim=5),
    )
    for start in empty:
        memory = start
        with torch.no_grad(), record_weights(read) as maps:
            for step in new:
                memory = memory.extend(step, step)
                read(step, memory)
        for number, weights in enumerate(maps[""]):
            assert weights.shape == (2, 3, 1, 6)
            assert weights[..., number + 1 :].count_nonzero() == 0
            assert weights[..., : number + 1].count_nonzero() == 6 * (number + 1)
            close(weights.sum(-1), torch.ones(2, 3, 1))


def test_mapped_functions_are_refused():
    model = Own().eval()
    with (
        pytest.raises(ValueError, match=r"inside torch\.func\.vmap cannot be recorded"),
        record_weights(model),
    ):
        torch.func.vmap(model)(items_of().expand(2, 3, 7, 10))


def test_weights_recorded_in_inference_mode_can_be_used_in_training():
    model = Own().eval()
    with torch.inference_mode(), record_weights(model) as maps:
        model(items_of())
    assert not maps["heads.read"][0].is_inference()


def test_recording_works_inside_torch_func_grad():
    model, items = Own().eval(), items_of()
    with record_weights(model) as plain:
        model(items)
    with record_weights(model) as maps:
        without = torch.func.grad(lambda items: model(items).sum())(items)
    assert type(maps["heads.read"][0]) is Tensor
    close(maps["heads.read"][0], plain["heads.read"][0])
    assert not torch._C._functorch.is_functorch_wrapped_tensor(maps["heads.read"][0])
    assert torch.equal(without, torch.func.grad(lambda items: model(items).sum())(items))


@pytest.mark.usefixtures("no_shape_checks")
def test_functions_that_are_compiled_inside_are_recorded():
    """Without shape checks, through which torch.compile cannot trace."""
    heads, items = MultiHead(10, num_heads=5), torch.randn(3, 7, 10)

    def run(items):
        return heads(items, heads.memory(items), mask=causal()) + 1

    with torch.no_grad():
        with record_weights(heads) as plain:
            expected = run(items)
        with record_weights(heads) as maps:
            assert torch.equal(torch.compile(run, backend="eager")(items), expected)
        assert torch.equal(maps["read"][0], plain["read"][0])
        torch.compiler.reset()
        before = torch.compile(run, backend="eager")
        before(items)
        with record_weights(heads) as maps:
            before(items)
        torch.compiler.reset()
    with pytest.raises(ValueError, match=r"hooks do not see a function that torch\.compile has"):
        _ = maps.names
