"""Model of a trained run, and the engine that decodes with it.

after `load`     the run owns its module: an engine freezes it at the first decoding
run.model        returns the module, which the caller may change: torch computes with it
run.compile()    freezes a copy of the module; after a change of the module, call it again
"""

import copy
from typing import Any

import torch
from torch import nn

from regard.engines.engine import Engine
from regard.engines.registry import prepare
from regard.engines.torch import TorchEngine
from regard.errors import UserError, warn_caller

EngineChoice = tuple[str, str | None, int | None]
"""Engine, compute type and workers."""
_DEFAULT: EngineChoice = ("auto", None, None)


class ActiveModel:
    """Module in eval mode, its frozen copy if there is one, and the engine that decodes.

    decodes: True if the recipe decodes tokens; other recipes have no engine.
    """

    def __init__(self, module: nn.Module, *, decodes: bool, recipe: str):
        self.module: Any = module.eval()
        self.is_owned = False
        """True if nothing else refers to the module, as after `load`."""
        self._model: Any = self.module
        self._decodes, self._recipe = decodes, recipe
        self._choice = _DEFAULT
        self._engine: Engine | None = None

    @property
    def model(self) -> Any:
        """The module that computes, in eval mode; the copy after `compile`."""
        if not self.is_owned and self._model is self.module:
            if self._model.training:
                warn_caller(
                    "run.model was in training mode and is set to eval mode; call run.model.train()"
                    " before training it further"
                )
            self._model.eval()
        return self._model

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_engine": None, "module": self._model, "is_owned": True}

    def unfreeze(self) -> Any:
        """Return the module, which the caller may change: torch computes with it from now on."""
        self.is_owned, self._engine, self._model = False, None, self.module
        return self.module

    def compile(self, choice: EngineChoice | None = None) -> None:
        """Freeze the module, or a copy if it is not owned; by default with the last choice."""
        choice = choice or self._choice
        if not self._decodes and choice not in (_DEFAULT, ("torch", None, None)):
            raise UserError(f"the recipe {self._recipe} does not decode tokens: it has no engines")
        model = self.module
        if not self.is_owned:
            with torch.inference_mode(mode=False):
                model = copy.deepcopy(model).eval()
        (name, compute_type, workers), threads = choice, torch.get_num_threads()
        self._engine = prepare(
            name, model, compute_type=compute_type, workers=workers, threads=threads
        )
        self._model, self._choice = model, choice

    def share(self) -> "ActiveModel":
        """Return the model with an engine for another thread; the weights are the same."""
        engine = self.engine_for(traced=False)
        shared = copy.copy(self)
        shared._engine = engine.share() if self._decodes else None
        return shared

    def engine_for(self, *, traced: bool, torch_for: str = "") -> Engine:
        """Return the engine that decodes; traced: torch, whose attention can be recorded.

        torch_for: setting that torch alone follows, in place of other engines if they are float32.
        """
        model = self.model
        if traced or not self._decodes:
            return TorchEngine(model)
        if self._engine is None and self.is_owned:
            self.compile()
        if self._engine is None:  # the steps that it captures on a GPU are used again
            self._engine = TorchEngine(model)
        engine = self._engine
        if not torch_for or engine.name == "torch":
            return engine
        if engine.compute_type != "float32":
            rounded = f"engine {engine.name!r} computes in {engine.compute_type}"
            raise UserError(f"{torch_for} is followed by engine 'torch' alone, and {rounded}")
        warn_caller(f"engine 'torch' is used, which is slower: {torch_for} needs it")
        return TorchEngine(model)
