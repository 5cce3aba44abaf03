"""The engine `torch`: the model itself, step by step. It runs every model, and its attention can be recorded."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import cast

import torch
from torch import nn

from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.hypothesis import Hypothesis
from regard.decode.sample import Continues, sample
from regard.decode.search import search
from regard.decode.stepper import Stepper
from regard.engines.engine import Engine, Limits
from regard.errors import UserError
from regard.models.reads.tokens import TokenReader
from regard.models.writes.tokens import TokenWriter


class TorchEngine(Engine):
    """The caller's model itself, in its present state: in eval mode, wherever it is.

    It computes in the numbers of its weights, whatever autocast says, as other engines do.
    Raises: UserError for a compute type other than the weights', or more than one worker.
    """

    name = "torch"

    def __init__(self, model: nn.Module, *, compute_type: str | None = None, workers: int | None = None):
        self._model = model
        if compute_type not in (None, self.compute_type):
            raise UserError(f"engine torch computes in {self.compute_type} here, not in {compute_type!r}")
        if workers not in (None, 1):
            raise UserError(f"engine torch has one worker, which takes all threads, not {workers}")

    @property
    def compute_type(self) -> str:  # type: ignore[override]
        """Type of the model's weights."""
        return str(next(self._model.parameters(), torch.empty(0)).dtype).removeprefix("torch.")

    @property
    def limits(self) -> Limits:
        """Inputs that the model takes; it checks positions itself."""
        reads, writes = _ids(getattr(self._model, "reads", None)), _ids(getattr(self._model, "writes", None))
        searches = hasattr(self._model, "start")
        return Limits(searches, reads, writes if searches else reads)

    def _search(
        self, sentences: Sequence[Sequence[int]], *, config: DecodeConfig, bos: int, eos: int, pad: int
    ) -> list[list[Hypothesis]]:
        device = next(self._model.parameters()).device
        stepper = cast("Stepper", self._model)
        with torch.no_grad(), _numbers_of(device):
            return search(stepper, sentences, config=config, bos=bos, eos=eos, pad=pad, device=device)

    def _generate(
        self,
        prompts: Sequence[Sequence[int]],
        config: SampleConfig,
        *,
        window: int | None,
        seeds: Sequence[int],
        banned: Sequence[int],
    ) -> list[list[int]]:
        """One prompt after the other."""
        model = cast("Continues", self._model)
        with _numbers_of(next(self._model.parameters()).device):
            return [
                list(sample(model, list(prompt), config, window=window, seed=seed, banned=list(banned)))
                for prompt, seed in zip(prompts, seeds, strict=True)
            ]


@contextmanager
def _numbers_of(device: torch.device) -> Iterator[None]:
    """Compute on a device in the numbers of the weights, whatever the caller's autocast and default device are."""
    # A default device costs time at each call of torch, so it is set only where the caller set another.
    own = nullcontext() if torch.get_default_device() == device else device
    with torch.autocast(device.type, enabled=False), own:
        yield


def _ids(part: object) -> int | None:
    """Size of the vocabulary of a part of a model; None if it has none, or it is not known."""
    if isinstance(part, TokenWriter):
        part = part.inputs
    return part.table.num_embeddings if isinstance(part, TokenReader) else None
