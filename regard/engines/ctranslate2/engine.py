"""Engine `ctranslate2`: the model converted to CTranslate2, which decodes in C++ in float32, int8
and other types.

Its beam search selects the same candidates as regard.decode.beam but stops differently. So that the
results are the same, each search is repeated until the stopping rule of regard.decode.beam holds:

    finished = all hypotheses that end within T steps          CTranslate2 with unlimited patience
    done     : best live log p / limit^alpha <= worst of the n best finished hypotheses
    other sentences are searched again with a longer T, at last with their own limit

T is at most the shortest limit of a batch, whose sentences have similar lengths. The outputs equal
those of the torch engine, to rounding, at the cost of some steps after the end that `patience=1`
would not take.

There are two differences. Banned ids are excluded before the softmax and not after it, so a score
is higher by the -log(1 - p(banned)) of its tokens. Samples at a temperature above 0 are drawn with
the random numbers of CTranslate2.

Source: the stopping rule is that of regard.decode.beam; patience kasai2022.
"""

import importlib
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from regard.data.tokenizer import BOS, EOS, PAD
from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.hypothesis import Hypothesis
from regard.decode.sample import num_reread
from regard.decode.search import batch_by_length
from regard.engines.ctranslate2.convert import build_specification, source_tokens
from regard.engines.ctranslate2.convert import unsupported_reason as unsupported_reason
from regard.engines.engine import (
    Engine,
    Limits,
    check_positions,
    limits_of,
    num_positions,
    on_device,
)
from regard.errors import UserError
from regard.layers.forms import TextForm
from regard.trace import Trace

LARGEST_ITEM = 1e12
"""Limit of items: norms square them, and CTranslate2 does not report an overflow."""
_FIRST_POSITIONS = 1024
"""Number of positions of the first conversion; longer inputs or outputs need a new conversion."""
_UNLIMITED_PATIENCE = 1e6
"""Patience that no search reaches."""
_IMPOSSIBLE = -1e30
"""Hypotheses with lower scores hold a banned id, because there were no others."""
_MIN_STEPS = 16
"""Minimum steps of a search; fewer save no time."""
_MIN_TOKENS = 256
"""Minimum source tokens of a batch for a worker of its own."""
_SLIDE_REFUSAL = (
    "engine 'ctranslate2' cannot drop keys and values (engines 'compiled' and 'torch' can)"
)
_STAGES = {True: ((0.5, 2.0), (1.0, 1.25), (1.0, 1.0)), False: ((1.0, 2.0), (1.0, 1.0))}
"""Stages of beam search (True) and of greedy search (False), which stops by itself: fraction of the
limit that is searched, and maximum ratio of two limits of a batch. The last stage searches up to
the limit of each sentence."""


