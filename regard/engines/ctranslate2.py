"""The engine `ctranslate2`: the model converted to CTranslate2, which decodes in C++, in float32, int8 and others.

Its beam search has the moves of regard.decode.beam but ends otherwise, so each search is led to the same end:

    pool     = all that ended within T steps                   CTranslate2 with a patience without limit
    settled  : best live log p / limit^alpha <= worst of the n best in the pool
    unsettled sentences are searched again with a longer T, at last with their own limit

T is at most the shortest limit of a batch, whose sentences have like lengths. So the outputs are those of the torch
engine, to rounding, at the cost of some steps behind the end that `patience=1` would not take.

Two things differ. Banned ids are taken out before the softmax and not after it, so that a score is higher by the
-log(1 - p(banned)) of its tokens. What is drawn at a temperature above 0 comes from CTranslate2's own random numbers.

Source: the stopping rule is that of regard.decode.beam; patience kasai2022.
"""

import importlib
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.data.tokenize import BOS, EOS, PAD
from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.hypothesis import Hypothesis
from regard.decode.search import in_batches
from regard.engines.convert import source_words, specification
from regard.engines.convert import unsupported as unsupported
from regard.engines.engine import Engine, Limits, limits_of
from regard.engines.requests import check_places, most_read
from regard.errors import UserError
from regard.layers.forms import TextForm

LARGEST_ITEM = 1e12
"""Its norms square items, and hide what overflows."""
_PLACES = 1024
"""Positions of the first conversion; longer inputs or outputs convert again."""
_ENDLESS = 1e6
"""Patience that no search uses up."""
_IMPOSSIBLE = -1e30
"""Scores below are of hypotheses that hold a banned id, because there were no others."""
_FEWEST_STEPS = 16
"""To stop sooner saves nothing."""
_LEAST_TOKENS = 256
"""Source tokens that make a batch worth a worker."""


class _Converted:
    """A form, converted for as many positions as were needed so far."""

    def __init__(self, form: TextForm, load: Callable[[dict[str, bytes]], Any]):
        self.form = form
        self.files: dict[str, bytes] = {}
        self.runner: Any = None
        self._load = load
        self._places = 0
        self.reach(1)

    def reach(self, places: int) -> None:
        """Convert, unless there is a conversion that serves so many positions."""
        most = self.form.most_places
        if self.runner is not None and (most is not None or places <= self._places):
            return
        self._places = max(_PLACES, 2 * places) if most is None else most
        # Nothing stays on disk: a converted model that outlives its weights would answer for others.
        with torch.device("cpu"), tempfile.TemporaryDirectory(prefix="regard-ctranslate2-") as folder:
            specification(self.form, places=self._places).save(folder)
            self.files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
        self.runner = self._load(self.files)
        if self.form.source is not None:
            self.files = {}


