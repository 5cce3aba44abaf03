"""Contract of all caches: any course of extensions, selections and crops reads as all at once."""

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from regard.attention.attend import attend
from regard.attention.biases import Alibi
from regard.attention.choices import Choice, Proportional, Soft
from regard.attention.masks import Mask, causal, padding, window
from regard.attention.memory import (
    KeyValueCache,
    LinearState,
    Memory,
    QuantizedMemory,
    QuantizedVectors,
    RingMemory,
    SlidingMemory,
    StaticMemory,
)
from regard.attention.memory import growing as plain
from regard.attention.scores import (
    Additive,
    BareAdditive,
    Concat,
    Cosine,
    Dot,
    FeatureMap,
    Features,
    General,
    Location,
    RandomFeatures,
    ScaledDot,
    Score,
    SoftCap,
)
from regard.layers.multihead import MultiHead
from regard.testing import check
from tests.helpers import close

BATCH, HEADS, TIME, DIM, VALUE_DIM, WINDOW, MOST = 3, 2, 13, 7, 5, 4, 5
WHOLE = BATCH, HEADS
WIDE = torch.float64
Kind = Callable[[int, Sequence[int]], KeyValueCache | LinearState]
"""Function from key_dim and leading axes to an empty memory."""


class Direction(Score):
    """Score of one's own, whose map of keys is not defined for zeros."""

    def map_keys(self, keys: Tensor) -> Tensor:
        return torch.cat((keys / keys.norm(dim=-1, keepdim=True), keys[..., :1]), -1)

    def compare(self, query: Tensor, keys: Tensor) -> Tensor:
        return query @ keys[..., :-1].mT + keys[..., -1:].mT


class PreMapped(Score):
    """Score of vectors that are mapped already."""

    def __init__(self, score: Score):
        super().__init__()
        self.score, self.num_heads = score, score.num_heads

    def compare(self, query: Tensor, keys: Tensor) -> Tensor:
        return self.score.compare(query, keys)


def make_fixed(key_dim: int, leading: Sequence[int] = WHOLE) -> Memory:
    return Memory(*(torch.zeros(*leading, 0, dim, dtype=WIDE) for dim in (key_dim, VALUE_DIM)))


def make_static(key_dim: int, leading: Sequence[int] = WHOLE) -> StaticMemory:
    sizes = {"capacity": 60, "key_dim": key_dim, "value_dim": VALUE_DIM}
    return StaticMemory.empty(leading, **sizes, dtype=WIDE)


def make_ring(key_dim: int, leading: Sequence[int] = WHOLE) -> RingMemory:
    sizes = {"window": WINDOW, "most": MOST, "key_dim": key_dim, "value_dim": VALUE_DIM}
    return RingMemory.empty(leading, **sizes, dtype=WIDE)


def make_sliding(key_dim: int, leading: Sequence[int] = WHOLE) -> SlidingMemory:
    return SlidingMemory.of(make_fixed(key_dim, leading), window=WINDOW)


KINDS: dict[str, Kind] = {
    "growing": make_fixed,
    "roomy": make_fixed,
    "static": make_static,
    "static of": lambda *sizes: StaticMemory.of(make_fixed(*sizes), capacity=60),
    "within": lambda *sizes: make_static(*sizes).within(59),
    "sliding": make_sliding,
    "roomy-sliding": make_sliding,
    "ring": make_ring,
    "quantized": lambda *sizes: QuantizedMemory.of(make_fixed(*sizes)),
}
WINDOWED = ("sliding", "roomy-sliding", "ring")
VALUES = ("growing", "roomy", "sliding", "roomy-sliding", "quantized")
"""Kinds of memory that may be extended more than once."""
SCORES: dict[str, Score] = {
    "dot": Dot(),
    "scaled": ScaledDot(),
    "general": General(DIM, DIM, 3),
    "general by head": General(DIM, DIM, 3, num_heads=HEADS),
    "additive": Additive(DIM, DIM, 11),
    "additive by head": Additive(DIM, DIM, 11, num_heads=HEADS, normed=True),
    "concat": Concat(DIM, DIM, 11),
    "bare additive": BareAdditive(DIM),
    "cosine": Cosine(),
    "capped": SoftCap(General(DIM, DIM), 2.0),
    "location": Location(DIM, 60),
    "features": FeatureMap(),
    "random features": RandomFeatures(DIM, 17),
    "own": Direction(),
}
SCORES = {name: score.double() for name, score in SCORES.items()}

