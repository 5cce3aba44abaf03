"""Engine `compiled`: beam search and generation of Transformers in compiled loops, on any number of
workers.

Sentences of similar lengths are searched together, one batch per worker at a time; a worker is one
thread, because two batches on one thread each are faster than one batch on two. Weights are stored
as float32, bfloat16 (half the bytes) or int8 (a quarter of the bytes); with bfloat16 and int8
activations are rounded too (see regard.native.decoder.tiles), sums are not.
"""

import copy
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np
import torch

from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.hypothesis import Hypothesis, make_hypothesis
from regard.decode.progress import UNWRITTEN, DecodingProgress, begin_progress
from regard.decode.rules import NO_RULES, TokenRules
from regard.decode.sample import check_highest, filter_logits, num_reread
from regard.decode.search import batch_by_length
from regard.engines.compiled.program import Context, PackedTransformer, Workspace
from regard.engines.engine import Engine, Ids, check_positions
from regard.errors import UserError
from regard.layers.forms import TextForm
from regard.native.decoder import search
from regard.native.decoder.blocks import prefill
from regard.native.decoder.generate import generate
from regard.native.decoder.layout import (
    BLOCK_NUMBERS,
    BLOCKS,
    DECODERS,
    HEADS,
    OVERFLOW,
    SIZE,
    VALUE_SIZE,
)
from regard.native.decoder.packed_weights import KINDS
from regard.native.decoder.rules import PackedRules, Past
from regard.native.decoder.search import FINISHED, IS_NAN, IS_NONE, IS_PAST
from regard.native.processor import IS_SUPPORTED_CPU
from regard.system.progress import track
from regard.trace import Trace

_BATCH_SIZE = 64
"""Sentences searched together: larger batches are no faster per sentence."""
_ENCODER_TOKENS = 512
"""Source tokens encoded together."""
_MEMORY = 1 << 30
"""Largest size in bytes of the memories of a batch, for outputs of maximum length."""

Task = TypeVar("Task")
Result = TypeVar("Result")


