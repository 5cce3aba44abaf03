"""An engine that compiles a model's form, and follows the model: what has changed is compiled anew, or refused.

    self.followed(work, otherwise)      work(what the model is compiled to, as it is now), or what torch answers

    self.search(...), self.generate(...)    what is asked for is checked, and given to `searched` or `generated`

The model is compared with what it was before each answer, which takes 0.1 to 0.4 ms for 200 modules. A model that no
one but the engine has (`alone`: that of a run that was loaded, until it is asked for) can change by its classes and by
hooks on all modules alone, and only they are compared, in 0.02 ms.

The torch engine answers while somebody looks on, whose reads can be seen. Where `auto` chose the engine, it answers,
too, once the model has become one that the engine cannot run; an engine that was asked for by name refuses then.
"""

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from regard.attention.positional import ByDistance
from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.hypothesis import Hypothesis
from regard.engines.engine import Engine
from regard.engines.lowering import lowered
from regard.engines.reference import TorchEngine
from regard.engines.requests import check_places, check_prompts, check_sentences, check_specials, most_read
from regard.engines.watch import Samples, Watch
from regard.errors import UserError
from regard.layers.forms import TextForm, leaves
from regard.telling import is_heard

__all__ = ["Following"]


@runtime_checkable
class OfForm(Protocol):
    """What a model is compiled to."""

    @property
    def form(self) -> TextForm:
        """What was compiled."""
        ...


Ready = TypeVar("Ready", bound=OfForm)
Answer = TypeVar("Answer")


class Following(Engine, Generic[Ready]):
    """See the module; `prepared` once what `compile_form` needs is there."""

    def prepared(self, model: Any) -> None:
        """Compile a model.

        Raises: UserError if the engine cannot run it, with the reason.
        """
        self._model = model
        self._lock = threading.Lock()
        self._seen: list[Any] = []
        self._renew()

    @property
    def reference(self) -> TorchEngine:
        """The torch engine of the model."""
        return TorchEngine(self.model)

    @staticmethod
    @abstractmethod
    def cannot(form: TextForm) -> str | None:
        """Why the engine cannot compute a form, as the end of a sentence; None if it can."""

    @abstractmethod
    def compile_form(self, form: TextForm) -> Ready:
        """What answers for a form that it can compute; it keeps the form."""

    @abstractmethod
    def searched(
        self,
        ready: Ready,
        sentences: Sequence[Sequence[int]],
        *,
        config: DecodeConfig,
        bos: int,
        eos: int,
        pad: int,
    ) -> list[list[Hypothesis]]:
        """As `search`, by a model that reads a source, of ids that it has."""

    @abstractmethod
    def generated(
        self,
        ready: Ready,
        prompts: Sequence[Sequence[int]],
        config: SampleConfig,
        *,
        window: int | None,
        seeds: Sequence[int],
        banned: Sequence[int],
    ) -> list[list[int]]:
        """As `generate`, by a language model, from at least one prompt of ids that it has."""

    def search(
        self, sentences: Sequence[Sequence[int]], *, config: DecodeConfig, bos: int, eos: int, pad: int
    ) -> list[list[Hypothesis]]:
        """As `regard.decode.search.search`."""
        how = {"config": config, "bos": bos, "eos": eos, "pad": pad}
        return self.followed(
            lambda ready: self._search(ready, sentences, **how), lambda: self.reference.search(sentences, **how)
        )

    def _search(self, ready: Ready, sentences: Sequence[Sequence[int]], **how: Any) -> list[list[Hypothesis]]:
        form = ready.form
        if form.source is None:
            return super().search(sentences, **how)
        specials = {name: how[name] for name in ("bos", "eos", "pad")}
        check_sentences(sentences, len(form.source.weight))
        check_specials(**specials, vocab=len(form.writes.output))
        check_places(max(map(len, sentences), default=0), form.most_places)
        return self.searched(ready, sentences, **how)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        config: SampleConfig,
        *,
        window: int | None,
        seeds: Sequence[int],
        banned: Sequence[int],
    ) -> list[list[int]]:
        """As `regard.decode.sample.sample`, for several prompts at once."""
        how = {"window": window, "seeds": seeds, "banned": banned}
        return self.followed(
            lambda ready: self._generate(ready, prompts, config, **how),
            lambda: self.reference.generate(prompts, config, **how),
        )

    def _generate(
        self, ready: Ready, prompts: Sequence[Sequence[int]], config: SampleConfig, **how: Any
    ) -> list[list[int]]:
        form = ready.form
        if form.source is not None:
            return super().generate(prompts, config, **how)
        check_prompts(prompts, vocab=len(form.writes.output), **how)
        if not prompts:
            return []
        check_places(most_read(max(map(len, prompts)), config.length, how["window"]), form.most_places)
        return self.generated(ready, prompts, config, **how)

    def followed(self, work: Callable[[Ready], Answer], otherwise: Callable[[], Answer]) -> Answer:
        """What `work` gives for the model as it is now; what `otherwise` gives where the torch engine is to answer.

        Raises: UserError if the engine cannot run the model as it is now, and was asked for by name; as `work`.
        """
        ready = None if is_heard() else self.ready()
        return otherwise() if ready is None else work(ready)

    def ready(self) -> Ready | None:
        """What answers for the model as it is now; None: the torch engine. Raises: UserError as `followed`."""
        if not (self._watch.is_written_so() if self.alone else self._watch.is_current()):
            with self._lock:
                try:
                    self._renew()
                except UserError:
                    if not self.falls_back:
                        raise
                    return None
        return self._ready

    def _renew(self) -> None:
        watch = Watch(self._model)  # before the form: what changes meanwhile is seen
        form = lowered(self._model)
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
        return [id(leaf), leaf._version, leaf.data_ptr(), Samples([leaf]).read()]
    if isinstance(leaf, ByDistance):
        tensors = (*leaf.parameters(), *leaf.buffers())
        return [id(leaf), *(part for tensor in tensors for part in _state(tensor)), repr(leaf)]
    return [leaf]
