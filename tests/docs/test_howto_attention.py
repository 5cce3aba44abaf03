"""Examples of attention of one's own: their contracts, their formulas in plain torch, refusals."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard import testing
from regard.attention.kernels import selection
from regard.engines.registry import prepare
from regard.models.parts import core_blocks
from tests.helpers import close

EXAMPLES = Path(__file__).parents[2] / "docs" / "howto" / "examples"
WIDTH, HEADS, TIME = 16, 2, 6
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "NormedAttention": ("own_attention", {"key_heads": 1}),
    "GatedAttention": ("own_attention", {"positions": regard.Rotary(8)}),
    "DifferentialAttention": ("own_attention", {}),
    "LatentAttention": ("own_latent_attention", {"positions": regard.Rotary(4)}),
    "ForgettingAttention": ("forgetting_attention", {}),
    "SelectiveAttention": ("biases_of_queries_and_keys", {}),
}
"""The layers of the examples: their file, and options."""


@pytest.fixture(scope="module")
def examples() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for name in {file for file, _ in PARTS.values()} | {"own_rotation", "own_choice"}:
        names |= runpy.run_path(str(EXAMPLES / f"{name}.py"))
    return names


def make_layer(examples: dict[str, Any], name: str, **options: Any) -> Any:
    torch.manual_seed(3)
    return examples[name](WIDTH, HEADS, **PARTS[name][1] | options).double()


def language_model(**parts: Any) -> regard.Model:
    core = regard.Transformer(
        layers=1, width=WIDTH, heads=HEADS, feedforward=8, encodes=False, **parts
    )
    tokens = regard.TokenReader(regard.embedding_table(8, WIDTH))
    return regard.Model(reader=None, core=core, writer=regard.TokenWriter(tokens))


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.usefixtures("no_shape_checks")
def test_layer_keeps_the_contracts_and_decodes_in_a_model(examples, name: str) -> None:
    testing.check(make_layer(examples, name))
    positions = PARTS[name][1].get("positions", "none")
    model = language_model(attention=examples[name], positions=positions)
    testing.check(model)
    (block,) = core_blocks(model.core, "decoder")[:1]
    assert any(name in operation.detail for operation in block.parts)
    with pytest.raises(
        regard.UserError, match=f"engine 'compiled' .*core.decoder.0.attention.*{name}"
    ):
        prepare("compiled", model)


@pytest.mark.usefixtures("no_shape_checks")
def test_bias_of_a_layer_is_added_to_that_of_positions_in_self_attention_alone(examples) -> None:
    core = regard.Transformer(
        layers=1,
        width=WIDTH,
        heads=HEADS,
        positions="alibi",
        attention=examples["SelectiveAttention"],
    )
    reader, target = (regard.TokenReader(regard.embedding_table(8, WIDTH)) for _ in range(2))
    testing.check(regard.Model(reader=reader, core=core, writer=regard.TokenWriter(target)))
    (encoder,), (decoder,) = core.encoder, core.decoder
    for attention in (encoder.attention, decoder.attention):
        kinds = [type(bias).__name__ for bias in attention.read.bias.children()]
        assert kinds == ["Alibi", "Selection"]
    assert decoder.cross.read.bias is None


@pytest.mark.usefixtures("no_shape_checks")
def test_other_parts_keep_the_contracts(examples) -> None:
    testing.check(examples["XPos"](8))
    testing.check(examples["SinkSoftmax"](2))
    testing.check(examples["ContextualPositions"](8, 4))
    for parts in (
        {"positions": examples["XPos"](8)},
        {"choice": lambda: examples["SinkSoftmax"](2)},
    ):
        testing.check(language_model(**parts))


def heads_of(linear: Any, items: Tensor, heads: int) -> Tensor:
    """Return projected items (batch, head, time, size)."""
    return linear(items).unflatten(-1, (heads, -1)).transpose(1, 2)


def softmax(scores: Tensor) -> Tensor:
    """Return causal weights."""
    time = scores.shape[-1]
    return scores.masked_fill(torch.ones(time, time).triu(1).bool(), -torch.inf).softmax(-1)


def read_with_norms(layer: Any, items: Tensor) -> Tensor:
    queries, keys = heads_of(layer.query, items, HEADS), heads_of(layer.key, items, 1)
    queries, keys = layer.norm(queries), layer.norm(keys)
    return merge(softmax(queries @ keys.mT / 8**0.5) @ heads_of(layer.value, items, 1))


def read_with_gates(layer: Any, items: Tensor) -> Tensor:
    plain = regard.MultiHead(WIDTH, HEADS, positions=layer.positions, output_projection=False)
    plain.double().load_state_dict(layer.state_dict(), strict=False)
    return torch.sigmoid(layer.gate(items)) * plain(items, mask=regard.causal())


def read_differences(layer: Any, items: Tensor) -> Tensor:
    queries, keys = heads_of(layer.query, items, 4), heads_of(layer.key, items, 4)
    values, outs = heads_of(layer.value, items, HEADS), []
    for head in range(HEADS):
        one, two = (softmax(queries[:, i] @ keys[:, i].mT / 2) for i in (2 * head, 2 * head + 1))
        outs.append(layer.norm((one - layer.weight[head] * two) @ values[:, head]))
    return merge(torch.stack(outs, 1))


def latent(layer: Any, items: Tensor) -> Tensor:
    """The expanded form: keys and values of every head."""
    queries = heads_of(layer.query, items, HEADS)
    rotated, own = layer.key(items)[:, None, :, :4], layer.key(items)[:, None, :, 4:]
    keys = torch.cat(
        (layer.positions.rotate(rotated).expand(-1, HEADS, -1, -1), own @ layer.up_key.mT), -1
    )
    queries = torch.cat((layer.positions.rotate(queries[..., :4]), queries[..., 4:]), -1)
    return merge(softmax(queries @ keys.mT / 12**0.5) @ (own @ layer.up_value))


def forgetting(layer: Any, items: Tensor) -> Tensor:
    queries, keys = heads_of(layer.query, items, HEADS), heads_of(layer.key, items, HEADS)
    gates = torch.sigmoid(layer.gate(items)).mT
    scores = queries @ keys.mT / 8**0.5
    for i in range(TIME):
        for j in range(i):
            scores[..., i, j] += gates[..., j + 1 : i + 1].prod(-1).log()
    return merge(softmax(scores) @ heads_of(layer.value, items, HEADS))


def selective(layer: Any, items: Tensor) -> Tensor:
    queries, keys = heads_of(layer.query, items, HEADS), heads_of(layer.key, items, HEADS)
    scores = queries @ keys.mT / 8**0.5
    given, masked = scores[:, 0].relu(), scores.clone()
    for i in range(TIME):
        for j in range(i):
            masked[..., i, j] -= given[:, None, j + 1 : i, j].sum(-1)
    return merge(softmax(masked) @ heads_of(layer.value, items, HEADS))


def merge(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(2)


FORMULAS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "NormedAttention": read_with_norms,
    "GatedAttention": read_with_gates,
    "DifferentialAttention": read_differences,
    "LatentAttention": latent,
    "ForgettingAttention": forgetting,
    "SelectiveAttention": selective,
}


@pytest.mark.parametrize("name", FORMULAS)
@torch.no_grad()
def test_layer_is_its_formula(examples, name: str) -> None:
    layer, items = make_layer(examples, name), torch.randn(2, TIME, WIDTH, dtype=torch.float64)
    expected = layer.output(FORMULAS[name](layer, items))
    close(layer(items, mask=regard.causal()), expected)


@torch.no_grad()
def test_latent_cache_holds_one_vector_for_each_item(examples) -> None:
    layer = make_layer(examples, "LatentAttention")
    memory = layer.memory(torch.randn(2, TIME, WIDTH, dtype=torch.float64))
    assert memory.keys.shape == (2, 1, TIME, 4 + 8)
    assert memory.values.numel() == 0


@torch.no_grad()
def test_scores_of_rotated_queries_and_keys_decay(examples) -> None:
    rotation, plain = examples["XPos"](8, distance=3.0), regard.Rotary(8)
    query, keys = torch.randn(2, 4, 8, dtype=torch.float64)
    scores = rotation.rotate_query(query, 5) @ rotation.rotate_keys(keys, 2).mT
    rotated, others = plain.rotate(query, 5), plain.rotate(keys, 2)
    for i in range(4):
        for j in range(4):
            bases = (torch.arange(0, 8, 2, dtype=torch.float64) / 8 + 0.4) / 1.4
            decay = (bases ** ((i + 5 - j - 2) / 3.0)).repeat(2)
            close(scores[i, j], (rotated[i] * others[j] * decay).sum())


def test_sink_takes_weight_in_fused_kernels(examples) -> None:
    choice = examples["SinkSoftmax"](HEADS).double()
    nn.init.normal_(choice.sink)
    query, keys, values = torch.randn(3, 2, HEADS, TIME, 4, dtype=torch.float64)
    memory = regard.Memory(keys, values)
    scores = (query @ keys.mT / 2).exp().tril()
    weights = scores / (scores.sum(-1, keepdim=True) + choice.sink.exp())
    options = {"choice": choice, "mask": regard.causal()}
    close(regard.attention_weights(query, memory, **options), weights)
    inputs = regard.Read(choice=choice).prepare_inputs(query, memory)
    assert selection.choose("auto", inputs) == "products"
    for kernel in ("auto", "sdpa", "reference"):
        close(regard.attend(query, memory, kernel=kernel, **options), weights @ values)
    score = regard.BareAdditive(4).double()
    with pytest.raises(ValueError, match="SinkSoftmax is no softmax of all keys alone"):
        regard.attend(query, memory, score=score, kernel="additive", **options)


@torch.no_grad()
def test_contextual_positions_count_open_gates(examples) -> None:
    bias = examples["ContextualPositions"](4, 3).double()
    nn.init.normal_(bias.vectors)
    query, keys = torch.randn(2, TIME, 4, dtype=torch.float64)
    actual = bias(query, keys, regard.Positions(TIME, TIME, torch.device("cpu")))
    for i in range(TIME):
        for j in range(i + 1):
            place = min(float((query[i] @ keys[j : i + 1].mT).sigmoid().sum()), 2.0)
            low = int(place)
            high, share = min(low + 1, 2), place - low
            vector = (1 - share) * bias.vectors[low] + share * bias.vectors[high]
            close(actual[i, j], query[i] @ vector)
