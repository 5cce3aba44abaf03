"""Record the weights of a model's reads while it runs; the model does not know.

    with record(model) as maps:
        model.loss(batch)
    maps.names                             ('core.encoder.0.read', ..., 'core.decoder.0.cross.read')
    maps["core.decoder.0.cross.read"]      the weights of each call, in the order of the calls

Every read of every model is a `Read`: a hook behind each computes `weigh` with the arguments that the read
was given, so the weights are those of its score, mask and bias, and the output is not touched.
"""

import difflib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.kernels import reference
from regard.layers.read import Read

__all__ = ["Recording", "record"]


class Recording:
    """Weights by the name of the read that used them, call by call (in decoding, a call is a step).

    Stays readable after the recording has ended.
    """

    def __init__(self, names: Sequence[str]):
        self._calls: dict[str, list[Tensor]] = {name: [] for name in names}

    @property
    def names(self) -> tuple[str, ...]:
        """The reads that ran, in the order of the model's modules.

        Raises: ValueError if none did.
        """
        names = tuple(name for name, calls in self._calls.items() if calls)
        if not names:
            raise ValueError(
                f"nothing was recorded: none of {_some(self._calls)} ran inside the recording "
                "(hooks do not see a function that torch.compile has compiled)"
            )
        return names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, name: str) -> list[Float[Tensor, "... query key"]]:
        """The weights of each call of one read: (batch, [head,] query, key), float32 on the CPU.

        Raises: KeyError if no read of this name is listened to, ValueError if it did not run.
        """
        if name not in self._calls:
            raise KeyError(f"no read {name!r} is recorded; {_nearest(name, self._calls)}")
        if not self._calls[name]:
            raise ValueError(f"read {name!r} did not run inside the recording; {_some(self.names)} did")
        return self._calls[name]

    def steps(self, name: str) -> Float[Tensor, "... step key"]:
        """The calls of a step-by-step decoding as one tensor: (batch, [head,] step, key).

        A memory that grew in between has zero weights where it had no keys yet.
        Raises: ValueError if a call had several queries, or not the rows that the first one had.
        """
        calls = self[name]
        leading = calls[0].shape[:-2]
        for number, call in enumerate(calls):
            if call.shape[-2] != 1:
                raise ValueError(f"a step has one query, but call {number} of {name!r} has {call.shape[-2]}")
            if call.shape[:-2] != leading:
                raise ValueError(
                    f"steps must have equal leading axes, but {name!r} has {tuple(leading)} at first and "
                    f"{tuple(call.shape[:-2])} in call {number}"
                )
        num_keys = max(call.shape[-1] for call in calls)
        return torch.cat([nn.functional.pad(call, (0, num_keys - call.shape[-1])) for call in calls], -2)

    def __repr__(self) -> str:
        calls = ", ".join(f"{name}: {len(calls)}" for name, calls in self._calls.items())
        return f"Recording(calls of each read: {calls})"


@contextmanager
def record(
    model: nn.Module,
    *,
    only: Callable[[str], bool] | Collection[str] | None = None,
    rows: Sequence[int] | None = None,
) -> Iterator[Recording]:
    """Keep the weights of every call of every `Read` inside `model`, until the context ends.

    Recording changes no output and draws no random number. It costs the formula of each recorded read once
    more, and 4 bytes of memory a weight; outside the context nothing is left on the model.

    only:    the reads to record: names, or a function that is given each name and answers; None is all.
    rows:    the rows of each call's batch to keep; None is all. (Decoding by beams permutes rows.)
    Raises:  ValueError if the model has no `Read`, is compiled, or has none of the names in `only`; at a call
             that does not have the rows.
    """
    reads = _choose(_reads(model), only)
    recording = Recording(list(reads))
    handles = []
    try:
        for name, read in reads.items():
            hook = _keep_in(recording._calls[name], rows)
            handles.append(read.register_forward_hook(hook, with_kwargs=True))
        yield recording
    finally:
        for handle in handles:
            handle.remove()


def _keep_in(calls: list[Tensor], rows: Sequence[int] | None) -> Callable[..., None]:
    def keep(read: Read, args: tuple, kwargs: dict, output: Tensor) -> None:
        with torch.no_grad():
            weights = reference.weights(read.pose(*args, **kwargs))
            calls.append(_rows_of(weights, rows).to("cpu", torch.float32))

    return keep


def _rows_of(weights: Tensor, rows: Sequence[int] | None) -> Tensor:
    if rows is None:
        return weights
    batch = weights.shape[0] if weights.dim() > 2 else 1
    if weights.dim() < 3 or not all(0 <= row < batch for row in rows):
        raise ValueError(f"rows must lie in the batch of {batch} that is read, but are {list(rows)}")
    return weights[list(rows)]


def _reads(model: nn.Module) -> dict[str, Read]:
    for name, module in model.named_modules():
        # Compiled code calls no hook that came after it: the recording would be empty, or have holes.
        if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:
            raise ValueError(f"a compiled module cannot be recorded, but {name or 'the model'} is one")
    reads = {name: module for name, module in model.named_modules() if isinstance(module, Read)}
    if not reads:
        raise ValueError(f"{type(model).__name__} has no Read: it does not attend, nothing can be recorded")
    return reads


def _choose(reads: dict[str, Read], only: Callable[[str], bool] | Collection[str] | None) -> dict[str, Read]:
    if only is None:
        return reads
    if callable(only):
        chosen = {name: read for name, read in reads.items() if only(name)}
        if not chosen:
            raise ValueError(f"only must choose a read, but refuses all of {_some(reads)}")
        return chosen
    names = [only] if isinstance(only, str) else list(only)
    for name in names:
        if name not in reads:
            raise ValueError(f"only must name reads, but {name!r} is none; {_nearest(name, reads)}")
    if not names:
        raise ValueError("only must name at least one read, but is empty")
    return {name: read for name, read in reads.items() if name in names}


def _nearest(name: str, names: Collection[str]) -> str:
    return f"nearest are {_some(difflib.get_close_matches(name, names, cutoff=0.0))}"


def _some(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:8])
    return shown if len(names) <= 8 else f"{shown}, ... ({len(names)} in all)"
