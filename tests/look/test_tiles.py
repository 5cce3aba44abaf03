"""Tiles of a part of a read: equal to the formula together, each of limited size."""

import math
from dataclasses import asdict

import pytest
import torch
from torch import Tensor

from regard.attention.biases import Alibi, Bias, ShawBias, TensorBias
from regard.attention.choices import Choice, Hard, Soft, Sparse, TopK
from regard.attention.inputs import AttentionInputs, prepare_inputs
from regard.attention.kernels import reference
from regard.attention.masks import Mask, causal, dense, documents, padding, prefix
from regard.attention.scores import Additive, Cosine, General, Location, ScaledDot, Score, SoftCap
from regard.look.tiles import Part, tiles
from tests.helpers import close
from tests.look.memory_of import Watch

BATCH, HEADS, QUERIES, KEYS, DIM = 3, 4, 7, 11, 5
PARTS = {
    "all": Part(),
    "neighbors": Part(rows=[1, 2], heads=[0, 1], queries=range(2, 6)),
    "scattered": Part(rows=[2, 0], heads=[3, 0, 1], queries=[6, 1, 2, 4]),
    "one": Part(rows=[1], heads=[2], queries=[3]),
}
_GENERATOR = torch.Generator().manual_seed(5)
_HOLES = torch.rand(BATCH, HEADS, QUERIES, KEYS, generator=_GENERATOR) > 0.4
_NUMBERS = torch.randn(BATCH, HEADS, QUERIES, KEYS, generator=_GENERATOR, dtype=torch.float64)
_IDS = torch.tensor([[0] * 5 + [1] * 6, [0] * 2 + [1] * 9, [0] * 11])
SCORES = {
    "scaled": ScaledDot(),
    "general-heads": General(DIM, DIM, 3, num_heads=HEADS),
    "additive": Additive(DIM, DIM, 3),
    "additive-heads": Additive(DIM, DIM, 3, num_heads=HEADS),
    "location-heads": Location(DIM, 13, num_heads=HEADS),
    "capped-cosine": SoftCap(Cosine(), 2.0),
}
MASKS: dict[str, Mask] = {
    "causal-padding": causal() & padding([11, 4, 7]),
    "one-length": padding([8]),
    "dense-rows-heads": dense(_HOLES) | ~causal(),
    "dense-heads": dense(_HOLES[:1]),
    "documents": documents(_IDS),
    "prefix": prefix([6, 0, 9]),
}
BIASES: dict[str, Bias] = {
    "given": TensorBias(_NUMBERS) + TensorBias(_NUMBERS[:, :1, :1]),
    "alibi": Alibi(HEADS),
    "shaw-heads": ShawBias(DIM, 3, num_heads=HEADS),
}
CHOICES: dict[str, Choice] = {
    "soft": Soft(torch.tensor(0.7)),
    "soft-heads": Soft(torch.rand(HEADS, 1, 1, generator=_GENERATOR) + 0.5, learn=True),
    "soft-rows-queries": Soft(torch.rand(BATCH, 1, QUERIES, 1, generator=_GENERATOR) + 0.5),
    "top-heads": TopK(3, beta=torch.rand(HEADS, 1, 1, generator=_GENERATOR) + 0.5),
    "sparse-queries": Sparse(beta=torch.rand(QUERIES, 1, generator=_GENERATOR) + 0.5),
    "hard": Hard(),
}


def problem_of(
    score: Score | None = None,
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    choice: Choice | None = None,
    key_heads: int = HEADS,
) -> AttentionInputs:
    for part in (score, bias):
        for parameter in [] if part is None else part.parameters():
            torch.nn.init.normal_(parameter)
    query = torch.randn(BATCH, HEADS, QUERIES, DIM, dtype=torch.float64)
    keys, values = (
        torch.randn(BATCH, key_heads, KEYS, size, dtype=torch.float64) for size in (DIM, 2)
    )
    score = ScaledDot() if score is None else score.double()
    return prepare_inputs(
        query, (keys, values), score=score, choice=choice or Soft(), mask=mask, bias=bias
    )


