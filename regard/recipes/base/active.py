"""Model of a trained run, its ownership, and the engine that decodes with it.

after `load`        the run owns its module: an engine freezes it at the first decoding
run.model           returns the module, which the caller may change: the torch engine is used from
then on
run.compile()       freezes a copy of the module's present state and builds an engine from it
record(run)         one thread records, and no other predicts meanwhile (`Turns`)
"""

import copy
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from regard.compat.torch import version_of
from regard.engines.engine import Engine
from regard.engines.registry import NotCachedError, prefers_compiled, prepare
from regard.engines.torch import TorchEngine
from regard.errors import UserError, warn_caller

_LOG = logging.getLogger(__name__)
MANY = 1000
"""Number of inputs from which compiling pays off if compiled code cannot be cached."""
_CHANGED = (
    "the model that run.model returned has changed since run.compile(), which answers with a copy "
    "from before: call "
    "run.compile() again for the present state"
)
_INTERNAL = frozenset(vars(nn.Module()))
"""Attributes that all modules have."""
_AUTO: dict[str, Any] = {"engine": "auto", "compute_type": None, "workers": None}


class ActiveModel:
    """Module in eval mode, its frozen copy if there is one, and the engine that decodes.

    decodes: True if the recipe decodes tokens; other recipes have no engine.
    """

    def __init__(self, module: nn.Module, *, decodes: bool, recipe: str):
        self.module: Any = module.eval()
        self._model: Any = self.module
        self.is_owned = False
        """True if nothing else refers to the module, as after `load`."""
        self._decodes, self._recipe = decodes, recipe
        self._choice = _AUTO
        self._engine: Engine | None = None
        self._is_faster_expected = False
        self._warned: set[str] = set()
        self._compiled_from: _Snapshot | None = None
        """State of `module` when a copy of it was compiled; None if no copy computes."""

    @property
    def model(self) -> Any:
        """The module used for inference, in eval mode: a copy if a module that is not owned was
        compiled."""
        if not self.is_owned and any(part.training for part in self._model.modules()):
            if self._model.training:  # else new parts, which begin in training mode
                self._warn_once(
                    "run.model was in training mode, in which outputs are random: it is set to "
                    "eval mode; before "
                    "training it further, call run.model.train()"
                )
            self._model.eval()
        if self._compiled_from is not None and not self._compiled_from.is_current():
            self._warn_once(_CHANGED)
        return self._model

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which owns the module used for inference and builds its own
        engine."""
        return vars(self) | {
            "_engine": None,
            "module": self._model,
            "is_owned": True,
            "_compiled_from": None,
        }

    def hand_out(self) -> Any:
        """Return the module. The caller may change it, so the torch engine is used from now on."""
        if self.is_owned or self._engine is not None:
            self._is_faster_expected = self._engine is None or self._engine.name != "torch"
        self.is_owned, self._engine, self._model, self._compiled_from = (
            False,
            None,
            self.module,
            None,
        )
        return self.module

    def compile(
        self,
        engine: str | None = None,
        *,
        compute_type: str | None = None,
        workers: int | None = None,
        cached_only: bool = False,
    ) -> None:
        """Freeze a copy of the module for inference; see `TrainedRun.compile` and
        `regard.engines.registry.prepare`."""
        choice: dict[str, Any] = self._choice
        if engine is not None or compute_type is not None or workers is not None:
            choice = {"engine": engine or "auto", "compute_type": compute_type, "workers": workers}
        if not self._decodes and choice not in (_AUTO, _AUTO | {"engine": "torch"}):
            raise UserError(
                f"the recipe {self._recipe} does not decode tokens, so it has no engines: leave "
                f"out engine, "
                "compute_type and workers"
            )
        state = None if self.is_owned else _Snapshot(self.module)
        model = self.module if self.is_owned else _copy(self.module).eval()
        layout = {
            "compute_type": choice["compute_type"],
            "workers": choice["workers"],
            "cached_only": cached_only,
        }
        self._engine = prepare(choice["engine"], model, **layout, threads=torch.get_num_threads())
        self._model, self._choice, self._compiled_from = model, choice, state
        self._warned.discard(_CHANGED)
        _LOG.info("decoding with the engine %s", self._engine.name)

    def engine_for(self, count: int, *, traced: bool) -> Engine:
        """Return the engine that decodes `count` inputs; traced: torch, whose attention can be
        recorded."""
        model = self.model
        if traced or not self._decodes:
            return TorchEngine(model)
        if self._engine is not None:
            return self._engine
        if not self.is_owned:
            self._engine = TorchEngine(model)
            if (
                self._is_faster_expected
                and self._choice["engine"] != "torch"
                and prefers_compiled(model)
            ):
                self._warn_slower(
                    "because run.model was accessed, so that the model may change; run.compile() "
                    "freezes its present "
                    "state for the faster engines"
                )
            return self._engine
        try:
            self.compile(cached_only=self._choice == _AUTO and count < MANY)
        except NotCachedError as error:
            self._warn_slower(f"because {error}")
            return TorchEngine(model)
        assert self._engine is not None
        return self._engine

    def _warn_slower(self, reason: str) -> None:
        """Warn that the torch engine is used, once for each reason."""
        self._warn_once(f"using the torch engine, which is slower, {reason}")

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warn_caller(text)


class Turns:
    """Counter of the predictions that are computed, and the thread that records, if there is one.

    A recording would contain the predictions of other threads, since it observes the modules, which
    are shared.
    """

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._predictions: dict[int, int] = {}
        self._recorder: int | None = None

    def __reduce__(self) -> tuple[type["Turns"], tuple[()]]:
        """Return a new counter for a copy of the run."""
        return Turns, ()

    @contextmanager
    def predict(self) -> Iterator[None]:
        """Compute a prediction. Raises UserError while another thread records the run."""
        own = threading.get_ident()
        with self._change:
            if self._recorder not in (None, own):
                raise UserError(
                    "another thread records the attention of this run, and would record this "
                    "prediction, too: load the "
                    "run again for one of them"
                )
            self._predictions[own] = self._predictions.get(own, 0) + 1
        try:
            yield
        finally:
            with self._change:
                self._predictions[own] -= 1
                if not self._predictions[own]:
                    del self._predictions[own]
                self._change.notify_all()

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record, after the predictions of other threads have ended. Raises UserError if another
        thread records."""
        own = threading.get_ident()
        with self._change:
            self._change.wait_for(lambda: not self._predictions.keys() - {own})
            if self._recorder not in (None, own):
                raise UserError(
                    "another thread records the attention of this run: load the run again for one "
                    "of them"
                )
            outer, self._recorder = self._recorder, own
        try:
            yield
        finally:
            with self._change:
                self._recorder = outer


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set the default dtype of new tensors within the context."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class _Snapshot:
    """Attributes, parameters, buffers, parts and hooks of a module and of its parts, to see whether
    they change.

    `is_current` runs before each prediction: `modules` and `parameters` of PyTorch, which remove
    duplicates, take longer than this.
    """

    def __init__(self, module: nn.Module):
        self._tables: list[tuple[dict[Any, Any], int, list[tuple[Any, object]]]] = []
        self._versions: list[tuple[torch.Tensor, int]] = []
        for part in module.modules():
            attributes = vars(part)
            own = [(name, value) for name, value in attributes.items() if name not in _INTERNAL]
            self._tables.append((attributes, len(attributes), own))
            tables: tuple[dict[Any, Any], ...] = (part._parameters, part._buffers, part._modules)
            for table in (*tables, part._forward_hooks, part._forward_pre_hooks):
                self._tables.append((table, len(table), list(table.items())))
            tensors = (*part._parameters.values(), *part._buffers.values())
            self._versions += [
                (tensor, version_of(tensor)) for tensor in tensors if tensor is not None
            ]

    def is_current(self) -> bool:
        """Return True if nothing was set, replaced, added, removed, or changed in place."""
        for table, size, items in self._tables:
            if len(table) != size:
                return False
            for name, value in items:
                if table.get(name) is not value:
                    return False
        return all(version_of(tensor) == version for tensor, version in self._versions)


def _copy(module: nn.Module) -> nn.Module:
    """Return a copy of a module. Raises: UserError if it cannot be copied."""
    try:
        with torch.inference_mode(mode=False):
            return copy.deepcopy(module)
    except Exception as error:
        raise UserError(f"the model cannot be copied, which compile() needs: {error}") from error
