"""The model of a run, who may change it, and the engine that decodes with it.

a run that was loaded       owns its module: an engine freezes it when it first decodes
run.model                   hands the module out: torch answers with it from then on
run.compile()               freezes its present state: a copy answers, and an engine is made of it
"""

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from regard.engines.engine import Engine
from regard.engines.reference import TorchEngine
from regard.engines.registry import compiles_each_time, is_expected, prepare
from regard.errors import UserError
from regard.telling import is_heard

_AUTO: dict[str, Any] = {"engine": "auto", "compute_type": None, "workers": None}
MANY = 1000
"""Inputs that are worth compiling code for, where it cannot be kept: torch decodes fewer sooner."""


class ActiveModel:
    """A module in eval mode, the copy of it that answers if there is one, and their engine.

    decodes: whether the recipe decodes tokens, which is what engines do.
    """

    def __init__(self, module: nn.Module, *, decodes: bool, recipe: str):
        self.module: Any = module.eval()
        self.model: Any = self.module
        """The module that answers: a copy once a module that others have was compiled."""
        self.is_owned = False
        """True if nobody else has the module, as when a run was loaded."""
        self._decodes, self._recipe = decodes, recipe
        self._choice = _AUTO
        self._engine: Engine | None = None
        self._is_faster_expected = False
        self._warned: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        """The state of a copy: the module that answers is its own, and an engine is made when it first decodes."""
        return vars(self) | {"_engine": None, "module": self.model, "is_owned": True}

    def hand_out(self) -> Any:
        """Return the module, which its caller may change: torch answers with it from now on."""
        if self.is_owned or self._engine is not None:
            self._is_faster_expected = self._engine is None or self._engine.name != "torch"
        self.is_owned, self._engine, self.model = False, None, self.module
        return self.module

    def compile(self, engine: str | None, *, compute_type: str | None, workers: int | None) -> None:
        """Answer with a frozen copy of the module; see `regard.recipes.task.Trained.compile`."""
        choice: dict[str, Any] = self._choice
        if engine is not None or compute_type is not None or workers is not None:
            choice = {"engine": engine or "auto", "compute_type": compute_type, "workers": workers}
        if not self._decodes and choice not in (_AUTO, _AUTO | {"engine": "torch"}):
            raise UserError(
                f"the recipe {self._recipe} decodes no tokens, which is what engines do: "
                "leave out engine, compute_type and workers"
            )
        model = self.module if self.is_owned else _copied(self.module)
        layout = {"compute_type": choice["compute_type"], "workers": choice["workers"]}
        self._engine = prepare(choice["engine"], model, **layout, threads=torch.get_num_threads())
        self.model, self._choice = model, choice

    def engine_for(self, count: int) -> Engine:
        """Return the engine that decodes so many inputs: torch while attention is recorded."""
        if is_heard() or not self._decodes:
            return TorchEngine(self.model)
        if self._engine is not None:
            return self._engine
        if not self.is_owned:
            self._engine = TorchEngine(self.model)
            if self._is_faster_expected and self._choice["engine"] != "torch" and is_expected(self.model):
                self._warn_slower(
                    "because the model was handed out (run.model) and may be changed; run.compile() freezes its "
                    "present state for the faster engines"
                )
            return self._engine
        is_auto = self._choice == _AUTO
        if is_auto and count < MANY and is_expected(self.model) and (reason := compiles_each_time()):
            self._warn_slower(f"because {reason}")
            return TorchEngine(self.model)
        self.compile(None, compute_type=None, workers=None)
        assert self._engine is not None
        return self._engine

    def _warn_slower(self, reason: str) -> None:
        """Warn that the torch engine answers, once for each reason."""
        if reason not in self._warned:
            self._warned.add(reason)
            warnings.warn(f"the torch engine answers, which is slower, {reason}", stacklevel=6)


def _copied(module: nn.Module) -> nn.Module:
    """Return a copy of a module. Raises: UserError if it cannot be copied."""
    try:
        with torch.inference_mode(mode=False):
            return copy.deepcopy(module)
    except Exception as error:
        raise UserError(f"the model cannot be copied, which compile() needs: {error}") from error


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make tensors in this dtype where none is given."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