class CTranslate2Engine(Engine):
    """A converted snapshot of a model; see `create`."""

    name = "ctranslate2"

    def __init__(self, form: TextForm, *, compute_type: str, threads: int, workers: int):
        self.compute_type = compute_type
        self.workers = workers
        self._threads = max(1, threads // workers)
        make = "Generator" if form.source is None else "Translator"
        self._converted = _Converted(form, lambda files: self._load(make, files))

    @property
    def limits(self) -> Limits:
        """Inputs that the form takes."""
        return limits_of(self._converted.form)

    def _search(
        self,
        sentences: Sequence[Sequence[int]],
        *,
        config: DecodeConfig,
        bos: int,
        eos: int,
        pad: int,
    ) -> list[list[Hypothesis]]:
        """Led to the end of the search; bos and eos must be those of this library, which the conversion holds."""
        if (bos, eos) != (BOS, EOS):
            raise ValueError(f"bos and eos must be {BOS} and {EOS}, got {bos} and {eos}")
        _check_readable(sentences)
        lengths = [len(sentence) for sentence in sentences]
        limits = [config.limit(length) for length in lengths]
        ready = self._converted
        ready.reach(max([*lengths, *limits, 1]))
        results: list[list[Hypothesis]] = [[] for _ in sentences]
        left = list(range(len(sentences)))
        for share, spread in _STAGES[config.beam > 1]:
            unsettled = []
            calls = []
            for rows in self._batches(left, lengths, limits, config=config, spread=spread):
                steps = _steps([limits[row] for row in rows], share)
                words = [source_words(sentences[row]) for row in rows]
                calls.append((rows, steps, self._translate(ready.runner, words, steps, config, banned=(pad, bos))))
            for rows, steps, batch in calls:
                for row, one in zip(rows, batch, strict=True):
                    found = _settled(_result(one), steps=steps, limit=limits[row], config=config)
                    if found is None:
                        unsettled.append(row)
                    else:
                        results[row] = found
            left = unsettled
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
        """All prompts at once: what is drawn follows from all prompts and seeds together."""
        ready = self._converted
        ready.reach(most_read(max(map(len, prompts)), config.length, window))
        runner = ready.runner
        if config.temperature > 0:
            runner = self._load("Generator", ready.files, seed=sum(seeds) % 2**31)
        how = {
            "sampling_temperature": config.temperature or 1,
            "sampling_topk": 1 if config.temperature == 0 else config.top_k or 0,
            "sampling_topp": config.top_p,
            "suppress_sequences": [[str(token)] for token in banned],
            "include_prompt_in_result": False,
            "end_token": [],  # an end symbol that is not banned is a token like others
        }
        seen = [list(prompt) for prompt in prompts]
        fed = seen if window is None else [tokens[-window:] for tokens in seen]
        left = [config.length] * len(prompts)
        while any(left):
            # As much as one state can hold; then the last half of the window is read anew.
            counts = [
                most if window is None else min(most, window - len(read) + 1)
                for most, read in zip(left, fed, strict=True)
            ]
            for row, tokens in self._continued(runner, fed, counts, how):
                seen[row] = seen[row] + tokens
                left[row] -= len(tokens)
            fed = seen if window is None else [tokens[-max(1, window // 2) :] for tokens in seen]
        return [tokens[len(prompt) :] for tokens, prompt in zip(seen, prompts, strict=True)]

    def _continued(
        self, runner: Any, fed: list[list[int]], counts: list[int], how: dict[str, Any]
    ) -> Iterator[tuple[int, list[int]]]:
        """Each row that is to go on, with so many tokens more."""
        calls: list[tuple[int, Any]] = []
        # Of prompts of unlike lengths the rest of the longer ones would be counted among what is said.
        shapes = [(count, len(tokens)) for count, tokens in zip(counts, fed, strict=True)]
        for shape in sorted({shape for shape in shapes if shape[0]}, reverse=True):
            rows, count = [row for row, other in enumerate(shapes) if other == shape], shape[0]
            for part in (rows[worker :: self.workers] for worker in range(min(self.workers, len(rows)))):
                texts = [[str(token) for token in fed[row]] for row in part]
                found = runner.generate_batch(texts, min_length=count, max_length=count, asynchronous=True, **how)
                calls += zip(part, found, strict=True)
        return ((row, [int(word) for word in call.result().sequences[0]]) for row, call in calls)

    def _translate(
        self, runner: Any, words: list[list[str]], steps: int, config: DecodeConfig, *, banned: tuple[int, ...]
    ) -> list[Any]:
        """What ends, or is cut, within so many steps, for each sentence: promises, which the workers keep."""
        how: dict[str, Any] = {"beam_size": config.beam}
        if config.beam > 1:
            how |= {"patience": _ENDLESS, "num_hypotheses": config.beam * steps}
        return runner.translate_batch(
            words,
            length_penalty=config.length_penalty,
            max_decoding_length=steps,
            min_decoding_length=0,  # its own choice of 1 would forbid empty outputs
            max_input_length=0,
            suppress_sequences=[[str(token)] for token in banned],
            return_scores=True,
            return_end_token=True,
            asynchronous=True,
            **how,
        )

    def _batches(
        self, rows: list[int], lengths: list[int], limits: list[int], *, config: DecodeConfig, spread: float
    ) -> list[list[int]]:
        """These sentences in batches, enough for all workers; in each no limit is above spread times another."""
        total = sum(lengths[row] for row in rows)
        budget = min(config.batch_tokens // config.beam, max(_LEAST_TOKENS, total // (4 * self.workers)))
        batches: list[list[int]] = []
        for places in in_batches([lengths[row] for row in rows], budget=budget):
            batch: list[int] = []
            for row in (rows[place] for place in places):  # longest first
                if batch and limits[batch[0]] > spread * limits[row]:
                    batches.append(batch)
                    batch = []
                batch.append(row)
            batches.append(batch)
        return batches

    def _load(self, make: str, files: dict[str, bytes], seed: int | None = None) -> Any:
        """What runs a conversion; with a seed one worker, whose draws begin there."""
        module = importlib.import_module("ctranslate2")
        layout = {"inter_threads": self.workers, "intra_threads": self._threads}
        if seed is not None:
            # Each thread has random numbers of its own, which begin by the seed of when it first draws: only a new one
            # draws again what was drawn before.
            module.set_random_seed(seed)
            layout = {"inter_threads": 1, "intra_threads": self._threads * self.workers}
        return getattr(module, make)("regard", files=files, compute_type=self.compute_type, **layout)


def _check_readable(sentences: Sequence[Sequence[int]]) -> None:
    """Raises ValueError for a source that CTranslate2 does not read: PAD is what it takes for EOS."""
    for number, ids in enumerate(sentences):
        if PAD in ids or set(ids) <= {BOS}:
            raise ValueError(f"sentences must hold no PAD, and more than BOS, got {list(ids)} in sentence {number}")


_STAGES = {True: ((0.5, 2.0), (1.0, 1.25), (1.0, 1.0)), False: ((1.0, 2.0), (1.0, 1.0))}
"""For beams, and for greedy search, which ends by itself: share of the limit that is searched, and how far the limits
of a batch may be apart. The last stage searches to each one's own limit."""


def _steps(limits: list[int], share: float) -> int:
    return min(*limits, max(_FEWEST_STEPS, math.ceil(share * max(limits))))


def _result(call: Any) -> Any:
    """What was promised. Raises: ValueError for an output that goes on past the last learned position."""
    try:
        return call.result()
    except RuntimeError as error:
        past = re.search(r"No position encodings .* >= (\d+)", str(error))
        if past is None:
            raise
        check_places(int(past[1]) + 1, int(past[1]))
        raise


def _settled(result: Any, *, steps: int, limit: int, config: DecodeConfig) -> list[Hypothesis] | None:
    """The best hypotheses of a sentence, best first; None if going on beyond these steps could change them."""
    ended: list[Hypothesis] = []
    cut, last = -math.inf, math.inf
    for words, score in zip(result.hypotheses, result.scores, strict=True):
        if score < _IMPOSSIBLE:
            continue
        tokens = [int(word) for word in words]
        finished = tokens[-1] == EOS
        log_prob = score * len(tokens) ** config.length_penalty
        if len(tokens) == steps:
            last = min(last, log_prob)
        if finished or len(tokens) == limit:
            tokens = tokens[:-1] if finished else tokens
            ended.append(Hypothesis(tokens=tokens, score=score, log_prob=log_prob, finished=finished))
        else:
            cut = max(cut, log_prob)
    ended.sort(key=lambda one: -one.score)
    best = ended[: config.n_best]
    if steps == limit or (config.beam == 1 and best):
        return best
    # All of the first `beam` of the last step are told. Where all of them ended, what lives on is less likely still.
    live = last if cut == -math.inf else cut
    enough = len(best) == config.n_best and live / limit**config.length_penalty <= best[-1].score
    return best if enough else None


def create(
    form: TextForm, *, compute_type: str | None = None, threads: int = 1, workers: int | None = None
) -> CTranslate2Engine:
    """Convert a form that is supported.

    compute_type: float32 if not given; workers: as many as threads if not given, one thread each.
    Raises: UserError if ctranslate2 is not installed, or this processor has no such compute type.
    """
    try:
        module = importlib.import_module("ctranslate2")
    except ImportError as error:
        raise UserError(
            f'engine ctranslate2 needs the package ctranslate2: pip install "regard[ctranslate2]" ({error})'
        ) from error
    compute_type = compute_type or "float32"
    known = sorted(module.get_supported_compute_types("cpu"))
    if compute_type not in known:
        raise UserError(f"engine ctranslate2 computes in {', '.join(known)} here, not in {compute_type!r}")
    workers = threads if workers is None else workers
    return CTranslate2Engine(form, compute_type=compute_type, threads=threads, workers=workers)