def together(inputs: AttentionInputs, part: Part, tile_bytes: int) -> Tensor:
    """Return all tiles in one tensor, and check that each position is written once."""
    whole = torch.full(part.shape((BATCH, HEADS, QUERIES, KEYS)), float("nan"), dtype=torch.float64)
    for position, weights in tiles(inputs, part, tile_bytes=tile_bytes):
        assert whole[position].isnan().all()
        whole[position] = weights.detach()
    return whole


def part_of(weights: Tensor, part: Part) -> Tensor:
    for axis, numbers in enumerate(asdict(part).values()):
        weights = weights if numbers is None else weights.index_select(axis, torch.tensor(numbers))
    return weights.detach()


def check(inputs: AttentionInputs) -> None:
    whole = reference.weights(inputs)
    for name, tile_bytes in (
        ("all", 1500),
        ("neighbors", 1),
        ("scattered", 600),
        ("scattered", 9000),
        ("one", 9000),
    ):
        close(together(inputs, PARTS[name], tile_bytes), part_of(whole, PARTS[name]))


@pytest.mark.parametrize("mask", [None, *MASKS])
@pytest.mark.parametrize("score", SCORES)
def test_tiles_are_the_formula_for_scores_and_masks(score, mask):
    check(problem_of(SCORES[score], mask=None if mask is None else MASKS[mask]))


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("choice", CHOICES)
def test_tiles_are_the_formula_for_choices_and_biases(choice, bias):
    check(problem_of(choice=CHOICES[choice], bias=BIASES[bias], mask=MASKS["causal-padding"]))


@pytest.mark.parametrize("score", ["scaled", "additive", "additive-heads"])
@pytest.mark.parametrize("key_heads", [1, 2])
def test_tiles_are_the_formula_for_grouped_heads(key_heads, score):
    score = (
        Additive(DIM, DIM, 3, num_heads=HEADS, key_heads=key_heads)
        if "heads" in score
        else SCORES[score]
    )
    check(
        problem_of(score, bias=BIASES["alibi"], mask=MASKS["dense-rows-heads"], key_heads=key_heads)
    )


@pytest.mark.parametrize("leading", [(), (BATCH,), (BATCH, 2, HEADS)], ids=str)
def test_tiles_are_the_formula_whatever_leading_axes(leading):
    query, keys = torch.randn(*leading, QUERIES, DIM), torch.randn(*leading, KEYS, DIM)
    inputs = prepare_inputs(
        query, (keys, keys), score=ScaledDot(), choice=Soft(), mask=causal(), bias=None
    )
    part = Part(
        rows=[2, 0] if leading else None,
        heads=[1, 3] if len(leading) > 1 else None,
        queries=[5, 2, 3],
    )
    expected = reference.weights(inputs)[..., [5, 2, 3], :]
    expected = expected[[2, 0]] if leading else expected
    expected = expected[:, :, [1, 3]] if len(leading) > 1 else expected
    for tile_bytes in (1, 700, 1 << 20):
        whole = torch.zeros(part.shape((*leading, QUERIES, KEYS)))
        for position, weights in tiles(inputs, part, tile_bytes=tile_bytes):
            whole[position] = weights
        close(whole, expected)


def test_queries_that_share_keys_of_one_row():
    query, keys = torch.randn(BATCH, HEADS, QUERIES, DIM), torch.randn(1, 1, KEYS, DIM)
    inputs = prepare_inputs(
        query, (keys, keys), score=ScaledDot(), choice=Soft(), mask=padding([4, 11, 0]), bias=None
    )
    part = PARTS["scattered"]
    whole = torch.zeros(part.shape((BATCH, HEADS, QUERIES, KEYS)))
    for position, weights in tiles(inputs, part, tile_bytes=100):
        whole[position] = weights
    close(whole, part_of(reference.weights(inputs), part))


