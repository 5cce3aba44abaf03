"""Contract of all caches: reading step by step equals one read of a memory of all pairs."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from regard.attention.attend import attend
from regard.attention.biases import Alibi, Bias
from regard.attention.masks import Mask, causal, padding, window
from regard.attention.memory import (
    KeyValueCache,
    Memory,
    QuantizedMemory,
    QuantizedVectors,
    RingMemory,
    SlidingMemory,
    StaticMemory,
)
from regard.attention.memory import growing as plain
from regard.attention.scores import Additive, Cosine, Dot, General, ScaledDot, Score, SoftCap
from tests.helpers import close

BATCH, HEADS, TIME, DIM, VALUE_DIM, WINDOW, MOST = 3, 2, 13, 7, 5, 4, 5
WIDE = torch.float64
Kind = Callable[[int], KeyValueCache]
"""Function from key_dim to an empty memory."""


def make_fixed(key_dim: int) -> Memory:
    return Memory(*(torch.zeros(BATCH, HEADS, 0, dim, dtype=WIDE) for dim in (key_dim, VALUE_DIM)))


def make_static(key_dim: int) -> StaticMemory:
    return StaticMemory.empty(
        (BATCH, HEADS), capacity=17, key_dim=key_dim, value_dim=VALUE_DIM, dtype=WIDE
    )


def make_ring(key_dim: int) -> RingMemory:
    sizes = {"window": WINDOW, "most": MOST, "key_dim": key_dim, "value_dim": VALUE_DIM}
    return RingMemory.empty((BATCH, HEADS), **sizes, dtype=WIDE)


KINDS: dict[str, Kind] = {
    "growing": make_fixed,
    "roomy": make_fixed,
    "static": make_static,
    "within": lambda key_dim: make_static(key_dim).within(TIME),
    "sliding": lambda key_dim: SlidingMemory.of(make_fixed(key_dim), window=WINDOW),
    "roomy-sliding": lambda key_dim: SlidingMemory.of(make_fixed(key_dim), window=WINDOW),
    "ring": make_ring,
    "quantized": lambda key_dim: QuantizedMemory.of(make_fixed(key_dim)),
}
WINDOWED = ("sliding", "roomy-sliding", "ring")
VALUES = ("growing", "roomy", "sliding", "roomy-sliding", "quantized")
"""Kinds of memory that may be extended more than once."""
SCORES = {
    "dot": Dot(),
    "scaled": ScaledDot(),
    "general": General(DIM, DIM, 3).double(),
    "additive": Additive(DIM, DIM, 11).double(),
    "cosine": Cosine(),
    "capped": SoftCap(Dot(), 2.0),
}
PADS = torch.tensor([0, 5, 2])
SETTINGS: dict[str, tuple[Mask, Bias | None]] = {
    "causal": (causal(), None),
    "padded": (causal() & ~padding(PADS), None),
    "window": (window(3), None),
    "alibi": (causal(), Alibi(HEADS).double()),
}
GRID = [(score, "padded") for score in SCORES] + [
    ("scaled", setting) for setting in SETTINGS if setting != "padded"
]
STEPS = {"one": [1] * TIME, "mixed": [5, 1, 1, 3, 1, 2], "none": [0, 4, 0, 4, 5]}

kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def preallocate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.callspec.params["kind"].startswith("roomy"):
        monkeypatch.setattr(plain, "_MIN_PREALLOCATED", 0)


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def make_pairs(time: int = TIME) -> tuple[Tensor, Tensor, Tensor]:
    """Draw queries, keys and values."""
    return tuple(torch.randn(BATCH, HEADS, time, dim, dtype=WIDE) for dim in (DIM, DIM, VALUE_DIM))


def stored_vectors(kind: str, vectors: Tensor) -> Tensor:
    """Return the vectors as this kind of memory stores them."""
    return QuantizedVectors.quantize(vectors).dequantize(WIDE) if kind == "quantized" else vectors


def all_at_once(kind: str, query: Tensor, keys: Tensor, values: Tensor, **read) -> Tensor:
    """Compute the reference over a fixed memory of mapped keys."""
    if kind in WINDOWED:
        read["mask"] = window(WINDOW) & read.get("mask", causal())
    score = read.pop("score", SCORES["scaled"])
    keys = stored_vectors(kind, score.map_keys(stored_vectors(kind, keys)))
    memory = Memory(keys, stored_vectors(kind, values))
    return attend(
        score.map_query(query), memory, score=PreMapped(score), kernel="reference", **read
    )


class PreMapped(Score):
    """Score of vectors that are mapped already."""

    def __init__(self, score: Score):
        super().__init__()
        self.score = score

    def compare(self, query: Tensor, keys: Tensor) -> Tensor:
        return self.score.compare(query, keys)


def step_by_step(
    memory: KeyValueCache, query: Tensor, keys: Tensor, values: Tensor, *, steps: list[int], **read
) -> Tensor:
    """Read with as many queries at a time as each step adds pairs."""
    outs = []
    for new in zip(*(x.split(steps, -2) for x in (query, keys, values)), strict=True):
        memory = memory.extend(*new[1:])
        outs.append(attend(new[0], memory, **read))
    return torch.cat(outs, -2)


@kinds
@pytest.mark.parametrize(("score", "setting"), GRID)
def test_step_by_step_equals_all_at_once(kind, score, setting):
    query, keys, values = make_pairs()
    fn, (mask, bias) = SCORES[score], SETTINGS[setting]
    expected = all_at_once(kind, query, keys, values, score=fn, mask=mask, bias=bias)
    for steps in STEPS.values():
        options = {"steps": steps, "score": fn, "mask": mask, "bias": bias}
        actual = step_by_step(KINDS[kind](DIM), query, keys, values, **options)
        close(actual, expected)


@kinds
@pytest.mark.parametrize("score", SCORES)
def test_keys_mapped_once_read_the_same(kind, score):
    query, keys, values = make_pairs()
    fn = SCORES[score]
    mapped = fn.map_keys(keys)
    # The mapped keys are quantized.
    expected = all_at_once(
        kind, fn.map_query(query), mapped, values, score=PreMapped(fn), mask=causal()
    )
    memory = KINDS[kind](DIM).map_keys_with(fn)
    assert memory.map_keys_with(fn) is memory
    close(
        step_by_step(memory, query, mapped, values, steps=STEPS["mixed"], score=fn, mask=causal()),
        expected,
    )


@kinds
def test_mapped_memory_refuses_another_score(kind):
    memory = KINDS[kind](DIM).map_keys_with(SCORES["general"])
    with pytest.raises(
        ValueError,
        match="score must be the General that mapped the keys, got another score",
    ):
        attend(torch.randn(BATCH, HEADS, 1, DIM, dtype=WIDE), memory, score=Dot())


@kinds
@pytest.mark.parametrize("num_queries", [1, 2])
def test_the_last_queries_alone_read_the_same(kind, num_queries):
    query, keys, values = make_pairs(MOST)
    memory = KINDS[kind](DIM).extend(keys, values)
    expected = all_at_once(kind, query, keys, values, mask=causal())
    close(
        attend(query[..., -num_queries:, :], memory, mask=causal()), expected[..., -num_queries:, :]
    )


@kinds
def test_empty_memory_reads_zeros(kind):
    query = torch.randn(BATCH, HEADS, 3, DIM, dtype=WIDE)
    close(
        attend(query, KINDS[kind](DIM), mask=causal()),
        torch.zeros(BATCH, HEADS, 3, VALUE_DIM, dtype=WIDE),
    )


@kinds
@pytest.mark.parametrize("first", [[1, 2], [5, 4, 1, 1]])
def test_selected_rows_continue_independently(kind, first):
    query, keys, values = make_pairs()
    half, rows = sum(first), torch.tensor([2, 0, 0, 1])
    memory = KINDS[kind](DIM)
    for new in zip(
        keys[..., :half, :].split(first, -2), values[..., :half, :].split(first, -2), strict=True
    ):
        memory = memory.extend(*new)
    rest = [x.index_select(0, rows)[..., half:, :] for x in (query, keys, values)]
    actual = step_by_step(memory.select(rows), *rest, steps=[1] * (TIME - half), mask=causal())
    expected = all_at_once(kind, query, keys, values, mask=causal()).index_select(0, rows)
    close(actual, expected[..., half:, :])
    close(
        attend(query[..., half - 1 : half, :], memory, mask=causal()),
        all_at_once(kind, query, keys, values, mask=causal())[..., half - 1 : half, :],
    )


@kinds
def test_selection_is_a_copy(kind):
    query, keys, values = make_pairs(3)
    memory = KINDS[kind](DIM).extend(keys, values)
    selected = memory.select(torch.arange(BATCH))
    before = attend(query[..., -1:, :], selected)
    memory.extend(keys[..., :1, :] + 1, values[..., :1, :] + 1)
    close(attend(query[..., -1:, :], selected), before)


@kinds
def test_cropped_memory_continues_from_there(kind):
    query, keys, values = make_pairs(MOST + 3)
    new_pairs = make_pairs(2)
    memory = KINDS[kind](DIM).extend(keys[..., :MOST, :], values[..., :MOST, :])
    cropped = memory.extend(keys[..., MOST:, :], values[..., MOST:, :]).crop(MOST)
    if "sliding" not in kind:  # which has discarded the pair that only the previous query read
        first = [x[..., :MOST, :] for x in (query, keys, values)]
        before = all_at_once(kind, *first, mask=causal())
        close(attend(query[..., MOST - 1 : MOST, :], cropped), before[..., -1:, :])
    actual = step_by_step(cropped, *new_pairs, steps=[1, 1], mask=causal())
    joined = [
        torch.cat((x[..., :MOST, :], other), -2)
        for x, other in zip((query, keys, values), new_pairs, strict=True)
    ]
    close(actual, all_at_once(kind, *joined, mask=causal())[..., MOST:, :])


@kinds
def test_crop_refuses_invalid_sizes(kind):
    _, keys, values = make_pairs(3)
    memory = KINDS[kind](DIM).extend(keys, values)
    for size in (-1, 4):
        with pytest.raises(ValueError, match=rf"size must be between 0.* and 3, .* {size}"):
            memory.crop(size)


@kinds
def test_longer_memory_leaves_the_old_one_readable(kind):
    query, keys, values = make_pairs(4)
    memory = KINDS[kind](DIM).extend(keys[..., :3, :], values[..., :3, :])
    before = attend(query[..., :1, :], memory)
    memory.extend(keys[..., 3:, :], values[..., 3:, :])
    close(attend(query[..., :1, :], memory), before)


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("steps", [[3], [2, 1], [1, 1, 1, 2], [4, 1, 3, 1]])
def test_values_may_be_extended_twice(kind, steps):
    query, keys, values = make_pairs()
    new_pairs = make_pairs(TIME - sum(steps))
    memory = KINDS[kind](DIM)
    for new in zip(
        *(x[..., : sum(steps), :].split(steps, -2) for x in (keys, values)), strict=True
    ):
        memory = memory.extend(*new)
    remaining = [x[..., sum(steps) :, :] for x in (query, keys, values)]
    branches = [memory, memory]
    outs: list[list[Tensor]] = [[], []]
    for step in range(remaining[0].shape[-2]):
        for branch, tensors in enumerate((remaining, new_pairs)):
            new_query, new_keys, new_values = (x[..., step : step + 1, :] for x in tensors)
            branches[branch] = branches[branch].extend(new_keys, new_values)
            outs[branch].append(attend(new_query, branches[branch]))
    for tensors, out in zip((remaining, new_pairs), outs, strict=True):
        joined = [
            torch.cat((x[..., : sum(steps), :], new), -2)
            for x, new in zip((query, keys, values), tensors, strict=True)
        ]
        close(torch.cat(out, -2), all_at_once(kind, *joined, mask=causal())[..., sum(steps) :, :])


@kinds
@pytest.mark.usefixtures("no_shape_checks")
def test_pairs_that_do_not_fit_are_refused(kind):
    whole = BATCH, HEADS
    for keys, values, message in (
        ((*whole, 1, 8), (*whole, 1, VALUE_DIM), r"new keys must be \(3, 2, new, 7\), got .*8"),
        ((BATCH, 1, 1, DIM), (*whole, 1, VALUE_DIM), r"new keys must be .* got \(3, 1, 1, 7\)"),
        ((*whole, 1, DIM), (BATCH, 1, VALUE_DIM), r"new values must be \(3, 2, new, 5\)"),
        ((*whole, 2, DIM), (*whole, 1, VALUE_DIM), "got 1 values and 2 keys"),
    ):
        with pytest.raises(ValueError, match=message):
            KINDS[kind](DIM).extend(torch.randn(keys, dtype=WIDE), torch.randn(values, dtype=WIDE))


@kinds
def test_pairs_of_another_dtype_are_refused(kind):
    _, keys, values = make_pairs(1)
    with pytest.raises(
        TypeError, match=r"values must have the memory's dtype torch\.float64, got torch\.float32"
    ):
        KINDS[kind](DIM).extend(keys, values.float())
