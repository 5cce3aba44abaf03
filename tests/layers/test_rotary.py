"""Rotary positional encoding: complex rotations, distance alone, scaling, memories and refusals."""

import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from regard.attention.attend import attend
from regard.attention.masks import causal, window
from regard.attention.memory import Memory, QuantizedMemory, RingMemory, SlidingMemory, StaticMemory
from regard.attention.scores import (
    Additive,
    BareAdditive,
    Cosine,
    Dot,
    FeatureMap,
    General,
    Location,
    ScaledDot,
    Score,
    SoftCap,
)
from regard.layers.multihead import MultiHead
from regard.layers.positions.base import AlibiPositions, NoPositions, PositionalEncoding
from regard.layers.positions.learned import Learned
from regard.layers.positions.rotary import (
    GridRotary,
    LinearScaling,
    Llama3Scaling,
    Rotary,
    YarnScaling,
)
from regard.layers.positions.sinusoidal import Sinusoidal
from tests.helpers import close

ROTARIES = {
    "all": Rotary(6),
    "interleaved": Rotary(6, interleaved=True, base=500.0),
    "partial": Rotary(4),
    "partial interleaved": Rotary(2, interleaved=True),
    "linear": Rotary(6, scaling=LinearScaling(4.0)),
    "llama3": Rotary(
        6, scaling=Llama3Scaling(factor=8.0, original_max_length=64), interleaved=True
    ),
}
ROTARIES["yarn"] = Rotary(
    6, base=30.0, scaling=YarnScaling(4.0, beta_fast=2.0, original_max_length=16)
)
TIME, WIDTH, HEADS, HEAD = 11, 12, 4, 6


def rotated_as_complex(rotary: Rotary, vectors: torch.Tensor, start: int) -> torch.Tensor:
    """Return the rotated vectors: each pair as a complex number, times e^(i angle)."""
    part, rest = vectors[..., : rotary.dim], vectors[..., rotary.dim :]
    half = rotary.dim // 2
    pairs = (
        part.unflatten(-1, (half, 2)) if rotary.interleaved else part.unflatten(-1, (2, half)).mT
    )
    angles = (start + torch.arange(vectors.shape[-2]).double())[:, None] * rotary.rates()
    length = torch.tensor(rotary.form().factor, dtype=torch.float64)
    turned = torch.view_as_real(
        torch.view_as_complex(pairs.contiguous()) * torch.polar(length, angles)
    )
    return torch.cat(((turned if rotary.interleaved else turned.mT).flatten(-2), rest), -1)


@pytest.mark.parametrize("name", ROTARIES)
@pytest.mark.parametrize("start", [0, 3, 1000, -5])
def test_rotary_multiplies_pairs_by_complex_numbers(name, start):
    vectors = torch.randn(2, 3, 7, HEAD).double()
    expected = rotated_as_complex(ROTARIES[name], vectors, start)
    close(ROTARIES[name].rotate(vectors, start), expected)
    close(ROTARIES[name].rotate(vectors, torch.tensor(start)), expected)
    torch.testing.assert_close(ROTARIES[name].rotate(vectors.float(), start), expected.float())


def test_rates_are_powers_of_the_base():
    assert Rotary(6, base=100.0).rates().tolist() == pytest.approx(
        [1, 100 ** (-1 / 3), 100 ** (-2 / 3)]
    )
    assert Rotary(4, scaling=LinearScaling(8.0)).rates().tolist() == pytest.approx([1 / 8, 1 / 800])


def test_llama3_scaling_keeps_fast_pairs_and_divides_slow_ones():
    scaling = Llama3Scaling(
        factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_length=100
    )
    # 100 positions turn these rates 5, 4, 2.5, 1 and 0.5 times; the third is halfway.
    rates = torch.tensor([5, 4, 2.5, 1, 0.5]).double() * 2 * math.pi / 100
    close(scaling(rates) / rates, torch.tensor([1, 1, 0.625, 0.25, 0.25]).double())


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(
    ("dim", "length", "amount"), [(64, 4096, None), (64, 50, 1.5), (2, 9, None)]
)
def test_yarn_is_that_of_transformers(dim, length, amount, truncate):
    given = {"rope_type": "yarn", "rope_theta": 150_000.0, "factor": 32.0, "truncate": truncate}
    given |= {"original_max_position_embeddings": length, "attention_factor": amount}
    config = LlamaConfig(head_dim=dim, max_position_embeddings=32 * length, rope_parameters=given)
    expected, factor = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    fields = {"original_max_length": length, "attention_factor": amount, "truncate": truncate}
    form = Rotary(dim, base=150_000.0, scaling=YarnScaling(32.0, **fields)).form()
    torch.testing.assert_close(form.rates.float(), expected, rtol=1e-6, atol=0)
    assert form.factor == pytest.approx(factor)