def test_empty_reads_compute_nothing():
    query, keys = torch.randn(BATCH, HEADS, QUERIES, DIM), torch.randn(BATCH, HEADS, 0, DIM)
    inputs = prepare_inputs(
        query, (keys, keys), score=ScaledDot(), choice=Soft(), mask=None, bias=None
    )
    assert sum(tile.weights.numel() for tile in tiles(inputs, Part(), tile_bytes=100)) == 0


@pytest.mark.parametrize("score", ["scaled", "additive", "additive-heads"])
@pytest.mark.parametrize("tile_bytes", [2_000, 20_000])
@pytest.mark.parametrize("bias", [None, "alibi"])
def test_no_tensor_is_larger_than_a_tile(score, bias, tile_bytes):
    inputs = problem_of(
        SCORES[score], mask=causal() & padding([11, 4, 7]), bias=bias and BIASES[bias]
    )
    whole = BATCH * HEADS * QUERIES * KEYS * 8
    with Watch() as watch, torch.no_grad():
        sizes = [tile.weights.nbytes for tile in tiles(inputs, Part(), tile_bytes=tile_bytes)]
    assert sum(sizes) == whole
    assert watch.largest <= tile_bytes
    assert max(sizes) > tile_bytes / 20


def test_rows_and_heads_that_are_not_recorded_are_not_computed():
    inputs = problem_of(mask=dense(_HOLES) & padding([11, 4, 7]), bias=TensorBias(_NUMBERS))
    for part in (PARTS["one"], Part(rows=[1], heads=[2])):
        with Watch() as watch:
            (tile,) = tiles(inputs, part, tile_bytes=1 << 30)
        assert tile.weights.shape == part.shape((BATCH, HEADS, QUERIES, KEYS))
        assert watch.largest == tile.weights.nbytes


def test_tiles_are_consecutive_when_all_queries_are_recorded():
    strides = BATCH * HEADS * QUERIES, HEADS * QUERIES, QUERIES, 1
    for tile_bytes in (1, 500, 3000):
        positions = [
            tile.position for tile in tiles(problem_of(), Part(heads=[1, 3]), tile_bytes=tile_bytes)
        ]
        starts = [
            sum(part.start * stride for part, stride in zip(position, strides[1:], strict=False))
            for position in positions
        ]
        assert starts == sorted(starts)
        assert len(starts) > 1


@pytest.mark.parametrize(
    ("name", "numbers", "error", "message"),
    [
        ("rows", [], ValueError, "rows must not be empty"),
        ("heads", [1, 1], ValueError, "heads must not contain an index twice"),
        ("queries", [1.0], TypeError, "queries must be a sequence of integers, got 1.0"),
        ("rows", [True], TypeError, "rows must be a sequence of integers, got True"),
        ("queries", 3, TypeError, "queries must be a sequence of integers, got 3"),
    ],
)
def test_indices_are_checked(no_shape_checks, name, numbers, error, message):
    with pytest.raises(error, match=message):
        Part(**{name: numbers})


@pytest.mark.parametrize(
    ("part", "sizes", "message"),
    [
        (Part(rows=[3]), (3, 4, 7, 11), r"rows must be between 0 and 2 in this read, got \[3\]"),
        (
            Part(heads=[0, -1]),
            (3, 4, 7, 11),
            r"heads must be between 0 and 3 in this read, got \[0, -1\]",
        ),
        (Part(queries=[7]), (3, 4, 7, 11), r"queries must be between 0 and 6"),
        (
            Part(heads=[0]),
            (3, 7, 11),
            r"heads can be selected only in reads that have them, .* \(3, 7, 11\)",
        ),
        (Part(rows=[0]), (7, 11), r"rows can be selected only in reads that have them"),
    ],
)
def test_indices_outside_the_read_are_refused(part, sizes, message):
    with pytest.raises(ValueError, match=message):
        part.shape(sizes)


def test_a_part_has_the_shape_of_the_recorded_weights():
    assert PARTS["scattered"].shape((BATCH, HEADS, QUERIES, KEYS)) == (2, 3, 4, 11)
    assert math.prod(PARTS["one"].shape((BATCH, HEADS, QUERIES, KEYS))) == KEYS
