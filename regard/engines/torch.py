"""Engine `torch`: the model itself, step by step. It runs every model, and its attention can be recorded."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import cast

import torch
from torch import nn

from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.hypothesis import Hypothesis
from regard.decode.sample import CausalLanguageModel, sample
from regard.decode.search import search
from regard.decode.stepper import Stepper
from regard.engines.engine import Engine, Limits
from regard.errors import UserError
from regard.models.readers.tokens import TokenReader
from regard.models.writers.tokens import TokenWriter


class TorchEngine(Engine):
    """Engine that runs the given model itself, which must be in eval mode, on its own device.

    Like the other engines it ignores autocast: it computes in the dtype of the weights.
    Raises: UserError for a compute type other than that of the weights, or more than one worker.
    """

    name = "torch"

    def __init__(self, model: nn.Module, *, compute_type: str | None = None, workers: int | None = None):
        self._model = model
        if compute_type not in (None, self.compute_type):
            raise UserError(
                f"compute type of engine 'torch' must be the dtype of the weights ({self.compute_type}), got "
                f"{compute_type!r}"
            )
        if workers not in (None, 1):
            raise UserError(f"number of workers of engine 'torch' must be 1 (it uses all threads), got {workers}")

    @property
    def compute_type(self) -> str:  # type: ignore[override]
        """Dtype of the weights of the model."""
        return str(next(self._model.parameters(), torch.empty(0)).dtype).removeprefix("torch.")

    @property
    def limits(self) -> Limits:
        """Inputs that the model accepts; positions are checked by the model itself."""
        reads = _vocab_size(getattr(self._model, "reads", None))
        writes = _vocab_size(getattr(self._model, "writes", None))
        is_encoder_decoder = hasattr(self._model, "start")
        return Limits(is_encoder_decoder, reads, writes if is_encoder_decoder else reads)

    def _search(
        self, sentences: Sequence[Sequence[int]], *, config: DecodeConfig, bos: int, eos: int, pad: int
    ) -> list[list[Hypothesis]]:
        device = next(self._model.parameters()).device
        stepper = cast("Stepper", self._model)
        with torch.no_grad(), _default_numerics(device):
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
        """Continue one prompt after the other."""
        model = cast("CausalLanguageModel", self._model)
        with _default_numerics(next(self._model.parameters()).device):
            return [
                list(sample(model, list(prompt), config, window=window, seed=seed, banned=list(banned)))
                for prompt, seed in zip(prompts, seeds, strict=True)
            ]


@contextmanager
def _default_numerics(device: torch.device) -> Iterator[None]:
    """Disable autocast and set the default device, independent of the settings of the caller."""
    # A default device slows down each call of torch, so it is set only if the caller set another one.
    default_device = nullcontext() if torch.get_default_device() == device else device
    with torch.autocast(device.type, enabled=False), default_device:
        yield


def _vocab_size(part: object) -> int | None:
    """Return the size of the vocabulary of a part of a model; None if it has none, or it is not known."""
    if isinstance(part, TokenWriter):
        part = part.inputs
    return part.table.num_embeddings if isinstance(part, TokenReader) else None