def test_scores_on_a_grid_depend_on_the_distances_of_rows_and_columns():
    rotary, columns = GridRotary(8), 5
    rotary.grid, rotary.first = (3, columns), 2
    items = torch.randn(2, 1, 8).double().expand(2, 2 + 3 * columns, 8)
    close(rotary.rotate(items)[:, :2], items[:, :2])  # such as the class token
    turned = rotary.rotate(items)[:, 2:].unflatten(1, (3, columns))
    scores = torch.einsum("ijd,kld->ijkl", turned[0], turned[1])
    close(scores[0, 0, 1, 3], scores[1, 1, 2, 4])
    assert (scores[0, 0, 1, 3] - scores[0, 0, 3 - 1, 1]).abs() > 1e-3
    row = Rotary(4, base=100.0).rotate(items[..., [0, 1, 4, 5]][:, :3])
    close(turned[:, :, 0][..., [0, 1, 4, 5]], row)
    close(
        turned[:, 1, :][..., [2, 3, 6, 7]], Rotary(4, base=100.0).rotate(items[:, :5, [2, 3, 6, 7]])
    )
    with pytest.raises(ValueError, match="need items of a grid"):
        GridRotary(8).rotate(items)


@pytest.mark.parametrize("name", ROTARIES)
@pytest.mark.parametrize(
    "score", [Dot(), ScaledDot(), Cosine(), SoftCap(Dot(), 2.0)], ids=lambda s: type(s).__name__
)
def test_scores_depend_on_the_distance_alone(name, score):
    rotary = ROTARIES[name]
    query = torch.randn(1, 3, HEAD).double()
    keys = torch.randn(1, 5, HEAD).double()
    near = score(rotary.rotate(query, 4), rotary.rotate(keys, 2))
    close(near, score(rotary.rotate(query, 104), rotary.rotate(keys, 102)))
    assert (near - score(rotary.rotate(query, 5), rotary.rotate(keys, 2))).abs().max() > 1e-3


ALL_SCORES = [
    Dot(),
    ScaledDot(),
    Cosine(),
    SoftCap(Cosine(), 2.0),
    SoftCap(General(HEAD, HEAD), 2.0),
    General(HEAD, HEAD),
    Additive(HEAD, HEAD, 5),
    BareAdditive(HEAD),
    Location(HEAD, 9),
    FeatureMap(),
]


@pytest.mark.parametrize("score", ALL_SCORES, ids=lambda s: type(s).__name__)
def test_invariance_to_rotations_is_declared_correctly(score):
    rotation = torch.linalg.qr(torch.randn(HEAD, HEAD).double())[0]
    score = score.double()
    query = torch.randn(1, 3, HEAD).double()
    keys = torch.randn(1, 5, HEAD).double()
    difference = (score(query @ rotation, keys @ rotation) - score(query, keys)).abs().max()
    assert (difference < 1e-9) == score.is_rotation_invariant


def attention(rotary: PositionalEncoding | None, **options: object) -> MultiHead:
    return (
        MultiHead(WIDTH, num_heads=HEADS, key_heads=2, head_dim=HEAD, positions=rotary, **options)
        .double()
        .eval()
    )


@pytest.mark.parametrize("name", ROTARIES)
def test_self_attention_rotates_projected_queries_and_keys(name):
    rotary = ROTARIES[name]
    part = attention(ROTARIES[name])
    items = torch.randn(2, TIME, WIDTH).double()
    query = part.query(items).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    key, value = (
        layer(items).unflatten(-1, (2, -1)).transpose(1, 2) for layer in (part.key, part.value)
    )
    memory = Memory(rotated_as_complex(rotary, key, 0), value)
    out = attend(rotated_as_complex(rotary, query, 0), memory, mask=causal(), kernel="reference")
    close(part(items, mask=causal()), part.output(out.transpose(1, 2).flatten(2)))


def test_a_score_that_is_put_in_later_must_be_invariant_to_rotations():
    part = attention(ROTARIES[next(iter(ROTARIES))])
    part.read.score = General(HEAD, HEAD).double()
    for read in (part, part.memory):
        with pytest.raises(ValueError, match=r"invariant to rotations, got Rotary and General"):
            read(torch.randn(2, TIME, WIDTH).double())


def memories(part: MultiHead, first: torch.Tensor) -> dict:
    """Return memories of the first items by kind, with the mask of an equal read of all items."""
    memory = part.memory(first)
    sizes = {"key_dim": HEAD, "dtype": torch.float64}
    ring = RingMemory.empty((2, 2), window=4, most=3, **sizes)
    return {
        "growing": (memory, causal()),
        "static": (StaticMemory.of(memory, capacity=TIME + 2), causal()),
        "sliding": (SlidingMemory.of(memory, window=4), window(4)),
        "ring": (part.extend(ring, first), window(4)),
        "cropped": (part.extend(memory, torch.randn(2, 3, WIDTH).double()).crop(3), causal()),
        "selected": (memory.select(torch.tensor([1, 0])).select(torch.tensor([1, 0])), causal()),
        "cropped static": (
            part.extend(
                StaticMemory.of(memory, capacity=TIME + 2), torch.randn(2, 2, WIDTH).double()
            ).crop(3),
            causal(),
        ),
    }


