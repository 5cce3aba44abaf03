"""An engine that compiles a model's form, and follows the model: what has changed is compiled anew, or refused.

    self.followed(work, otherwise)      work(what the model is compiled to, as it is now), or what torch answers

The model is compared with what it was while `work` computes, on a thread of its own: in compiled code the interpreter
is free, and one after the other the comparison would take a fifth of a short sentence's time. What was computed for a
model that has changed is thrown away.

The torch engine answers while somebody looks on, whose reads can be seen. Where `auto` chose the engine, it answers,
too, once the model has become one that the engine cannot run; an engine that was asked for by name refuses then.
"""

import os
import threading
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from torch import Tensor

from regard.attention.positional import ByDistance
from regard.engines.engine import Engine
from regard.engines.lowering import lowered
from regard.engines.reference import TorchEngine
from regard.engines.watch import Watch, samples
from regard.errors import UserError
from regard.layers.forms import TextForm, leaves
from regard.telling import is_heard

__all__ = ["Following"]

Ready = TypeVar("Ready")
Answer = TypeVar("Answer")


class Following(Engine, Generic[Ready]):
    """See the module; `prepared` once what `compile_form` needs is there."""

    def prepared(self, model: Any) -> None:
        """Compile a model.

        Raises: UserError if the engine cannot run it, with the reason.
        """
        self.model = model
        self.reference = TorchEngine(model)
        self._lock = threading.Lock()
        self._looking = ThreadPoolExecutor(1, thread_name_prefix="regard-following")
        self._process = os.getpid()
        self._seen: list[Any] = []
        self._renew()

    @staticmethod
    @abstractmethod
    def cannot(form: TextForm) -> str | None:
        """Why the engine cannot compute a form, as the end of a sentence; None if it can."""

    @abstractmethod
    def compile_form(self, form: TextForm) -> Ready:
        """What answers for a form that it can compute; it keeps the form."""

    def followed(self, work: Callable[[Ready], Answer], otherwise: Callable[[], Answer]) -> Answer:
        """What `work` gives for the model as it is now; what `otherwise` gives where the torch engine is to answer.

        Raises: UserError if the engine cannot run the model as it is now, and was asked for by name; as `work`.
        """
        if is_heard():
            return otherwise()
        if self._process == os.getpid():  # a forked child has not the threads of its parent
            look = self._looking.submit(self._watch.is_current)
            try:
                answer = work(self._ready)
            except Exception:
                if look.result():
                    raise
            else:
                if look.result():
                    return answer
        ready = self.ready()
        return otherwise() if ready is None else work(ready)

    def ready(self) -> Ready | None:
        """What answers for the model as it is now; None: the torch engine. Raises: UserError as `followed`."""
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
        return [id(leaf), leaf._version, leaf.data_ptr(), *(read(at) for read, at in samples(leaf))]
    if isinstance(leaf, ByDistance):
        tensors = (*leaf.parameters(), *leaf.buffers())
        return [id(leaf), *(part for tensor in tensors for part in _state(tensor)), repr(leaf)]
    return [leaf]
