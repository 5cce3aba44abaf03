"""Vectors of a read: X, Q, K, V, scores, Z and output, computed anew from the weights."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.attention.biases import TensorBias
from regard.attention.masks import causal
from regard.attention.scores import Cosine, ScaledDot, SoftCap
from regard.errors import UserError
from regard.layers.multihead import MultiHead
from regard.layers.positions.rotary import Rotary
from regard.look import vectors as module
from regard.look.capture import Capture
from regard.look.maps import AttentionMap
from regard.look.record import record
from regard.look.vectors import VECTORS, ReadVectors
from regard.models.cores.config import RecurrentConfig
from tests.helpers import close
from tests.look.toys import (
    BOS,
    CORES,
    SOURCES,
    capture_sources,
    head_formulas,
    model_of,
    output_ids_of,
    source_of,
)


def vectors_of(attention_map: AttentionMap) -> ReadVectors:
    assert attention_map.vectors is not None
    return attention_map.vectors()


def check_walk(heads: MultiHead, x: Tensor, source: Tensor, attention_map: AttentionMap) -> None:
    """Compare every number with the lectures' formulas, written anew: C.6, head by head."""
    vectors = vectors_of(attention_map)
    is_causal = attention_map.kind == "decoder self"
    close(vectors.items, x)
    close(vectors.source, source)
    outputs = []
    for head in range(heads.num_heads):
        found = head_formulas(heads, head, x, source, is_causal=is_causal)
        for letter, name in (("Q", "query"), ("K", "key"), ("V", "value")):
            weight, bias = vectors.projection(name, head)
            close(found[letter], (x if letter == "Q" else source) @ weight.T + bias)
        close(vectors.queries[head], found["Q"])
        close(vectors.keys[head], found["K"])
        close(vectors.values[head], found["V"])
        assert torch.equal(vectors.scores[head].isinf(), found["S"].isinf())
        close(vectors.scores[head].nan_to_num(neginf=0), found["S"].nan_to_num(neginf=0))
        close(attention_map.head(head), found["A"])
        close(vectors.outputs[head], found["Z"])
        outputs.append(found["Z"])
    close(vectors.result, torch.cat(outputs, -1) @ heads.output.weight.T + heads.output.bias)


