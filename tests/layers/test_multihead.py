"""Multi-head attention: equality with single heads and with torch's."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from regard.attention.attend import attend
from regard.attention.biases import Alibi, TensorBias
from regard.attention.choices import Soft, TopK
from regard.attention.masks import causal, padding, window
from regard.attention.memory import Memory, StaticMemory
from regard.attention.scores import (
    Additive,
    BareAdditive,
    Concat,
    Cosine,
    Dot,
    General,
    Location,
    ScaledDot,
    SoftCap,
)
from regard.layers.multihead import MultiHead
from regard.layers.norms import RMSNorm
from regard.layers.positions.rotary import Rotary
from regard.layers.read import Read
from regard.layers.written import WrittenAttention
from regard.look.hooks import record_weights
from tests.helpers import close


def make_odd_sizes(**changes) -> MultiHead:
    sizes = {
        "num_heads": 3,
        "source_dim": 7,
        "head_dim": 2,
        "head_value_dim": 4,
        "output_dim": 13,
    } | changes
    return MultiHead(5, **sizes).double()


PARTS = {"score": Dot(), "choice": Soft(3.0), "bias": Alibi(3)}


@pytest.mark.parametrize("name", PARTS)
def test_part_that_replaces_one_of_the_read_is_that_of_the_argument_of_its_name(name):
    expected = MultiHead(6, 3, **{name: PARTS[name]})
    layer = MultiHead(6, 3)
    items = torch.randn(2, 5, 6)
    layer.load_state_dict(expected.state_dict())
    setattr(layer.read, name, PARTS[name])
    close(layer(items), expected(items))
    query, keys, values = torch.randn(3, 2, 3, 5, 2)
    read = Read(**{name: PARTS[name]})
    close(read(query, Memory(keys, values)), attend(query, (keys, values), **{name: PARTS[name]}))


def test_multihead_is_single_heads_concatenated_and_projected():
    module = make_odd_sizes()
    queries, source = torch.randn(2, 3, 5).double(), torch.randn(2, 11, 7).double()
    heads = []
    for h in range(3):
        keys_rows, values_rows = slice(2 * h, 2 * h + 2), slice(4 * h, 4 * h + 4)
        query = queries @ module.query.weight[keys_rows].t() + module.query.bias[keys_rows]
        keys = source @ module.key.weight[keys_rows].t() + module.key.bias[keys_rows]
        values = source @ module.value.weight[values_rows].t() + module.value.bias[values_rows]
        heads.append(attend(query, (keys, values), kernel="reference"))
    expected = torch.cat(heads, -1) @ module.output.weight.t() + module.output.bias
    close(module(queries, module.memory(source)), expected)


def test_multihead_equals_torchs():
    ours = MultiHead(15, num_heads=3).double()
    theirs = nn.MultiheadAttention(15, 3, batch_first=True).double()
    with torch.no_grad():
        parts = (ours.query, ours.key, ours.value)
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.load_state_dict(ours.output.state_dict())
    items, lengths = torch.randn(2, 7, 15).double(), torch.tensor([7, 4])
    absent = torch.arange(7) >= lengths[:, None]
    future = ~torch.ones(7, 7, dtype=torch.bool).tril()
    expected = theirs(
        items, items, items, key_padding_mask=absent, attn_mask=future, need_weights=False
    )[0]
    close(ours(items, ours.memory(items, padding(lengths)), mask=causal()), expected)


@pytest.mark.parametrize("mask", [None, causal()], ids=["none", "causal"])
@pytest.mark.parametrize("time", [1, 2, 128, 129])
def test_short_reads_equal_prepared_ones_bit_for_bit(monkeypatch, time, mask):
    layer = MultiHead(12, num_heads=3, head_value_dim=5, choice=Soft(0.7))
    items, results = torch.randn(2, time, 12, requires_grad=True), []
    for is_short in (True, False):
        if not is_short:
            assert (layer._short_beta(items, mask) == 0.7) == (1 < time <= 128)
            monkeypatch.setattr(layer, "_short_beta", lambda *_: None)
        with torch.no_grad():
            out = layer(items, mask=mask)
        total = layer(items, mask=mask).sin().sum()
        results.append([out, *torch.autograd.grad(total, [items, *layer.parameters()])])
    for actual, expected in zip(*results, strict=True):
        assert torch.equal(actual, expected)


def test_reads_of_one_item_equal_prepared_ones_bit_for_bit(monkeypatch):
    layer = MultiHead(12, num_heads=3, head_value_dim=5, choice=Soft(0.7))
    item, memory, results = torch.randn(2, 1, 12), layer.memory(torch.randn(2, 7, 12)), []
    weights = [*layer.query.parameters(), *layer.output.parameters()]
    for is_short in (True, False):
        if not is_short:
            assert layer._short_beta(item, None, memory) == 0.7
            monkeypatch.setattr(layer, "_short_beta", lambda *_: None)
        out = layer(item, memory)
        results.append([out, *torch.autograd.grad(out.sin().sum(), weights)])
    for actual, expected in zip(*results, strict=True):
        assert torch.equal(actual, expected)


def test_other_memories_of_one_item_take_the_general_read():
    layer, item = MultiHead(12, 3), torch.randn(2, 1, 12)
    sources = torch.randn(2, 7, 12)
    memory = layer.memory(sources)
    assert layer._short_beta(item, None, memory) == 1
    for other in (
        layer.memory(sources, padding([7, 3])),
        layer.memory(sources[:1]),
        layer.memory(sources[:, :0]),
        Memory(memory.keys, memory.values),
        StaticMemory.of(memory, capacity=9),
    ):
        assert layer._short_beta(item, None, other) is None
    assert layer._short_beta(item, causal(), memory) is None
    assert layer._short_beta(sources, None, memory) is None


class OwnRead(Read):
    """Read of a user."""


OTHER_PARTS = {
    "grouped": {"key_heads": 1},
    "positions": {"positions": Rotary(4)},
    "bias": {"bias": Alibi(3)},
    "score": {"score": Dot()},
    "choice": {"choice": TopK(2)},
    "beta": {"choice": Soft(torch.tensor(0.7))},
    "kernel": {"kernel": "reference"},
}


@pytest.mark.parametrize("name", OTHER_PARTS)
def test_other_parts_take_the_general_read(name):
    layer, items = MultiHead(12, 3, **OTHER_PARTS[name]), torch.randn(2, 5, 12)
    assert layer._short_beta(items, None) is None
    reads = []
    layer.read.register_forward_hook(lambda *_: reads.append(1))
    layer(items)
    assert reads


def test_own_reads_hooks_and_masks_are_used():
    layer, items = MultiHead(12, 3), torch.randn(2, 5, 12)
    assert layer._short_beta(items, None) == 1
    assert layer._short_beta(items, padding([5, 3])) is None
    assert layer._short_beta(items.double(), None) is None
    handle = layer.read.register_forward_hook(lambda *_: torch.zeros(2, 3, 5, 4))
    close(layer(items), layer.output.bias.expand(2, 5, 12))
    handle.remove()
    layer.read = OwnRead(ScaledDot())
    assert layer._short_beta(items, None) is None


def test_multihead_equals_torchs_with_sources_of_other_sizes():
    ours = MultiHead(15, num_heads=3, source_dim=7, value_dim=11).double()
    theirs = nn.MultiheadAttention(15, 3, kdim=7, vdim=11, batch_first=True).double()
    with torch.no_grad():
        for name, part in (("q", ours.query), ("k", ours.key), ("v", ours.value)):
            getattr(theirs, f"{name}_proj_weight").copy_(part.weight)
        theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key.bias, ours.value.bias]))
        theirs.out_proj.load_state_dict(ours.output.state_dict())
    queries, keys, values = (torch.randn(2, n, d).double() for n, d in ((3, 15), (5, 7), (5, 11)))
    expected = theirs(queries, keys, values, need_weights=False)[0]
    close(ours(queries, ours.memory(keys, values=values)), expected)


SCORES = {
    "scaled": (ScaledDot, None),
    "dot": (Dot, None),
    "cosine": (Cosine, None),
    "general": (lambda: General(2, 2, 5), None),
    "additive": (lambda: Additive(2, 2, 5), None),
    "capped": (lambda: SoftCap(ScaledDot(), 0.3), None),
    "general by head": (
        lambda: General(2, 2, 5, num_heads=6, key_heads=3),
        lambda: General(2, 2, 5),
    ),
    "additive by head": (
        lambda: Additive(2, 2, 5, num_heads=6, key_heads=3, normed=True),
        lambda: Additive(2, 2, 5, normed=True),
    ),
    "bare by head": (lambda: BareAdditive(2, num_heads=6), lambda: BareAdditive(2)),
    "location by head": (lambda: Location(2, 13, num_heads=6), lambda: Location(2, 13)),
    "capped by head": (
        lambda: SoftCap(BareAdditive(2, num_heads=6), 0.3),
        lambda: SoftCap(BareAdditive(2), 0.3),
    ),
    "general of two sizes": (
        lambda: General(2, 3, 5, num_heads=6, key_heads=3),
        lambda: General(2, 3, 5),
    ),
    "additive of two sizes": (lambda: Additive(2, 3, 5), None),
    "concat of two sizes": (lambda: Concat(2, 3, 5), None),
}


def make_grouped(name: str, **changes) -> MultiHead:
    """Return six heads with a score of this name, which share three heads of keys."""
    size, score = 3 if name.endswith("two sizes") else 2, SCORES[name][0]()
    heads = {"num_heads": 6, "key_heads": 3, "head_key_dim": size, "score": score}
    return make_odd_sizes(**heads | changes).double()


@pytest.mark.parametrize("name", SCORES)
def test_heads_of_any_score_are_single_reads_that_share_grouped_keys(name):
    make_single = SCORES[name][1]
    bias = TensorBias(torch.randn(2, 6, 4, 11).double())
    choice = Soft(torch.linspace(0.5, 2, 6).double().view(6, 1, 1))
    module = make_grouped(name, choice=choice, bias=bias)
    queries, source = torch.randn(2, 4, 5).double(), torch.randn(2, 11, 7).double()
    query = module.query(queries).unflatten(-1, (6, 2))
    keys = module.key(source).unflatten(-1, (3, -1))
    values = module.value(source).unflatten(-1, (3, 4))
    heads = []
    for h in range(6):
        g, single = h // 2, module.read.score
        if make_single is not None:
            single = make_single().double()
            single.load_state_dict(
                {n: p[h * len(p) // 6] for n, p in module.read.score.state_dict().items()}
            )
        scores = single(query[:, :, h], keys[:, :, g]) + bias.tensor[:, h]
        scores = scores.masked_fill(torch.ones(4, 11).tril(7) == 0, float("-inf"))
        heads.append((scores * choice.beta[h]).softmax(-1) @ values[:, :, g])
    close(
        module(queries, module.memory(source), mask=causal()), module.output(torch.cat(heads, -1))
    )


@pytest.mark.parametrize(
    "score", [None, Dot(), ScaledDot(), Cosine(), BareAdditive(2), SoftCap(Dot(), 3.0)], ids=str
)
def test_scores_of_equal_sizes_refuse_others(score):
    name = "ScaledDot" if score is None else type(score).__name__
    with pytest.raises(
        ValueError,
        match=f"head_key_dim must be head_dim=2 with the score {name}, got 3",
    ):
        make_odd_sizes(head_key_dim=3, score=score)


def test_without_output_projection_the_heads_are_concatenated():
    module = make_odd_sizes(output_projection=False, output_dim=None, projection_bias=False)
    assert [name for name, _ in module.named_parameters()] == [
        "query.weight",
        "key.weight",
        "value.weight",
    ]
    queries, source = torch.randn(2, 3, 5).double(), torch.randn(2, 11, 7).double()
    heads = []
    for h in range(3):
        query, keys = (
            x @ p.weight[2 * h : 2 * h + 2].t()
            for x, p in ((queries, module.query), (source, module.key))
        )
        weights = (query @ keys.transpose(1, 2) / 2**0.5).softmax(-1)
        heads.append(weights @ (source @ module.value.weight[4 * h : 4 * h + 4].t()))
    close(module(queries, source), torch.cat(heads, -1))  # (2, 3, l p_v)
    with pytest.raises(ValueError, match=r"output_dim must be 12 without W_o, got 13"):
        make_odd_sizes(output_projection=False)


def test_source_is_projected_to_a_memory_with_its_mask():
    module = make_odd_sizes()
    queries = torch.randn(2, 3, 5).double()
    source = torch.randn(2, 11, 7).double()
    mask = padding([11, 4])
    assert torch.equal(
        module(queries, source, memory_mask=mask), module(queries, module.memory(source, mask))
    )


def test_multi_query_memory_is_as_small_as_one_head():
    heads = MultiHead(12, num_heads=4, key_heads=1)
    assert (heads.key.weight.shape, heads.value.weight.shape) == ((3, 12), (3, 12))


def test_width_need_not_be_a_multiple_of_heads():
    assert MultiHead(5, num_heads=3).query.weight.shape == (6, 5)


@pytest.mark.parametrize("name", SCORES)
def test_growing_memory_equals_full_attention(name):
    heads = make_grouped(name, source_dim=5)
    items = torch.randn(2, 6, 5).double()
    output = heads(items, heads.memory(items), mask=causal())
    memory = heads.memory(items[:, :1])
    for i in range(1, 6):
        memory = heads.extend(memory, items[:, i : i + 1])
        close(heads(items[:, i : i + 1], memory, mask=causal())[:, 0], output[:, i])


def test_growing_memory_takes_separate_values():
    heads = make_odd_sizes(value_dim=11)
    keys, values = torch.randn(2, 6, 7).double(), torch.randn(2, 6, 11).double()
    whole = heads.memory(keys, values=values)
    grown = heads.memory(keys[:, :2], values=values[:, :2])
    grown = heads.extend(grown, keys[:, 2:], values=values[:, 2:])
    close(grown.values, whole.values)
    close(grown.keys, whole.keys)


def test_projections_without_bias_have_none():
    assert [
        name
        for name, _ in make_odd_sizes(projection_bias=False).named_parameters()
        if "bias" in name
    ] == []


@pytest.mark.usefixtures("no_shape_checks")
def test_unknown_gates_and_decays_are_refused():
    wrong: Any = "heads"
    with pytest.raises(ValueError, match="gate must be none, head or element, got 'heads'"):
        MultiHead(6, num_heads=6, gate=wrong)
    with pytest.raises(ValueError, match="registers must be at least 0, got -1"):
        MultiHead(6, num_heads=6, registers=-1)
    with pytest.raises(ValueError, match="decay must be item, head or none, got 'heads'"):
        WrittenAttention(6, num_heads=6, decay=wrong)


def test_multihead_rejects_invalid_heads():
    with pytest.raises(ValueError, match="num_heads must be at least 1, got 0"):
        MultiHead(5, num_heads=0)
    with pytest.raises(ValueError, match="key_heads must divide num_heads=6, got 4"):
        MultiHead(5, num_heads=6, key_heads=4)
    with pytest.raises(
        ValueError, match=r"score must have num_heads=3, got BareAdditive\(v: \(2, 2\)\)"
    ):
        MultiHead(5, num_heads=3, score=BareAdditive(2, num_heads=2))


def test_multihead_rejects_sizes_below_one():
    for name in (
        "source_dim",
        "value_dim",
        "head_dim",
        "head_key_dim",
        "head_value_dim",
        "output_dim",
    ):
        with pytest.raises(ValueError, match=f"^{name} must be at least 1, got 0"):
            make_odd_sizes(**{name: 0})


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("kind", ["nested", "sparse"])
def test_multihead_refuses_nested_and_sparse_items(kind):
    layer, items = MultiHead(5, num_heads=1), torch.randn(2, 3, 5)
    given = items.to_sparse()
    if kind == "nested":
        given = torch.nested.nested_tensor(list(items), layout=torch.jagged)
    values = partial(layer.memory, items)
    for read in (layer, layer.memory, partial(layer, items), lambda given: values(values=given)):
        with pytest.raises(TypeError, match="must be neither nested nor sparse"):
            read(given)


@pytest.mark.usefixtures("no_shape_checks")
def test_bias_of_the_scores_is_not_that_of_the_projections():
    with pytest.raises(TypeError, match="bias must be a Bias or a tensor, got bool"):
        MultiHead(5, num_heads=3, bias=False)


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("shape", [(3, 5), (2, 2, 3, 5)])
def test_items_without_a_batch_raise(shape):
    module, items = make_odd_sizes(source_dim=5), torch.randn(shape).double()
    memory = module.memory(torch.randn(2, 4, 5).double())
    for read in (
        lambda: module(items, memory),
        lambda: module.memory(items),
        lambda: module(items),
    ):
        with pytest.raises(ValueError, match=r"values to unpack"):
            read()


@pytest.mark.parametrize("count", [1, 5, 40])
def test_norms_of_queries_and_keys_apply_to_each_head(count):
    """Of few and of many items: they take other paths without norms."""
    layer = MultiHead(12, 4, key_heads=2, qk_norm=partial(RMSNorm, eps=0.1)).eval()
    plain = MultiHead(12, 4, key_heads=2).eval()
    for norm in (layer.query_norm, layer.key_norm):
        nn.init.uniform_(norm.weight)
    items = torch.randn(2, count, 12)

    def heads(linear: nn.Module, norm: nn.Module) -> torch.Tensor:
        vectors = linear(items).unflatten(-1, (-1, 3)).transpose(1, 2)
        return vectors / (vectors.square().mean(-1, keepdim=True) + 0.1).sqrt() * norm.weight

    with torch.no_grad():
        query, key = heads(layer.query, layer.query_norm), heads(layer.key, layer.key_norm)
        values = layer.value(items).unflatten(-1, (-1, 3)).transpose(1, 2)
        key, values = (part.repeat_interleave(2, 1) for part in (key, values))
        weights = (query @ key.mT / 3**0.5).softmax(-1)
        expected = layer.output((weights @ values).transpose(1, 2).flatten(2))
        torch.testing.assert_close(layer(items), expected)
        torch.testing.assert_close(layer(items, layer.memory(items)), expected)
        terms = layer.decompose(items, layer.memory(items)).sum((1, 3)) + layer.output.bias
        torch.testing.assert_close(terms, expected)
        plain.load_state_dict(layer.state_dict(), strict=False)
        assert (plain(items) - expected).abs().max() > 1e-3 or count == 1


@pytest.mark.parametrize("gate", ["none", "head", "element"])
@pytest.mark.parametrize("kernel", ["auto", "sdpa", "reference"])
def test_gates_multiply_heads_and_registers_are_keys_of_every_query(gate, kernel):
    layer = MultiHead(12, 4, key_heads=2, gate=gate, registers=3, kernel=kernel, head_value_dim=5,
                      qk_norm=RMSNorm, positions=Rotary(2)).double().eval()  # fmt: skip
    with torch.no_grad():
        layer.register_values.normal_()
        items, mask = torch.randn(2, 7, 12).double(), window(2)
        memory = layer.memory(items)
        queries = layer.positions.rotate(layer.project(items, None)[0])
        pairs = layer.key_norm(layer.register_keys), layer.register_values
        pairs = [tensor.expand(2, -1, -1, -1) for tensor in pairs]
        keys, values = (
            torch.cat((memory.keys, pairs[0]), 2),
            torch.cat((memory.values, pairs[1]), 2),
        )
        keys, values = keys.repeat_interleave(2, 1), values.repeat_interleave(2, 1)
        places = torch.arange(10)
        near = (places[:7, None] - places).clamp(min=-1)
        allowed = ((near >= 0) & (near < 2)) | (places >= 7)
        scores = (queries @ keys.mT / 3**0.5).masked_fill(~allowed, -math.inf)
        heads = scores.softmax(-1) @ values
        if gate != "none":
            gates = layer.output_gate(items).sigmoid().unflatten(-1, (4, -1)).transpose(1, 2)
            assert gates.shape[-1] == (1 if gate == "head" else 5)
            heads = heads * gates
        expected = layer.output(heads.transpose(1, 2).flatten(2))
        close(layer(items, mask=mask), expected)
        first = layer.extend(layer.memory(items[:, :5]), items[:, 5:])
        close(layer(items[:, 5:], first, mask=mask), expected[:, 5:])
        terms = layer.decompose(items, memory)
        close(terms.sum((1, 3)) + layer.output.bias, layer(items, memory))
        with record_weights(layer) as recording:
            close(layer(items, mask=mask), expected)
        (weights,) = recording["read"]
        assert weights.shape == (2, 4, 7, 7)
        close(
            torch.as_tensor(weights).double().clamp(min=0),
            scores.softmax(-1)[..., :7].float().double(),
        )
    parts = [layer.register_keys, layer.register_values]
    parts += [] if gate == "none" else [layer.output_gate.weight]
    assert all(torch.autograd.grad(layer(items).square().sum(), part)[0].any() for part in parts)
