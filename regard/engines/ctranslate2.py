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
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from regard.data.tokenise import BOS, EOS
from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.hypothesis import Hypothesis
from regard.decode.search import in_batches
from regard.engines.convert import most_positions, refusal, specification
from regard.engines.engine import Engine
from regard.errors import UserError
from regard.models.model import Model

__all__ = ["CTranslate2Engine", "prepare", "refusal"]

_PLACES = 1024
"""Positions of the first conversion; longer inputs or outputs convert again."""
_ENDLESS = 1e6
"""Patience that no search uses up."""
_IMPOSSIBLE = -1e30
"""Scores below are of hypotheses that hold a banned id, because there were no others."""
_LEAST_TOKENS = 256
"""Source tokens that make a batch worth a worker."""


class CTranslate2Engine(Engine):
    """A converted copy of a model; see `prepare`."""

    name = "ctranslate2"

    def __init__(self, model: nn.Module, *, compute_type: str, threads: int, workers: int):
        self.compute_type = compute_type
        self.workers = workers
        self._threads = max(1, threads // workers)
        self._model = model
        self._places = 0
        self._runner: Any = None
        self._reach(1)

    def search(
        self, sentences: Sequence[Sequence[int]], *, config: DecodeConfig, bos: int, eos: int, pad: int
    ) -> list[list[Hypothesis]]:
        """As `Engine.search`; bos and eos must be those of this library, which the conversion holds."""
        if not isinstance(self._model, Model):
            return super().search(sentences, config=config, bos=bos, eos=eos, pad=pad)
        if (bos, eos) != (BOS, EOS):
            raise ValueError(f"bos and eos must be {BOS} and {EOS}, got {bos} and {eos}")
        lengths = [len(sentence) for sentence in sentences]
        if 0 in lengths:
            raise ValueError(f"sentences must hold at least one id, got none in sentence {lengths.index(0)}")
        limits = [config.limit(length) for length in lengths]
        self._reach(max(lengths, default=1), max(limits, default=1))
        words = [[str(token) for token in sentence] for sentence in sentences]
        results: list[list[Hypothesis]] = [[] for _ in sentences]
        left = list(range(len(sentences)))
        for share, spread in _STAGES[config.beam > 1]:
            batches = self._batches(left, lengths, limits, config=config, spread=spread)
            steps = [_steps([limits[row] for row in rows], share) for rows in batches]
            calls = [
                self._runner.translate_batch(
                    [words[row] for row in rows],
                    beam_size=config.beam,
                    patience=_ENDLESS if config.beam > 1 else 1,
                    num_hypotheses=config.beam * most if config.beam > 1 else 1,
                    length_penalty=config.length_penalty,
                    max_decoding_length=most,
                    min_decoding_length=0,
                    max_input_length=0,
                    suppress_sequences=[[str(pad)], [str(bos)]],
                    return_scores=True,
                    return_end_token=True,
                    asynchronous=True,
                )
                for rows, most in zip(batches, steps, strict=True)
            ]
            left = []
            for rows, most, call in zip(batches, steps, calls, strict=True):
                for row, one in zip(rows, call, strict=True):
                    found = _settled(one.result(), steps=most, limit=limits[row], config=config)
                    if found is None:
                        left.append(row)
                    else:
                        results[row] = found
        assert not left
        return results

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        config: SampleConfig,
        *,
        window: int | None,
        seeds: Sequence[int],
        banned: Sequence[int],
    ) -> list[list[int]]:
        """As `Engine.generate`, all prompts at once: what is drawn follows from all seeds together."""
        if isinstance(self._model, Model):
            return super().generate(prompts, config, window=window, seeds=seeds, banned=banned)
        if not all(map(len, prompts)):
            raise ValueError("the prompt must have a token at least, but is empty")
        self._reach(min(window or math.inf, max(map(len, prompts), default=1) + config.length))
        module = importlib.import_module("ctranslate2")
        module.set_random_seed(sum(seeds) % 2**31)
        how = {
            "sampling_temperature": config.temperature or 1,
            "sampling_topk": 1 if config.temperature == 0 else config.top_k or 0,
            "sampling_topp": config.top_p,
            "suppress_sequences": [[str(token)] for token in banned],
            "include_prompt_in_result": False,
        }
        seen = [list(prompt) for prompt in prompts]
        fed = [prompt[-(window or len(prompt)) :] for prompt in seen]
        ends = [len(prompt) + config.length for prompt in prompts]
        while any(len(tokens) < end for tokens, end in zip(seen, ends, strict=True)):
            # What one state can hold: then the last half of the window is read anew.
            room = [
                min(end - len(tokens), end if window is None else window - len(read) + 1)
                for tokens, read, end in zip(seen, fed, ends, strict=True)
            ]
            calls = []
            for count in sorted(set(room) - {0}, reverse=True):
                rows = [row for row, most in enumerate(room) if most == count]
                for part in self._spread(rows):
                    texts = [[str(token) for token in fed[row]] for row in part]
                    length = {"min_length": count, "max_length": count}
                    calls += zip(part, self._runner.generate_batch(texts, asynchronous=True, **length, **how), strict=True)
            for row, call in calls:
                seen[row] += map(int, call.result().sequences[0])
                fed[row] = seen[row][-max(1, (window or len(seen[row])) // 2) :]
        return [tokens[len(prompt) :] for tokens, prompt in zip(seen, prompts, strict=True)]

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

    def _spread(self, rows: list[int]) -> Iterator[list[int]]:
        """The rows, dealt out to the workers."""
        return (part for worker in range(self.workers) if (part := rows[worker :: self.workers]))

    def _reach(self, *places: float) -> None:
        """Convert, unless there is a conversion that serves so many positions."""
        most = most_positions(self._model)
        needed = int(max(places))
        if self._runner is not None and (most is not None or needed <= self._places):
            return
        self._places = max(_PLACES, 2 * needed) if most is None else most
        module = importlib.import_module("ctranslate2")
        make = module.Translator if isinstance(self._model, Model) else module.Generator
        # All is read when it is loaded, so that nothing stays on disk.
        with tempfile.TemporaryDirectory(prefix="regard-ctranslate2-") as folder:
            specification(self._model, places=self._places).save(folder)
            self._runner = make(
                folder, compute_type=self.compute_type, inter_threads=self.workers, intra_threads=self._threads
            )


_STAGES = {True: ((0.5, 2.0), (1.0, 1.25), (1.0, 1.0)), False: ((1.0, 2.0), (1.0, 1.0))}
"""For beams, and for greedy search, which ends by itself: share of the limit that is searched, and how far the limits
of a batch may be apart. The last stage searches to each one's own limit."""


def _steps(limits: list[int], share: float) -> int:
    return min(min(limits), math.ceil(share * max(limits)))


def _settled(result: Any, *, steps: int, limit: int, config: DecodeConfig) -> list[Hypothesis] | None:
    """The best hypotheses of a sentence, best first; None if going on beyond these steps could change them."""
    ended, live = [], -math.inf
    for tokens, score in zip(result.hypotheses, result.scores, strict=True):
        ids = [int(token) for token in tokens]
        finished = ids[-1] == EOS
        log_prob = score * len(ids) ** config.length_penalty
        if score < _IMPOSSIBLE:
            continue
        if finished or len(ids) == limit:
            ids = ids[:-1] if finished else ids
            ended.append(Hypothesis(tokens=ids, score=score, log_prob=log_prob, finished=finished))
        else:
            live = max(live, log_prob)
    ended.sort(key=lambda one: -one.score)
    best = ended[: config.n_best]
    if steps == limit or config.beam == 1:
        return best or None
    enough = len(best) == config.n_best and live / limit**config.length_penalty <= best[-1].score
    return best if enough and live > -math.inf else None


def prepare(
    model: nn.Module, *, compute_type: str | None = None, threads: int = 1, workers: int | None = None
) -> CTranslate2Engine:
    """Convert a model that is not refused.

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
    with torch.no_grad():
        return CTranslate2Engine(model, compute_type=compute_type, threads=threads, workers=workers)
