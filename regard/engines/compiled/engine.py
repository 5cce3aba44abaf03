"""The engine `compiled`: a Transformer's search and generation as compiled loops, on any number of workers.

Sentences of like lengths are searched together, a batch by each worker at a time; a worker is one thread, because two
streams of work are faster than two threads at one. Weights may be kept as float32, bfloat16 (half the bytes) or int8 (a
quarter); what they are multiplied by is then rounded as well (see regard.engines.compiled.tiles), sums are not.

What it answers is what the torch engine answers, but for the rounding of other sums: where two continuations are as
likely as each other to seven digits, another may come first.
"""

import math
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np
import torch

from regard.attention.kernels.compiled_cache import REMEDY, is_kept
from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.hypothesis import Hypothesis
from regard.decode.sample import check_scores, narrowed
from regard.decode.search import in_batches
from regard.engines.compiled import entries
from regard.engines.compiled.compiling import IS_MADE_FOR
from regard.engines.compiled.packed import KINDS
from regard.engines.compiled.room import Room
from regard.engines.compiled.searching import FINISHED, IS_NAN, IS_NONE, IS_PAST, Batch, Found, Rules
from regard.engines.compiled.transformer import PackedTransformer
from regard.engines.compiled.transformer import unsupported as unsupported
from regard.engines.compiled.work import DECODERS, HEADS, OVERFLOW, SIZE, VALUE_SIZE
from regard.engines.engine import Engine, Limits
from regard.engines.requests import check_places
from regard.errors import UserError
from regard.layers.forms import TextForm

LARGEST_ITEM = math.inf
"""Overflow is noticed where it happens."""
_TOGETHER = 64
"""Sentences searched together: more gain nothing once products are long enough."""
_TOKENS = 512
"""Source tokens encoded together."""
_MEMORY = 1 << 30
"""Bytes that keys and values of a batch may take, if all of its outputs were as long as they may be."""

Task = TypeVar("Task")
Result = TypeVar("Result")