kinds = pytest.mark.parametrize("kind", KINDS)
scores = pytest.mark.parametrize("score", SCORES)


@pytest.fixture(autouse=True)
def preallocate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.callspec.params.get("kind", "").startswith("roomy"):
        monkeypatch.setattr(plain, "_MIN_PREALLOCATED", 0)


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def make_pairs(time: int = TIME, leading: Sequence[int] = WHOLE) -> tuple[Tensor, Tensor, Tensor]:
    """Draw queries, keys and values."""
    return tuple(torch.randn(*leading, time, dim, dtype=WIDE) for dim in (DIM, DIM, VALUE_DIM))


def make_memory(kind: str, key_dim: int = DIM, leading: Sequence[int] = WHOLE) -> KeyValueCache:
    return KINDS[kind](key_dim, leading)


def choice_of(score: Score) -> Choice:
    return Proportional() if isinstance(score, Features) else Soft()


def has_keys_in_order(memory: KeyValueCache) -> bool:
    """Return True if key j is the pair at position j, which scores of positions need."""
    return memory.positions(1).key_positions is None


class Course:
    """A memory, all of its pairs as it stores them, and whether the keys are mapped."""

    def __init__(self, kind: str, score: Score, memory: KeyValueCache, pads: Tensor | None):
        self.kind, self.score, self.memory, self.pads = kind, score, memory, pads
        self.keys, self.values = memory.keys[..., :0, :], memory.values[..., :0, :]

    def copy(self) -> "Course":
        other = Course(self.kind, self.score, self.memory, self.pads)
        other.keys, other.values = self.keys, self.values
        return other

    @property
    def size(self) -> int:
        return self.keys.shape[-2]

    @property
    def leading(self) -> tuple[int, ...]:
        return tuple(self.keys.shape[:-2])

    def stored(self, vectors: Tensor) -> Tensor:
        """Return the vectors as this kind of memory stores them."""
        if self.kind != "quantized":
            return vectors
        return QuantizedVectors.quantize(vectors).dequantize(WIDE)

    def map(self) -> None:
        if self.memory.mapped_by is None:
            self.keys = self.stored(self.score.map_keys(self.keys))
            self.memory = self.memory.map_keys_with(self.score)
        assert self.memory.map_keys_with(self.score) is self.memory

    def extend(self, count: int) -> None:
        _, keys, values = make_pairs(count, self.leading)
        keys = keys if self.memory.mapped_by is None else self.score.map_keys(keys)
        self.memory = self.memory.extend(keys, values)
        self.keys = torch.cat((self.keys, self.stored(keys)), -2)
        self.values = torch.cat((self.values, self.stored(values)), -2)

    def select(self, rows: list[int]) -> None:
        index = torch.tensor(rows)
        self.memory = self.memory.select(index)
        if len(self.leading) > 0:
            self.keys, self.values = self.keys[index], self.values[index]
        self.pads = None if self.pads is None else self.pads[index]

    def crop(self, size: int) -> None:
        self.memory = self.memory.crop(size)
        self.keys, self.values = self.keys[..., :size, :], self.values[..., :size, :]

    def least_crop(self) -> int:
        """Return the smallest size that is not refused because pairs were discarded."""
        if isinstance(self.memory, RingMemory):
            return self.size if self.size > self.memory.size else 0
        return self.size - self.memory.size if isinstance(self.memory, SlidingMemory) else 0

    def check(self, num_queries: int, mask: Mask, *, group: int = 1, alibi: bool = False) -> None:
        """Compare the read of the last queries with one of all pairs by the formula."""
        leading, bias = self.leading, None
        if len(leading) == 2 and self.score.num_heads is None:  # grouped heads
            leading = leading[0], leading[1] * group
        if alibi and len(leading) == 2 and not isinstance(self.score, Features):
            bias = Alibi(leading[1]).double()
        query = torch.randn(*leading, num_queries, DIM, dtype=WIDE)
        read = {"choice": choice_of(self.score), "mask": mask, "bias": bias}
        memory = self.memory
        if isinstance(memory, SlidingMemory):
            first_needed = max(0, self.size - num_queries - WINDOW + 1)
            if self.size - memory.size > first_needed:  # after a crop
                with pytest.raises(ValueError, match="were discarded"):
                    attend(query, memory, score=self.score, **read)
                return
        if self.score.needs_all_keys and not has_keys_in_order(memory):
            with pytest.raises(ValueError, match="must be in their order from position 0"):
                attend(query, memory, score=self.score, **read)
            return
        actual = attend(query, memory, score=self.score, **read)
        keys = self.keys
        if memory.mapped_by is None:
            keys = self.stored(self.score.map_keys(keys))
        if self.kind in WINDOWED:
            read["mask"] = window(WINDOW) & mask
        pairs, score = (keys, self.values), PreMapped(self.score)
        query = self.score.map_query(query)
        close(actual, attend(query, pairs, score=score, kernel="reference", **read))


