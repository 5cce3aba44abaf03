"""An engine that compiles a model's form, and follows the model: what has changed is compiled anew, or refused.

    ready = self.ready()        what the model is compiled to, as it is now; None where torch is to answer

The torch engine answers while somebody looks on, whose reads can be seen. Where `auto` chose the engine, it answers,
too, once the model has become one that the engine cannot run; an engine that was asked for by name refuses then.
"""

import threading
from abc import abstractmethod
from typing import Any, Generic, TypeVar

from torch import Tensor

from regard.attention.positional import ByDistance
from regard.engines.engine import Engine
from regard.engines.lowering import lowered
from regard.engines.reference import TorchEngine
from regard.engines.watch import Watch
from regard.errors import UserError
from regard.layers.forms import TextForm, leaves
from regard.telling import is_heard

__all__ = ["Following"]

Ready = TypeVar("Ready")


class Following(Engine, Generic[Ready]):
    """See the module; `prepared` once what `compile_form` needs is there."""

    def prepared(self, model: Any) -> None:
        """Compile a model.

        Raises: UserError if the engine cannot run it, with the reason.
        """
        self.model = model
        self.reference = TorchEngine(model)
        self._lock = threading.Lock()
        self._seen: list[Any] = []
        self._renew()

    @staticmethod
    @abstractmethod
    def cannot(form: TextForm) -> str | None:
        """Why the engine cannot compute a form, as the end of a sentence; None if it can."""

    @abstractmethod
    def compile_form(self, form: TextForm) -> Ready:
        """What answers for a form that it can compute; it keeps the form."""

    def ready(self) -> Ready | None:
        """What answers; None: the torch engine.

        Raises: UserError if the engine cannot run the model as it is now, and was asked for by name.
        """
        if is_heard():
            return None
        if not self._watch.is_current():
            with self._lock:
                try:
                    self._renew()
                except UserError:
                    if not self.falls_back:
                        raise
                    return None
        return self._ready

    def _renew(self) -> None:
        watch = Watch(self.model)  # before the form: what changes meanwhile is seen
        form = lowered(self.model)
        reason = form if isinstance(form, str) else self.cannot(form)
        if isinstance(form, str) or reason is not None:
            raise UserError(f"engine {self.name} cannot run this model: {reason}; torch can")
        seen = [part for leaf in leaves(form) for part in _state(leaf)]
        if seen != self._seen:
            self._ready, self._seen = self.compile_form(form), seen
        self._watch = watch


def _state(leaf: Any) -> list[Any]:
    """By what a change of a leaf is seen."""
    if isinstance(leaf, Tensor):
        return [id(leaf), leaf._version, leaf.data_ptr()]
    if isinstance(leaf, ByDistance):
        tensors = (*leaf.parameters(), *leaf.buffers())
        return [id(leaf), *(part for tensor in tensors for part in _state(tensor)), repr(leaf)]
    return [leaf]