class CTranslate2Engine(Engine):
    """Snapshot of a model, converted to CTranslate2; see `create`."""

    name = "ctranslate2"

    def __init__(self, form: TextForm, *, compute_type: str, threads: int, workers: int):
        self.compute_type = compute_type
        self.workers = workers
        self._threads = max(1, threads // workers)
        class_name = "Generator" if form.source is None else "Translator"
        self._conversion = _Conversion(form, lambda files: self._load_translator(class_name, files))

    @property
    def limits(self) -> Limits:
        """Inputs that the model accepts."""
        limits = limits_of(self._conversion.form)
        return replace(limits, slide_refusal=limits.slide_refusal or _SLIDE_REFUSAL)

    def _search(
        self,
        sentences: Sequence[Sequence[int]],
        *,
        config: DecodeConfig,
        bos: int,
        eos: int,
        pad: int,
        trace: Trace | None,
    ) -> list[list[Hypothesis]]:
        """Search until the stopping rule holds; bos and eos must be the ids that the conversion
        holds."""
        if (bos, eos) != (BOS, EOS):
            raise ValueError(f"bos and eos must be {BOS} and {EOS}, got {bos} and {eos}")
        _check_sources(sentences)
        lengths = [len(sentence) for sentence in sentences]
        limits = [config.limit(length) for length in lengths]
        self._conversion.ensure_positions(max([*lengths, *limits, 1]))
        runner = self._conversion.runner
        results: list[list[Hypothesis]] = [[] for _ in sentences]
        pending = list(range(len(sentences)))
        for fraction, spread in _STAGES[config.beam > 1]:
            unfinished = []
            calls = []
            for rows in self._batches(pending, lengths, limits, config=config, spread=spread):
                steps = _num_steps([limits[row] for row in rows], fraction)
                tokens = [source_tokens(sentences[row]) for row in rows]
                calls.append(
                    (rows, steps, self._translate(runner, tokens, steps, config, banned=(pad, bos)))
                )
            for rows, steps, batch in calls:
                for row, call in zip(rows, batch, strict=True):
                    hypotheses = _final_hypotheses(
                        _wait(call), steps=steps, limit=limits[row], config=config
                    )
                    if hypotheses is None:
                        unfinished.append(row)
                    else:
                        results[row] = hypotheses
            pending = unfinished
        return results

    def _generate(
        self,
        prompts: Sequence[Sequence[int]],
        config: SampleConfig,
        *,
        window: int | None,
        seeds: Sequence[int],
        banned: Sequence[int],
        trace: Trace | None,
    ) -> list[list[int]]:
        """Continue all prompts at once; samples depend on all prompts and seeds together."""
        conversion = self._conversion
        conversion.ensure_positions(num_positions(max(map(len, prompts)), config.length, window))
        runner = conversion.runner
        if config.temperature > 0:
            runner = self._load_translator("Generator", conversion.files, seed=sum(seeds) % 2**31)
        options = {
            "sampling_temperature": config.temperature or 1,
            "sampling_topk": 1 if config.temperature == 0 else config.top_k or 0,
            "sampling_topp": config.top_p,
            "suppress_sequences": [[str(token)] for token in banned],
            "include_prompt_in_result": False,
            "end_token": [],  # EOS is a token like others unless it is banned
        }
        sequences = [list(prompt) for prompt in prompts]
        contexts = sequences if window is None else [tokens[-window:] for tokens in sequences]
        remaining = [config.length] * len(prompts)
        while any(remaining):
            # As many tokens as fit in the window; then the last of them are encoded again.
            counts = [
                count if window is None else min(count, window - len(context) + 1)
                for count, context in zip(remaining, contexts, strict=True)
            ]
            for row, tokens in self._continue_rows(runner, contexts, counts, options):
                sequences[row] = sequences[row] + tokens
                remaining[row] -= len(tokens)
            contexts = (
                sequences
                if window is None
                else [tokens[-num_reread(config, window) :] for tokens in sequences]
            )
        return [tokens[len(prompt) :] for tokens, prompt in zip(sequences, prompts, strict=True)]

    def _continue_rows(
        self, runner: Any, contexts: list[list[int]], counts: list[int], options: dict[str, Any]
    ) -> Iterator[tuple[int, list[int]]]:
        """Generate counts[row] tokens for each row, and return an iterator over (row, tokens)."""
        calls: list[tuple[int, Any]] = []
        # A batch needs prompts of equal length: CTranslate2 would return the rest of longer prompts
        # with the output.
        shapes = [(count, len(tokens)) for count, tokens in zip(counts, contexts, strict=True)]
        for shape in sorted({shape for shape in shapes if shape[0]}, reverse=True):
            rows, count = [row for row, other in enumerate(shapes) if other == shape], shape[0]
            for part in (
                rows[worker :: self.workers] for worker in range(min(self.workers, len(rows)))
            ):
                prompts = [[str(token) for token in contexts[row]] for row in part]
                batch = runner.generate_batch(
                    prompts, min_length=count, max_length=count, asynchronous=True, **options
                )
                calls += zip(part, batch, strict=True)
        return ((row, [int(token) for token in call.result().sequences[0]]) for row, call in calls)

    def _translate(
        self,
        runner: Any,
        tokens: list[list[str]],
        steps: int,
        config: DecodeConfig,
        *,
        banned: tuple[int, ...],
    ) -> list[Any]:
        """Start the search of at most `steps` steps; return a future for each sentence."""
        options: dict[str, Any] = {"beam_size": config.beam}
        if config.beam > 1:
            options |= {"patience": _UNLIMITED_PATIENCE, "num_hypotheses": config.beam * steps}
        return runner.translate_batch(
            tokens,
            length_penalty=config.length_penalty,
            max_decoding_length=steps,
            min_decoding_length=0,  # the default of 1 would forbid empty outputs
            max_input_length=0,
            suppress_sequences=[[str(token)] for token in banned],
            return_scores=True,
            return_end_token=True,
            asynchronous=True,
            **options,
        )

    def _batches(
        self,
        rows: list[int],
        lengths: list[int],
        limits: list[int],
        *,
        config: DecodeConfig,
        spread: float,
    ) -> list[list[int]]:
        """Return batches of rows, enough for all workers, in which no limit exceeds `spread` times
        another."""
        total = sum(lengths[row] for row in rows)
        budget = min(
            config.batch_tokens // config.beam, max(_MIN_TOKENS, total // (4 * self.workers))
        )
        batches: list[list[int]] = []
        for indices in batch_by_length([lengths[row] for row in rows], budget=budget):
            batch: list[int] = []
            for row in (rows[index] for index in indices):  # longest first
                if batch and limits[batch[0]] > spread * limits[row]:
                    batches.append(batch)
                    batch = []
                batch.append(row)
            batches.append(batch)
        return batches

    def _load_translator(
        self, class_name: str, files: dict[str, bytes], seed: int | None = None
    ) -> Any:
        """Load the converted model. With `seed`, use a single worker so that sampling is
        reproducible."""
        module = importlib.import_module("ctranslate2")
        threads = {"inter_threads": self.workers, "intra_threads": self._threads}
        if seed is not None:
            # Each thread has its own random generator, seeded when it first draws: only a new
            # thread uses the new seed.
            module.set_random_seed(seed)
            threads = {"inter_threads": 1, "intra_threads": self._threads * self.workers}
        return getattr(module, class_name)(
            "regard", files=files, compute_type=self.compute_type, **threads
        )


def create(
    form: TextForm, *, compute_type: str | None = None, threads: int = 1, workers: int | None = None
) -> CTranslate2Engine:
    """Convert a supported form.

    compute_type: float32 if not given.
    workers:      one per thread if not given.
    Raises: UserError if ctranslate2 is not installed, or if the processor does not support the
            compute type.
    """
    try:
        module = importlib.import_module("ctranslate2")
    except ImportError as error:
        raise UserError(
            f"engine 'ctranslate2' needs the package ctranslate2: pip install "
            f'"regard[ctranslate2]" ({error})'
        ) from error
    compute_type = compute_type or "float32"
    known = sorted(module.get_supported_compute_types("cpu"))
    if compute_type not in known:
        raise UserError(
            f"compute type of engine 'ctranslate2' must be one of {', '.join(known)} on this "
            f"machine, got "
            f"{compute_type!r}"
        )
    workers = threads if workers is None else workers
    return CTranslate2Engine(form, compute_type=compute_type, threads=threads, workers=workers)


class _Conversion:
    """Converted form with a growing number of positions."""

    def __init__(self, form: TextForm, load: Callable[[dict[str, bytes]], Any]):
        self.form = form
        self.files: dict[str, bytes] = {}
        self.runner: Any = None
        self._load = load
        self._num_positions = 0
        self.ensure_positions(1)

    def ensure_positions(self, count: int) -> None:
        """Convert again if the current conversion has fewer than `count` positions."""
        limit = self.form.max_positions
        if self.runner is not None and (limit is not None or count <= self._num_positions):
            return
        self._num_positions = max(_FIRST_POSITIONS, 2 * count) if limit is None else limit
        # Nothing stays on disk, so a conversion cannot be used with other weights later.
        with (
            on_device(torch.device("cpu")),
            tempfile.TemporaryDirectory(prefix="regard-ctranslate2-") as folder,
        ):
            build_specification(self.form, num_positions=self._num_positions).save(folder)
            self.files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
        self.runner = self._load(self.files)
        if self.form.source is not None:
            self.files = {}


def _check_sources(sentences: Sequence[Sequence[int]]) -> None:
    """Raise ValueError for a source that CTranslate2 does not accept, as it uses PAD as EOS."""
    for number, ids in enumerate(sentences):
        if PAD in ids or set(ids) <= {BOS}:
            raise ValueError(
                f"sentences must hold no PAD, and more than BOS, got {list(ids)} in sentence "
                f"{number}"
            )


def _num_steps(limits: list[int], fraction: float) -> int:
    return min(*limits, max(_MIN_STEPS, math.ceil(fraction * max(limits))))


def _wait(call: Any) -> Any:
    """Return the result of a future. Raises ValueError for an output longer than the learned
    positions."""
    try:
        return call.result()
    except RuntimeError as error:
        match = re.search(r"No position encodings .* >= (\d+)", str(error))
        if match is None:
            raise
        check_positions(int(match[1]) + 1, int(match[1]))
        raise


def _final_hypotheses(
    result: Any, *, steps: int, limit: int, config: DecodeConfig
) -> list[Hypothesis] | None:
    """Return the best hypotheses of a sentence, best first; None if more steps could change
    them."""
    ended: list[Hypothesis] = []
    cut, last = -math.inf, math.inf
    for result_tokens, score in zip(result.hypotheses, result.scores, strict=True):
        if score < _IMPOSSIBLE:
            continue
        tokens = [int(token) for token in result_tokens]
        finished = tokens[-1] == EOS
        log_prob = score * len(tokens) ** config.length_penalty
        if len(tokens) == steps:
            last = min(last, log_prob)
        if finished or len(tokens) == limit:
            tokens = tokens[:-1] if finished else tokens
            ended.append(
                Hypothesis(tokens=tokens, score=score, log_prob=log_prob, finished=finished)
            )
        else:
            cut = max(cut, log_prob)
    ended.sort(key=lambda hypothesis: -hypothesis.score)
    best = ended[: config.n_best]
    if steps == limit or (config.beam == 1 and best):
        return best
    # The result holds the first `beam` of the last step. If all of them ended, live hypotheses are
    # even less likely.
    live = last if cut == -math.inf else cut
    is_final = len(best) == config.n_best and live / limit**config.length_penalty <= best[-1].score
    return best if is_final else None
