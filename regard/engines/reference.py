"""The engine `torch`: the model itself, step by step. It runs every model, and its reads can be looked at."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn

from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.hypothesis import Hypothesis
from regard.decode.sample import Continues, sample
from regard.decode.search import search
from regard.decode.stepper import Stepper
from regard.engines.engine import Engine
from regard.engines.requests import check_prompts, check_sentences, check_specials
from regard.errors import UserError
from regard.models.reads.tokens import TokenReader
from regard.models.writes.tokens import TokenWriter

__all__ = ["TorchEngine", "prepare", "refusal"]


class TorchEngine(Engine):
    """The model, which stays the caller's: in eval mode, wherever it is."""

    name = "torch"

    def __init__(self, model: nn.Module):
        self._model = model
        self.compute_type = str(next(model.parameters(), torch.empty(0)).dtype).removeprefix("torch.")

    def search(
        self, sentences: Sequence[Sequence[int]], *, config: DecodeConfig, bos: int, eos: int, pad: int
    ) -> list[list[Hypothesis]]:
        """As `regard.decode.search.search`."""
        if not hasattr(self.model, "start"):
            return super().search(sentences, config=config, bos=bos, eos=eos, pad=pad)
        reads, writes = (getattr(self.model, name, None) for name in ("reads", "writes"))
        check_sentences(sentences, _ids(reads))
        check_specials(bos=bos, eos=eos, pad=pad, vocab=_ids(writes))
        device = next(self.model.parameters()).device
        with torch.no_grad():
            stepper = cast("Stepper", self.model)
            return search(stepper, sentences, config=config, bos=bos, eos=eos, pad=pad, device=device)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        config: SampleConfig,
        *,
        window: int | None,
        seeds: Sequence[int],
        banned: Sequence[int],
    ) -> list[list[int]]:
        """As `regard.decode.sample.sample`, one prompt after the other."""
        if not hasattr(self.model, "begin"):
            return super().generate(prompts, config, window=window, seeds=seeds, banned=banned)
        vocab = _ids(getattr(self.model, "reads", None))
        check_prompts(prompts, seeds=seeds, banned=banned, window=window, vocab=vocab)
        model = cast("Continues", self.model)
        return [
            list(sample(model, list(prompt), config, window=window, seed=seed, banned=list(banned)))
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]


def _ids(part: object) -> int | None:
    """How many ids a part of a model knows; None if it knows none, or nobody knows."""
    if isinstance(part, TokenWriter):
        part = part.inputs
    return part.table.num_embeddings if isinstance(part, TokenReader) else None


def refusal(model: nn.Module) -> str | None:
    """It runs everything."""
    return None


def prepare(
    model: nn.Module, *, compute_type: str | None = None, threads: int = 1, workers: int | None = None
) -> TorchEngine:
    """The model as it is; torch's own threads are those of the whole process.

    Raises: UserError for other numbers than the weights', or more than one worker.
    """
    engine = TorchEngine(model)
    if compute_type not in (None, engine.compute_type):
        raise UserError(f"engine torch computes in {engine.compute_type} here, not in {compute_type!r}")
    if workers not in (None, 1):
        raise UserError(f"engine torch has one worker, which takes all threads, not {workers}")
    return engine