class CompiledEngine(Engine):
    """A packed snapshot of a model's weights; see `create`."""

    name = "compiled"

    def __init__(self, form: TextForm, *, compute_type: str, workers: int):
        self.compute_type = compute_type
        self._workers = workers
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="regard-compiled")
        self._packed = PackedTransformer(form, compute_type)
        self._rooms: SimpleQueue[Room] = SimpleQueue()
        for _ in range(workers):
            self._rooms.put(Room(self._packed))

    @property
    def limits(self) -> Limits:
        """Inputs that the model takes."""
        return self._packed.limits

    def _search(
        self,
        sentences: Sequence[Sequence[int]],
        *,
        config: DecodeConfig,
        bos: int,
        eos: int,
        pad: int,
    ) -> list[list[Hypothesis]]:
        """In batches of like lengths."""
        how = {"config": config, "bos": bos, "eos": eos, "pad": pad}
        lengths = [len(sentence) for sentence in sentences]
        results: list[list[Hypothesis]] = [[] for _ in sentences]
        batches = self._batches(lengths, config)
        found = self._shared(lambda rows, room: self._batch_searched(sentences, rows, room, **how), batches)
        for rows, hypotheses in zip(batches, found, strict=True):
            for row, of_row in zip(rows, hypotheses, strict=True):
                results[row] = of_row
        return results

    def _batches(self, lengths: list[int], config: DecodeConfig) -> list[list[int]]:
        """Places of sentences, of like lengths together, the longest first: the last to end should be short."""
        sizes = self._packed.sizes
        slot = 4 * int(sizes[DECODERS] * sizes[HEADS] * (sizes[SIZE] + sizes[VALUE_SIZE]))
        together = min(_TOGETHER, -(-len(lengths) // self._workers))
        batches = []
        for rows in in_batches(lengths, budget=config.batch_tokens // config.beam):
            most = _MEMORY // (slot * config.beam * max(config.limit(lengths[row]) for row in rows))
            some = max(1, min(together, most))
            batches += [rows[first : first + some] for first in range(0, len(rows), some)]
        return batches

    def _shared(self, work: Callable[[Task, Room], Result], tasks: list[Task]) -> list[Result]:
        """What work(task, room) gives for each task, by all workers."""

        def one(task: Task) -> Result:
            room = self._rooms.get()
            try:
                return work(task, room)
            finally:
                self._rooms.put(room)

        return [one(task) for task in tasks] if len(tasks) == 1 else list(self._pool.map(one, tasks))

    def _batch_searched(
        self,
        sentences: Sequence[Sequence[int]],
        rows: list[int],
        room: Room,
        *,
        config: DecodeConfig,
        bos: int,
        eos: int,
        pad: int,
    ) -> list[list[Hypothesis]]:
        """The hypotheses of some of the sentences."""
        lengths = [len(sentences[row]) for row in rows]
        starts, groups = np.cumsum([0, *lengths]), _groups(lengths)
        limits = np.array([config.limit(length) for length in lengths])
        ids = np.concatenate([sentences[row] for row in rows]).astype(np.int64)
        steps, most, shape = int(limits.max()), len(rows) * config.beam, (len(rows), config.n_best)
        powers = (torch.arange(steps + 1, dtype=torch.float64, device="cpu") ** config.length_penalty).float().numpy()
        batch = Batch(ids, starts, np.array(groups), limits)
        rules = Rules(config.beam, powers, bos, eos, _mask(room.model, (pad, bos)))
        scores, log_probs = np.full(shape, -np.inf, np.float32), np.zeros(shape)
        found = Found(scores, log_probs, np.zeros(shape, np.int64), np.zeros((*shape, steps), np.int32))
        together, place = int(np.diff(starts[groups]).max()), np.zeros(2, np.int64)
        work = room.work(rows=max(together, most), places=max(*lengths, steps), sources=int(starts[-1]))
        ending = entries.search()(work, batch, rules, *room.memory(steps * most), found, place)
        _check_overflow(work)
        if ending != FINISHED:
            if ending == IS_PAST:
                check_places(int(place[0]), room.model.limits.positions)
            raise ValueError(_what(ending, step=int(place[0]), sentence=rows[int(place[1])]))
        results = []
        for row in range(len(rows)):
            some = [at for at in range(config.n_best) if scores[row, at] > -np.inf]
            if not some:
                raise ValueError(_what(IS_NONE, sentence=rows[row]))
            said = [(found.tokens[row, at, : found.lengths[row, at]], log_probs[row, at]) for at in some]
            results.append([_hypothesis(*one, eos=eos, config=config) for one in said])
        return results

    def _generate(
        self,
        prompts: Sequence[Sequence[int]],
        config: SampleConfig,
        *,
        window: int | None,
        seeds: Sequence[int],
        banned: Sequence[int],
    ) -> list[list[int]]:
        """Prompts side by side."""
        some = max(1, min(_TOGETHER, -(-len(prompts) // self._workers)))
        tasks = [range(first, min(first + some, len(prompts))) for first in range(0, len(prompts), some)]

        def work(rows: range, room: Room) -> list[list[int]]:
            chosen = [prompts[row] for row in rows], [seeds[row] for row in rows]
            return _Continuing(room, *chosen, config, window=window, banned=banned).run()

        return [tokens for found in self._shared(work, tasks) for tokens in found]


class _Continuing:
    """Some texts that go on side by side, each in slots of its own."""

    def __init__(
        self,
        room: Room,
        prompts: list[Sequence[int]],
        seeds: list[int],
        config: SampleConfig,
        *,
        window: int | None,
        banned: Sequence[int],
    ):
        self.seen = [list(prompt) for prompt in prompts]
        self.window, self.config, self.vocab = window, config, len(room.model.target)
        self.places = max(map(len, prompts)) + config.length if window is None else window
        self.work = room.work(rows=max(len(prompts), self.places), places=self.places)
        self.keys, self.values = room.memory(len(prompts) * self.places)
        self.slots = np.arange(len(prompts) * self.places, dtype=np.int32).reshape(len(prompts), self.places)
        self.tokens, self.fed = np.zeros(len(prompts), np.int64), np.zeros(len(prompts), np.int64)
        self.banned = _mask(room.model, banned)
        self.draws = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]

    def run(self) -> list[list[int]]:
        """config.length tokens of each."""
        begun = [len(seen) for seen in self.seen]
        for row, seen in enumerate(self.seen):
            self.feed(row, seen if self.window is None else seen[-self.window :])
        left = self.config.length
        while left:
            some = int(min(left, self.places - self.fed.max() + 1))
            self.go_on(some)
            left -= some
            for row in np.flatnonzero(self.fed > self.places).tolist():
                self.feed(row, self.seen[row][-max(1, self.places // 2) :])
        return [seen[first:] for seen, first in zip(self.seen, begun, strict=True)]

    def feed(self, row: int, tokens: list[int]) -> None:
        """Take in all but the last of some tokens, from place 0 on; the last is what goes on from."""
        if len(tokens) > 1:
            taken = np.array(tokens[:-1], np.int64)
            entries.prefill()(self.work, taken, self.slots[row], self.keys, self.values)
            _check_overflow(self.work)
        self.tokens[row], self.fed[row] = tokens[-1], len(tokens)

    def go_on(self, count: int) -> None:
        """So many tokens more of each."""
        memory = self.slots, self.keys, self.values
        places = self.fed - 1
        if self.config.temperature == 0:
            out, none = np.zeros((len(self.seen), count), np.int64), np.zeros((0, 0), np.float32)
            ending = entries.go_on()(self.work, self.tokens, places, *memory, self.banned, out, none)
            _check_overflow(self.work)
            if ending != FINISHED:
                raise ValueError(_what(ending))
        else:
            out = np.stack([self.drawn(places + number, memory) for number in range(count)], axis=1)
        for seen, tokens in zip(self.seen, out.tolist(), strict=True):
            seen.extend(tokens)
        self.fed += count

    def drawn(self, places: np.ndarray, memory: tuple[np.ndarray, ...]) -> np.ndarray:
        """One token more of each, drawn."""
        logits = np.empty((len(self.seen), self.vocab), np.float32)
        entries.go_on()(self.work, self.tokens, places, *memory, self.banned, np.zeros((0, 0), np.int64), logits)
        _check_overflow(self.work)
        check_scores(torch.from_numpy(logits))
        logits[:, self.banned] = -np.inf
        shares = narrowed(torch.from_numpy(logits), self.config)
        for row, (share, draw) in enumerate(zip(shares, self.draws, strict=True)):
            self.tokens[row] = int(torch.multinomial(share, 1, generator=draw))
        return self.tokens.copy()


def create(
    form: TextForm, *, compute_type: str | None = None, threads: int = 1, workers: int | None = None
) -> CompiledEngine:
    """Return the engine of a form that is supported; a worker for each thread, if not said otherwise.

    Raises: UserError for a compute type that it does not have.
    """
    if compute_type is not None and compute_type not in KINDS:
        raise UserError(f"engine compiled computes in {', '.join(KINDS)}, not in {compute_type!r}")
    return CompiledEngine(form, compute_type=compute_type or "float32", workers=workers or threads)


def is_at_home() -> bool:
    """Whether this is a processor that the loops are made for: x86-64 with AVX2; on others they are untimed."""
    return platform.machine().lower() in ("x86_64", "amd64") and IS_MADE_FOR


def compiles_each_time() -> str | None:
    """Return why code is compiled in each process, with what helps; None if it is kept, or compiled already."""
    if any(loop.signatures for loop in _loops()) or is_kept(entries.search()):
        return None
    return f"compiled code cannot be kept here, so each process would compile for some 20 seconds; {REMEDY}"


def _loops() -> tuple[Any, ...]:
    return entries.search(), entries.go_on()


def _groups(lengths: list[int]) -> list[int]:
    """Where groups of about _TOKENS tokens begin, and the end."""
    groups, tokens = [0], 0
    for sentence, length in enumerate(lengths):
        if tokens and tokens + length > _TOKENS:
            groups.append(sentence)
            tokens = 0
        tokens += length
    return [*groups, len(lengths)]


def _mask(packed: PackedTransformer, banned: Sequence[int]) -> np.ndarray:
    mask = np.zeros(len(packed.target), np.bool_)
    mask[list(banned)] = True
    return mask


def _hypothesis(tokens: np.ndarray, log_prob: float, *, eos: int, config: DecodeConfig) -> Hypothesis:
    said = tokens.tolist()
    finished, score = said[-1] == eos, log_prob / len(said) ** config.length_penalty
    return Hypothesis(
        tokens=said[:-1] if finished else said, score=float(score), log_prob=float(log_prob), finished=finished
    )


def _check_overflow(work: np.ndarray) -> None:
    """Raises ValueError if items became too large for float32 since the last check."""
    if work[OVERFLOW]:
        work[OVERFLOW] = 0
        raise ValueError(_what(IS_NAN))


def _what(ending: int, *, step: int | None = None, sentence: int | None = None) -> str:
    """What went wrong."""
    where = "".join(
        f" {word} {place}"
        for word, place in (("at step", step), ("of sentence" if step else "in sentence", sentence))
        if place is not None
    )
    if ending == IS_NAN:
        return f"logits must not hold NaN or infinity, got one{where}"
    return f"some allowed token must have a probability above 0, got none{where}"