def walk(course: Course, draw: random.Random, steps: int) -> None:
    """Change memories at random and read each of them, also those that others came from."""
    courses = [course]
    for _ in range(steps):
        index = draw.randrange(len(courses))
        old = courses[index]
        new, change = old.copy(), draw.choice(["extend", "extend", "extend", "select", "crop"])
        if change == "extend":
            new.extend(draw.randint(0, MOST))
        elif change == "select":
            rows = range(new.leading[0] if new.leading else 3)
            new.select([draw.choice(rows) for _ in range(draw.randint(1, 3))])
        else:
            new.crop(draw.randint(new.least_crop(), new.size))
        if draw.random() < 0.2:
            new.map()
        if change == "select" or course.kind in VALUES:
            courses.append(new)
        else:  # the old object shares its slots
            courses[index] = new
        for read in {id(new): new, id(courses[index]): courses[index]}.values():
            masks = [causal(), window(3)]
            if read.pads is not None:
                masks.append(causal() & ~padding(read.pads))
            parts = {"group": draw.choice([1, 1, 2]), "alibi": draw.random() < 0.5}
            read.check(draw.randint(1, MOST), draw.choice(masks), **parts)


@kinds
@scores
@pytest.mark.usefixtures("no_shape_checks")  # shapes are checked in the tests of layers below
@pytest.mark.parametrize("mapped", [False, True])
def test_any_course_reads_as_all_pairs_at_once(kind, score, mapped):
    fn, draw = SCORES[score], random.Random(f"{kind} {score} {mapped}")
    # Each kind and score meets all leading axes; a course without mapped keys may map them later.
    leadings = [WHOLE] if fn.num_heads else [WHOLE, (BATCH,) if mapped else ()]
    for leading in leadings:
        pads = torch.tensor([0, 5, 2]) if leading else None
        course = Course(kind, fn, make_memory(kind, leading=leading), pads)
        if mapped:
            course.map()
        course.check(2, causal())
        walk(course, draw, 9)


@pytest.mark.parametrize("score", ["features", "random features"])
@pytest.mark.parametrize("leading", [WHOLE, (BATCH,), ()])
def test_linear_state_reads_as_all_pairs_at_once(score, leading):
    fn = SCORES[score]
    memory = Memory(*make_pairs(0, leading)[1:]).map_keys_with(fn)
    state = LinearState.of(memory)
    for count in (3, 1, 0, 2):
        query, keys, values = make_pairs(count, leading)
        keys = fn.map_keys(keys)
        memory, state = memory.extend(keys, values), state.extend(keys, values)
        rows = torch.tensor([2, 0, 2])
        selected = query[rows] if leading else query
        options = {"score": fn, "choice": Proportional()}
        for given, pairs, sums in (
            (query, memory, state),
            (selected, memory.select(rows), state.select(rows)),
        ):
            expected = attend(given, pairs, kernel="reference", **options)
            close(attend(given, sums, **options), expected)


@scores
def test_layer_reads_every_memory_as_all_items_at_once(score):
    fn = SCORES[score]
    check(MultiHead(2 * DIM, HEADS, score=fn, choice=choice_of(fn)))