class CompiledEngine(Engine):
    """Engine with a packed snapshot of the weights of a model, from its lowered form.

    Raises: UserError for an unknown compute type.
    """

    name = "compiled"

    def __init__(self, form: TextForm, *, compute_type: str | None, workers: int):
        self.compute_type = "float32" if compute_type is None else compute_type
        if self.compute_type not in KINDS:
            known = ", ".join(KINDS)
            raise UserError(f"compute type must be one of {known}, got {compute_type!r}")
        self._workers = workers
        self._packed = PackedTransformer(form, self.compute_type)
        self.limits = self._packed.limits
        self._free: dict[int, SimpleQueue[Workspace]] = {}

    def share(self) -> "CompiledEngine":
        """Return an engine with the same packed weights and a workspace of its own."""
        shared = copy.copy(self)
        shared._workers, shared._free = 1, {}
        return shared

    @property
    def _workspaces(self) -> SimpleQueue[Workspace]:
        """Free workspaces of this process: those of a parent process may have been in use."""
        if os.getpid() not in self._free:
            queue: SimpleQueue[Workspace] = SimpleQueue()
            for _ in range(self._workers):
                queue.put(Workspace(self._packed))
            self._free.setdefault(os.getpid(), queue)
        return self._free[os.getpid()]

    def _search(
        self, ids: Ids, config: DecodeConfig, *, trace: Trace | None, **options: Any
    ) -> list[list[Hypothesis]]:
        progress = begin_progress(len(ids), beam=config.beam)
        search_batch = partial(_search_batch, ids, config=config, progress=progress, **options)
        lengths = [len(sentence) for sentence in ids]
        results: list[list[Hypothesis]] = [[] for _ in ids]
        batches = self._batches(lengths, config)
        pairs = zip(batches, self._run_parallel(search_batch, batches), strict=True)
        for rows, batch in track(pairs, "outputs", len(lengths), size=lambda pair: len(pair[0])):
            for row, hypotheses in zip(rows, batch, strict=True):
                results[row] = hypotheses
        return results

    def _batches(self, lengths: list[int], config: DecodeConfig) -> list[list[int]]:
        """Group sentence indices by length, longest first: the last batches to finish are short."""
        sizes = self._packed.sizes
        slot = 4 * int(sizes[DECODERS] * sizes[HEADS] * (sizes[SIZE] + sizes[VALUE_SIZE]))
        states = 8 * int(sizes[DECODERS]) * self._packed.state_size
        per_worker = min(_BATCH_SIZE, -(-len(lengths) // self._workers))
        batches = []
        for rows in batch_by_length(lengths, budget=config.batch_tokens // config.beam):
            limit = max(config.limit(lengths[row]) for row in rows)
            size = max(1, min(per_worker, _MEMORY // (config.beam * (slot * limit + states))))
            batches += [rows[first : first + size] for first in range(0, len(rows), size)]
        return batches

    def _run_parallel(
        self, function: Callable[[Task, Workspace], Result], tasks: list[Task]
    ) -> Iterator[Result]:
        """Yield function(task, workspace) for each task in order, computed by all workers."""
        workspaces = self._workspaces

        def run(task: Task) -> Result:
            workspace = workspaces.get()
            try:
                return function(task, workspace)
            finally:
                workspaces.put(workspace)

        if len(tasks) == 1:
            yield run(tasks[0])
            return
        # Threads of this call alone: a forked process would wait for those of its parent.
        with ThreadPoolExecutor(self._workers, thread_name_prefix="regard-compiled") as pool:
            yield from pool.map(run, tasks)

    def _generate(
        self,
        prompts: Ids,
        config: SampleConfig,
        *,
        window: int | None,
        seeds: Sequence[int],
        banned: Sequence[int],
        rules: TokenRules,
        trace: Trace | None,
    ) -> list[list[int]]:
        size = max(1, min(_BATCH_SIZE, -(-len(prompts) // self._workers)))
        batches = [slice(first, first + size) for first in range(0, len(prompts), size)]
        progress = begin_progress(len(prompts))

        def generate_batch(rows: slice, workspace: Workspace) -> list[list[int]]:
            texts, text_seeds = prompts[rows], seeds[rows]
            options: dict[str, Any] = {"window": window, "banned": banned, "rules": rules}
            batch = _Generation(workspace, texts, text_seeds, config, **options)
            if progress is not None:
                numbers = range(len(prompts))[rows]
                progress.publish(numbers, map(memoryview, batch.out))
            return batch.run()

        results = []
        for batch in self._run_parallel(generate_batch, batches):
            results += batch
        return results


def _search_batch(
    sentences: Ids,
    rows: list[int],
    workspace: Workspace,
    *,
    config: DecodeConfig,
    progress: DecodingProgress | None,
    rules: TokenRules,
    bos: int,
    eos: int,
    pad: int,
) -> list[list[Hypothesis]]:
    lengths = [len(sentences[row]) for row in rows]
    starts, groups = np.cumsum([0, *lengths]), _groups(lengths)
    limits = np.array([config.limit(length, rules.num_required(0)) for length in lengths])
    ids = np.concatenate([sentences[row] for row in rows]).astype(np.int64)
    steps, most, shape = int(limits.max()), len(rows) * config.beam, (len(rows), config.n_best)
    powers = torch.arange(steps + 1, dtype=torch.float64, device="cpu") ** config.length_penalty
    batch = search.SearchBatch(ids, starts, np.array(groups), limits)
    banned = _mask(workspace.model, (pad, bos))
    packed = _pack_rules(rules)
    settings = search.SearchRules(config.beam, powers.float().numpy(), bos, eos, banned, packed)
    scores, log_probs = np.full(shape, -np.inf, np.float32), np.zeros(shape)
    tokens = np.full((*shape, steps), UNWRITTEN, np.int32)
    if progress is not None:
        progress.publish(rows, map(memoryview, tokens[:, 0]), eos=eos)
    outputs = search.SearchResults(scores, log_probs, np.zeros(shape, np.int64), tokens)
    encoded, location = int(np.diff(starts[groups]).max()), np.zeros(2, np.int64)
    context = workspace.context(
        rows=max(encoded, most), positions=max(*lengths, steps), sources=int(starts[-1])
    )
    memory = workspace.memory(steps * most, rows=most, copies=2)
    outcome = search.search()(context.numbers, batch, settings, *memory, outputs, location)
    _check_overflow(context)
    step, row = location.tolist()
    if outcome == IS_PAST:
        check_positions(step, workspace.model.limits.positions)
    if outcome != FINISHED:
        raise _to_error(outcome, rules, f" at step {step} of {rules.name(rows[row])}")
    results = []
    for row in range(len(rows)):
        hypotheses = []
        for rank in np.flatnonzero(scores[row] > -np.inf):
            found = tokens[row, rank, : outputs.lengths[row, rank]].tolist()
            log_prob = float(log_probs[row, rank])
            score = log_prob / len(found) ** config.length_penalty
            hypotheses.append(make_hypothesis(found, eos=eos, score=score, log_prob=log_prob))
        if not hypotheses:
            raise _to_error(IS_NONE, rules, f" in {rules.name(rows[row])}")
        results.append(hypotheses)
    return results


class _Generation:
    """Generation of a batch of texts, each with its own slots.

    A context that slides is attention with a window, and the slots of old keys and values are used
    again.
    """

    def __init__(
        self,
        workspace: Workspace,
        prompts: Ids,
        seeds: Sequence[int],
        config: SampleConfig,
        *,
        window: int | None,
        banned: Sequence[int],
        rules: TokenRules,
    ):
        self.texts = [list(prompt) for prompt in prompts]
        self.window, self.config, self.vocab = window, config, len(workspace.model.target)
        longest, slides = max(map(len, prompts)), window is not None and config.context == "slide"
        self.capacity = longest + config.length
        if window is not None:
            self.capacity = min(longest, window) + config.length if slides else window
        # Keys and values of each text.
        kept = self.capacity if window is None else min(window, self.capacity)
        self.context = workspace.context(rows=max(len(prompts), kept), positions=self.capacity)
        if slides:
            numbers = self.context.numbers.copy()
            windows = numbers[BLOCKS::BLOCK_NUMBERS]
            windows[:] = np.minimum(np.where(windows > 0, windows, kept), kept)
            self.context = self.context._replace(numbers=numbers)
        self.memory = workspace.memory(len(prompts) * kept, rows=len(prompts), copies=1)
        slots = np.arange(self.capacity, dtype=np.int32) % kept
        self.slots = slots + kept * np.arange(len(prompts), dtype=np.int32)[:, None]
        self.tokens, self.lengths = np.zeros((2, len(prompts)), np.int64)
        self.out = np.full((len(prompts), config.length), UNWRITTEN, np.int64)
        self.banned = _mask(workspace.model, banned)
        tokens = np.zeros((len(prompts), longest + config.length), np.int64)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = prompt
        lengths = np.array([len(prompt) for prompt in prompts])
        self.rules, self.past = rules, Past(_pack_rules(rules), tokens, lengths)
        self.generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]

    def run(self) -> list[list[int]]:
        for row, text in enumerate(self.texts):
            self.prefill(row, text if self.window is None else text[-self.window :])
        first, end = 0, self.config.length
        while first < end:
            last = int(min(end, first + self.capacity - self.lengths.max() + 1))
            self.extend(first, last)
            first = last
            for row in np.flatnonzero(self.lengths > self.capacity).tolist():
                self.prefill(row, self.texts[row][-num_reread(self.config, self.capacity) :])
        return self.out.tolist()

    def prefill(self, row: int, tokens: list[int]) -> None:
        """Process all but the last token, the input of the next step, from position 0 on."""
        if len(tokens) > 1:
            inputs = np.array(tokens[:-1], np.int64)
            prefill()(self.context.numbers, inputs, self.slots[row], *self.memory, row)
            _check_overflow(self.context)
        self.tokens[row], self.lengths[row] = tokens[-1], len(tokens)

    def extend(self, first: int, last: int) -> None:
        """Generate tokens first .. last - 1 of each text."""
        positions = self.lengths - 1
        if self.config.temperature == 0:
            outcome = self.step(positions, np.zeros((0, 0), np.float32), first, last)
            if outcome != FINISHED:
                raise _to_error(outcome, self.rules)
        else:
            for index in range(first, last):
                self.out[:, index] = self.sample(positions + index - first)
        for text, tokens in zip(self.texts, self.out[:, first:last].tolist(), strict=True):
            text.extend(tokens)
        self.lengths += last - first

    def step(self, positions: np.ndarray, scores: np.ndarray, first: int, last: int) -> int:
        state = self.tokens, positions, self.slots, *self.memory
        outputs = self.out, scores, first, last
        outcome = generate()(self.context.numbers, *state, self.banned, self.past, *outputs)
        _check_overflow(self.context)
        return outcome

    def sample(self, positions: np.ndarray) -> np.ndarray:
        logits = np.empty((len(self.texts), self.vocab), np.float32)
        self.step(positions, logits, 0, 1)
        check_highest(torch.from_numpy(logits).amax())
        logits[:, self.banned] = -np.inf
        if self.rules.active:
            self.rules.check(torch.from_numpy(logits))
        probabilities = filter_logits(torch.from_numpy(logits), self.config)
        for row, generator in enumerate(self.generators):
            self.tokens[row] = int(torch.multinomial(probabilities[row], 1, generator=generator))
            self.past.tokens[row, self.past.lengths[row]] = self.tokens[row]
        self.past.lengths[:] += 1
        return self.tokens


def is_optimized_cpu() -> bool:
    """Return True on x86-64 with AVX2, for which the loops are optimized."""
    return platform.machine().lower() in ("x86_64", "amd64") and IS_SUPPORTED_CPU


def _groups(lengths: list[int]) -> list[int]:
    """Return the starts of groups of about _ENCODER_TOKENS tokens, and the end."""
    groups, tokens = [0], 0
    for sentence, length in enumerate(lengths):
        if tokens and tokens + length > _ENCODER_TOKENS:
            groups.append(sentence)
            tokens = 0
        tokens += length
    return [*groups, len(lengths)]


def _mask(packed: PackedTransformer, banned: Sequence[int]) -> np.ndarray:
    mask = np.zeros(len(packed.target), np.bool_)
    mask[list(banned)] = True
    return mask


def _check_overflow(context: Context) -> None:
    """Raise ValueError if items overflowed float32 since the last check."""
    if context.numbers[OVERFLOW]:
        context.numbers[OVERFLOW] = 0
        raise _to_error(IS_NAN, NO_RULES)


def _pack_rules(rules: TokenRules) -> PackedRules:
    if rules.torch_only:
        raise ValueError(f"engine 'compiled' does not follow {rules.torch_only}; use 'torch'")
    eos, size = rules.eos, rules.no_repeat_ngram_size
    penalty = np.float32(rules.repetition_penalty)
    words, lengths = [*chain(*rules.bad_words)], map(len, rules.bad_words)
    arrays = [np.array(ids, np.int64) for ids in (words, [0, *lengths], rules.target_prefix)]
    arrays[1] = arrays[1].cumsum()
    return PackedRules(bool(rules.active), eos, rules.min_length, size, penalty, *arrays)


def _to_error(outcome: int, rules: TokenRules, where: str = "") -> ValueError:
    if outcome == IS_NAN:
        return ValueError(f"logits must not hold NaN or infinity, got one{where}")
    return rules.none_left(where)
