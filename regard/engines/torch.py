"""Engine `torch`: the model itself, step by step, for every model; it can record attention."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.hypothesis import Hypothesis
from regard.decode.progress import begin_progress
from regard.decode.rules import TokenRules
from regard.decode.sample import sample
from regard.decode.search import search
from regard.engines.buffers import BufferedStepper, steps_in_buffers
from regard.engines.engine import Engine, Ids, Limits, on_device
from regard.errors import UserError, warn_caller
from regard.models.model import Model
from regard.models.readers.tokens import TokenReader
from regard.models.writers.tokens import TokenWriter
from regard.ops.dispatch import unsupported_reason
from regard.ops.half import has_half_products
from regard.trace import Trace
from regard.training.precision import emulates_bfloat16

HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""Compute types besides the dtype of the weights."""


class TorchEngine(Engine):
    """Engine that runs the given model itself, which must be in eval mode, on its own device.

    compute_type: dtype of the weights; with bfloat16 or float16 a copy of the model in this dtype
                  runs. Like the other engines it ignores autocast.
    Raises: UserError for another compute type, or more than one worker.
    """

    name = "torch"
    traces = True

    def __init__(
        self, model: Model, *, compute_type: str | None = None, workers: int | None = None
    ):
        self._model, self._lock = model, Lock()
        if workers not in (None, 1):
            raise UserError(f"engine 'torch' has 1 worker, which uses all threads, got {workers}")
        if compute_type not in (None, self.compute_type):
            if compute_type not in HALF:
                known = f"the dtype of the weights ({self.compute_type}), {' or '.join(HALF)}"
                given = f"got {compute_type!r}"
                raise UserError(f"compute type of engine 'torch' must be {known}, {given}")
            self._model = _convert(model, HALF[compute_type])
        self._steppers = [BufferedStepper(self._model, has_beams=value) for value in (False, True)]

    @property
    def compute_type(self) -> str:  # type: ignore[override]
        return str(self._dtype).removeprefix("torch.")

    @property
    def _dtype(self) -> torch.dtype:
        return next(self._model.parameters(), torch.empty(0)).dtype

    @property
    def limits(self) -> Limits:  # type: ignore[override]
        """Inputs that the model accepts; positions are checked by the model itself."""
        reader, writer = self._model.reader, self._model.writer
        target_ids = _vocab_size(writer.inputs if isinstance(writer, TokenWriter) else None)
        source_ids = target_ids if reader is None else _vocab_size(reader)
        reason = self._model.core.unsupported_slide_reason
        return Limits(reader is not None, source_ids, target_ids, unsupported_slide_reason=reason)

    def _search(self, ids: Ids, config: DecodeConfig, **settings: Any) -> list[list[Hypothesis]]:
        with self._numerics() as device, self._stepper(device, config, **settings) as stepper:
            return search(stepper, ids, config=config, device=device, **settings)

    def search_images(
        self, images: Float[Tensor, "batch channels height width"], **settings: Any
    ) -> list[list[Hypothesis]]:
        with self._numerics() as device, self._stepper(device, **settings) as stepper:
            return search(stepper, images.to(device, self._dtype), **settings)

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
        results: list[list[int]] = [[] for _ in prompts]
        ids = list(banned)
        if (progress := begin_progress(len(prompts))) is not None:
            progress.publish(range(len(prompts)), results)
        with self._numerics() as device, self._stepper(device, config, trace) as stepper:
            for number, (prompt, seed) in enumerate(zip(map(list, prompts), seeds, strict=True)):
                if trace is not None:
                    trace.begin_segment([number])
                options: Any = {"window": window, "banned": ids, "rules": rules, "trace": trace}
                for token in sample(stepper, prompt, config, seed=seed, **options):
                    results[number].append(token)
        return results

    @contextmanager
    def _stepper(self, device: Any, config: Any, trace: Any = None, **_: Any) -> Iterator[Any]:
        """Yield the model, or on a GPU its steps in buffers, which serve one thread at a time."""
        is_captured = device.type == "cuda" and trace is None and unsupported_reason() is None
        slides = isinstance(config, SampleConfig) and config.context == "slide"
        if is_captured and not slides and steps_in_buffers(self._model):
            with self._lock:
                yield self._steppers[isinstance(config, DecodeConfig) and config.beam > 1]
        else:
            yield self._model

    @contextmanager
    def _numerics(self) -> Iterator[torch.device]:
        """Yield the model's device, as the default device, without autocast and gradients."""
        device = next(self._model.parameters()).device
        with torch.no_grad(), torch.autocast(device.type, enabled=False), on_device(device):
            yield device


def _convert(model: Model, dtype: torch.dtype) -> Model:
    """Return a copy of a model in half precision; warn of a device that emulates it."""
    device = next(model.parameters()).device
    has_products = device.type != "cpu" or has_half_products(dtype)
    if not has_products or (dtype == torch.bfloat16 and emulates_bfloat16(device)):
        name = str(dtype).removeprefix("torch.")
        warn_caller(
            f"{device} has no {name} instructions and emulates them, which usually takes longer "
            f"than float32"
        )
    with torch.inference_mode(mode=False):
        return copy.deepcopy(model).to(dtype)


def _vocab_size(part: object) -> int | None:
    """Return the size of the vocabulary of a reader; None if it has none, or it is not known."""
    return part.table.num_embeddings if isinstance(part, TokenReader) else None