@pytest.mark.parametrize("name", ROTARIES)
@pytest.mark.parametrize(
    "kind", ["growing", "static", "sliding", "ring", "cropped", "selected", "cropped static"]
)
def test_steps_equal_all_at_once_for_every_memory(name, kind):
    part, items = attention(ROTARIES[name]), torch.randn(2, TIME, WIDTH).double()
    with torch.no_grad():
        memory, mask = memories(part, items[:, :3])[kind]
        assert int(memory.length) == 3
        expected = part(items, mask=mask)
        at = 3
        for count in (1, 2, 3, 1, 1):  # several at a time, too
            new = items[:, at : at + count]
            memory = part.extend(memory, new)
            at += count
            assert int(memory.length) == at
            close(part(new, memory, mask=mask), expected[:, at - count : at])
    assert at == TIME


def test_quantized_memory_rounds_rotated_keys():
    part, items = attention(ROTARIES["all"]), torch.randn(2, TIME, WIDTH).double()
    with torch.no_grad():
        expected = part(items, mask=causal())[:, -1:]
        memory = part.extend(QuantizedMemory.of(part.memory(items[:, :4])), items[:, 4:])
        assert memory.length == TIME
        torch.testing.assert_close(part(items[:, -1:], memory), expected, rtol=0.03, atol=0.03)


def test_gradients_after_inference_and_in_bfloat16():
    part, items = attention(Rotary(HEAD)).float(), torch.randn(2, TIME, WIDTH)
    with torch.inference_mode():  # creates the table
        expected = part(items)
    out = part(items)
    out.sum().backward()
    close(out.detach(), expected)
    assert part.query.weight.grad is not None
    assert part.query.weight.grad.abs().max() > 0
    half = part.bfloat16()(items.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), expected, rtol=0.05, atol=0.05)


def test_rotary_is_refused_with_other_scores():
    for score in (General(HEAD, HEAD), BareAdditive(HEAD), FeatureMap()):
        with pytest.raises(
            ValueError, match=f"invariant to rotations, got Rotary and {type(score).__name__}"
        ):
            attention(Rotary(HEAD), score=score)


def test_a_users_score_is_refused_unless_it_declares_the_invariance():
    class Distance(Score):
        def compare(self, query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
            return -torch.cdist(query, keys)

    with pytest.raises(ValueError, match="Rotary and Distance"):
        attention(Rotary(HEAD), score=Distance())
    Distance.is_rotation_invariant = True
    part, items = attention(Rotary(HEAD), score=Distance()), torch.randn(2, TIME, WIDTH).double()
    last = part(items[:, -1:], part.memory(items))
    close(last, part(items, mask=causal())[:, -1:])


def test_only_rotating_positions_are_accepted_by_attention():
    for positions in (Sinusoidal(WIDTH), Learned(9, WIDTH), AlibiPositions(HEADS), NoPositions()):
        with pytest.raises(
            ValueError, match=f"positions must rotate, .* got {type(positions).__name__}"
        ):
            attention(positions)


def test_sizes_that_do_not_fit_are_refused():
    angles = "scaling must give angles above 0 and finite, got"
    low = "low_freq_factor must be below high_freq_factor=4.0, got 4.0"
    for make, message in (
        (lambda: Rotary(5), "dim of Rotary must be even and at least 2, got 5"),
        (lambda: Rotary(4, base=1.0), "base of Rotary must be above 1 and finite, got 1.0"),
        (lambda: Rotary(8).rotate(torch.zeros(1, 2, 6)), "at least dim=8 numbers, got 6"),
        (lambda: Rotary(4, scaling=LinearScaling(0.0)), f"{angles} LinearScaling"),
        (lambda: Rotary(4, scaling=LinearScaling(math.nan)), f"{angles} LinearScaling"),
        (
            lambda: Rotary(4, scaling=Llama3Scaling(-1.0, original_max_length=2)),
            f"{angles} Llama3Scaling",
        ),
        (lambda: Llama3Scaling(low_freq_factor=4.0), low),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_base_and_scaling_may_be_changed_after_use():
    positions, vectors = Rotary(8), torch.randn(5, 8)
    for base, scaling in ((10000.0, None), (50.0, None), (50.0, LinearScaling(4.0))):
        positions.base, positions.scaling = base, scaling
        close(
            positions.rotate(vectors, 2), Rotary(8, base=base, scaling=scaling).rotate(vectors, 2)
        )