@torch.no_grad()
def test_the_walk_of_every_read_of_a_search_is_the_lectures():
    model = model_of(CORES["transformer"])
    capture = capture_sources(model, SOURCES[:2], beam=3, n_best=2, vectors=True)
    assert len(capture) == 4
    inputs = {}

    def keep(module: nn.Module, args: tuple) -> None:
        inputs[module] = args[0][0]

    for part in model.modules():
        if isinstance(part, MultiHead):
            part.register_forward_pre_hook(keep)
            part.key.register_forward_pre_hook(keep)
    for number, sample_maps in enumerate(capture):
        target = [BOS, *output_ids_of(sample_maps)]
        model(source_of(SOURCES[number // 2]), source_of(target))  # teacher forcing
        kinds = {attention_map.kind for attention_map in sample_maps.maps}
        assert kinds == {"encoder self", "decoder self", "cross"}
        for attention_map in sample_maps.maps:
            heads = model.get_submodule(attention_map.name.removesuffix(".read"))
            count, num_keys = attention_map.weights.shape[1:]
            check_walk(heads, inputs[heads][:count], inputs[heads.key][:num_keys], attention_map)


@torch.no_grad()
@pytest.mark.parametrize("value_map", [None, 3])
@pytest.mark.parametrize("attention", ["additive", "concat", "general", "dot"])
def test_a_recurrent_decoder_asks_with_its_states(attention, value_map):
    """q_j = W_q s_j, k_i = W_k h_i, v_i = h_i or W_v h_i, with the states that the read gets."""
    model = model_of(RecurrentConfig(width=6, hidden=8, attention=attention, value_map=value_map))
    read, states = model.core.read, []
    read.register_forward_pre_hook(lambda _, args: states.append(args[0]))
    capture = capture_sources(model, SOURCES[:2], beam=2, vectors=True)
    texts = {
        "additive": "v . tanh(W_k h_i + W_q s_j)",
        "concat": "v . tanh(W_k h_i + W_q s_j)",
        "general": "(W_k h_i) . (W_q s_j)",
    }
    for sample_maps in capture:
        (attention_map,) = sample_maps.find("recurrent")
        vectors, weights = vectors_of(attention_map), attention_map.head(0)
        assert vectors.result is None
        (q,), (k,), (v,) = vectors.queries, vectors.keys, vectors.values
        s, h, parts = q, k, vectors.projections
        if attention != "dot":
            s, h = vectors.items, vectors.source
            close(q, s @ parts["query"].T)
            close(k, h @ parts["key"].T)
        recorded = torch.cat([state[:, 0] for state in states])
        assert all(bool((recorded == state).all(-1).any()) for state in s)
        close(v, h if value_map is None else h @ model.core.value_map.weight.T)
        if attention == "concat":
            close(torch.cat((parts["query"], parts["key"]), 1), read.score.weight)
        scores = q @ k.T
        if attention in ("additive", "concat"):
            scores = torch.tanh(q[:, None] + k) @ parts["v"]
            close(parts["v"], read.score.v)
        close(vectors.scores[0], scores)
        if attention != "dot":
            text = vectors.score_text(has_bias=False, query="W_q s_j", key="W_k h_i")
            assert text == texts[attention]
        alpha = scores.softmax(-1)
        close(weights, alpha)
        close(vectors.outputs[0], alpha @ v)


@torch.no_grad()
@pytest.mark.parametrize("core", ["lstm", "rnn"])
def test_a_chain_asks_its_own_past(core):
    capture = capture_sources(model_of(CORES[core]), SOURCES[:2], vectors=True)
    for attention_map in capture[0].find("chain"):
        vectors = vectors_of(attention_map)
        weights = attention_map.head(0)
        asked = weights.sum(-1) > 0
        assert asked.any()
        assert vectors.scores[0][~asked].isinf().all()
        close(vectors.scores[0][asked].softmax(-1), weights[asked])
        close((weights @ vectors.values[0].nan_to_num())[asked], vectors.outputs[0][asked])
        assert vectors.queries[0][asked].isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize(
    ("score", "positions", "bias", "cap"),
    [
        (ScaledDot(), None, None, None),
        (ScaledDot(), Rotary(4), None, None),
        (SoftCap(ScaledDot(), 2.0), None, None, 2.0),
        (ScaledDot(), None, "tensor", None),
        (Cosine(), None, None, None),
    ],
)
def test_scores_have_rotation_cap_and_bias_and_heads_may_share_keys(score, positions, bias, cap):
    bias = None if bias is None else TensorBias(torch.randn(1, 4, 5, 5, dtype=torch.float64))
    layer = MultiHead(
        10, num_heads=4, key_heads=2, head_dim=4, head_value_dim=3, score=score, positions=positions
    )
    layer.read.bias = bias
    layer = layer.double().eval()
    x = torch.randn(2, 5, 10, dtype=torch.float64)
    plain = layer(x, mask=causal())
    with record(layer, vectors=True, dtype=torch.float64) as capture:
        out = layer(x, mask=causal())
    assert torch.equal(plain, out)  # recording changes no bit
    for row in range(2):
        vectors, weights = vectors_of(capture[row].maps[0]), capture[row].maps[0].weights
        k = (x[row] @ layer.key.weight.T + layer.key.bias).unflatten(-1, (2, 4)).transpose(0, 1)
        q = (x[row] @ layer.query.weight.T + layer.query.bias).unflatten(-1, (4, 4)).transpose(0, 1)
        v = (x[row] @ layer.value.weight.T + layer.value.bias).unflatten(-1, (2, 3)).transpose(0, 1)
        if positions is not None:
            q, k = positions.rotate(q), positions.rotate(k)
        if isinstance(score, Cosine):
            q, k = nn.functional.normalize(q, dim=-1), nn.functional.normalize(k, dim=-1)
        assert bool(vectors.formula.mapped) == (positions is not None or isinstance(score, Cosine))
        close(vectors.values, v)
        for head in range(4):
            assert vectors.key_head(head) == head // 2
            factor = 1.0 if isinstance(score, Cosine) else 0.5
            expected = factor * q[head] @ k[head // 2].T
            if cap is not None:
                expected = cap * torch.tanh(expected / cap)
            if bias is not None:
                expected = expected + bias.tensor[0, head]
            expected = expected.masked_fill(torch.ones(5, 5).triu(1) > 0, -torch.inf)
            close(vectors.scores[head].exp(), expected.exp())
            close(weights[head], expected.softmax(-1))
            close(vectors.outputs[head], expected.softmax(-1) @ v[head // 2])
        close(vectors.result, out[row])
        assert (vectors.formula.cap, vectors.formula.beta) == (cap, 1.0)


def test_nothing_is_recorded_without_the_option():
    layer = MultiHead(6, num_heads=2)
    with record(layer) as capture:
        assert not layer._forward_pre_hooks
        assert not layer.key._forward_pre_hooks
        layer(torch.randn(1, 3, 6))
    assert capture[0].maps[0].vectors is None
    assert capture.recording.calls["read"][0].vectors is None
    with record(layer, vectors=True) as capture:
        layer(torch.randn(1, 3, 6))
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in layer.modules())
    assert capture[0].maps[0].vectors is not None


def test_items_of_another_memory_are_not_taken_for_the_source():
    layer = MultiHead(6, num_heads=2).eval()
    first, second = torch.randn(2, 1, 4, 6)
    with record(layer, vectors=True) as capture, torch.no_grad():
        memory = layer.memory(first)
        layer.memory(second)
        layer(second, memory)
    vectors = vectors_of(capture[0].maps[0])
    assert vectors.source is None
    close(vectors.items, second[0])


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    layer = MultiHead(8, num_heads=2)
    with (
        pytest.raises(UserError, match="must fit in 1,000 bytes: record fewer inputs"),
        record(layer, vectors=True),
    ):
        layer(torch.randn(1, 3, 8))


def test_captures_on_disk_have_the_same_vectors(tmp_path):
    capture = capture_sources(model_of(CORES["transformer"]), SOURCES[:2], vectors=True)
    path = capture.save(tmp_path / "x.safetensors", dtype=torch.float64)
    for before, after in zip(capture, Capture.open(path), strict=True):
        for old, new in zip(before.maps, after.maps, strict=True):
            one, other = vectors_of(old), vectors_of(new)
            assert one.formula == other.formula
            assert one.projections.keys() == other.projections.keys()
            for part, tensor in one.projections.items():
                assert torch.equal(tensor, other.projections[part])
            for part in VECTORS:
                assert np.array_equal(getattr(one, part), getattr(other, part), equal_nan=True)
    # By default weights have the precision of the vectors.
    own = Capture.open(capture.save(tmp_path / "y.safetensors"))[0].maps[0]
    assert own.weights.dtype == vectors_of(own).queries.dtype == torch.float32