@kinds
@pytest.mark.parametrize("score", ["general by head", "location", "own"])
def test_layer_extends_an_empty_memory_by_keys_that_it_maps(kind, score):
    """A memory of projected keys, not mapped yet, is mapped by the layer's score once."""
    fn = SCORES[score]
    sizes = {"head_dim": DIM, "head_value_dim": VALUE_DIM}
    layer = MultiHead(9, HEADS, score=fn, choice=choice_of(fn), **sizes).double()
    items, memory, outs = torch.randn(BATCH, TIME, 9, dtype=WIDE), make_memory(kind), []
    is_refused = fn.needs_all_keys and kind in WINDOWED
    for new in items.split([5, 1, 1, 3, 1, 2], 1):
        memory = layer.extend(memory, new)
        if is_refused and not has_keys_in_order(memory):
            with pytest.raises(ValueError, match="must be in their order from position 0"):
                layer(new, memory, mask=causal())
            return
        outs.append(layer(new, memory, mask=causal()))
    whole = layer.memory(items)
    whole = QuantizedMemory.of(whole) if kind == "quantized" else whole
    mask = window(WINDOW) & causal() if kind in WINDOWED else causal()
    close(torch.cat(outs, 1), layer(items, whole, mask=mask))


@pytest.mark.parametrize(
    "make",
    [
        lambda memory: StaticMemory.of(memory, capacity=9),
        lambda memory: SlidingMemory.of(memory, window=9),
        QuantizedMemory.of,
    ],
    ids=["static", "sliding", "quantized"],
)
@pytest.mark.parametrize(
    ("key_heads", "value_heads", "value_dim"), [(4, 2, 8), (2, 4, 8), (4, 4, 0)]
)
def test_memories_are_made_of_what_a_memory_may_hold(make, key_heads, value_heads, value_dim):
    memory = Memory(
        torch.randn(BATCH, key_heads, 3, 8), torch.randn(BATCH, value_heads, 3, value_dim)
    )
    other = make(memory)
    new = torch.randn(BATCH, key_heads, 2, 8), torch.randn(BATCH, value_heads, 2, value_dim)
    memory, other = memory.extend(*new), other.extend(*new)
    if isinstance(other, QuantizedMemory):
        memory = Memory(other.keys, other.values)
    query = torch.randn(BATCH, 4, 2, 8)
    close(attend(query, other, mask=causal()), attend(query, memory, mask=causal()))


@kinds
def test_mapped_memory_refuses_another_score(kind):
    memory = make_memory(kind).map_keys_with(SCORES["general"])
    with pytest.raises(
        ValueError,
        match="score must be the General that mapped the keys, got another score",
    ):
        attend(torch.randn(BATCH, HEADS, 1, DIM, dtype=WIDE), memory, score=Dot())


@kinds
def test_empty_memory_reads_zeros(kind):
    query = torch.randn(BATCH, HEADS, 3, DIM, dtype=WIDE)
    close(
        attend(query, make_memory(kind), mask=causal()),
        torch.zeros(BATCH, HEADS, 3, VALUE_DIM, dtype=WIDE),
    )


@kinds
def test_crop_refuses_invalid_sizes(kind):
    _, keys, values = make_pairs(3)
    memory = make_memory(kind).extend(keys, values)
    for size in (-1, 4):
        with pytest.raises(ValueError, match=rf"size must be between 0.* and 3, .* {size}"):
            memory.crop(size)


@kinds
def test_longer_memory_leaves_the_old_one_readable(kind):
    query, keys, values = make_pairs(4)
    memory = make_memory(kind).extend(keys[..., :3, :], values[..., :3, :])
    before = attend(query[..., :1, :], memory)
    memory.extend(keys[..., 3:, :], values[..., 3:, :])
    close(attend(query[..., :1, :], memory), before)


@kinds
@pytest.mark.usefixtures("no_shape_checks")
def test_pairs_that_do_not_fit_are_refused(kind):
    whole = WHOLE
    for keys, values, message in (
        ((*whole, 1, 8), (*whole, 1, VALUE_DIM), r"new keys must be \(3, 2, new, 7\), got .*8"),
        ((BATCH, 1, 1, DIM), (*whole, 1, VALUE_DIM), r"new keys must be .* got \(3, 1, 1, 7\)"),
        ((*whole, 1, DIM), (BATCH, 1, VALUE_DIM), r"new values must be \(3, 2, new, 5\)"),
        ((*whole, 2, DIM), (*whole, 1, VALUE_DIM), "got 1 values and 2 keys"),
    ):
        with pytest.raises(ValueError, match=message):
            make_memory(kind).extend(torch.randn(keys, dtype=WIDE), torch.randn(values, dtype=WIDE))


@kinds
def test_pairs_of_another_dtype_are_refused(kind):
    _, keys, values = make_pairs(1)
    with pytest.raises(
        TypeError, match=r"values must have the memory's dtype torch\.float64, got torch\.float32"
    ):
        make_memory(kind).extend(keys, values.float())
