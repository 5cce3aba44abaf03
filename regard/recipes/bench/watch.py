"""Where the time goes: torch's profiler over some calls, its operators grouped in words (regard.recipes.bench.groups).

Parts of the model are marked while the profiler looks on, and only then. What is differentiated belongs to what was
computed forward: the profiler numbers both alike.

Looking on costs time for every operator. So the whole is the time of the same calls without the profiler, and from each
operator is taken what the operators inside of it cost to watch; small operators may still look slower than they are.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from regard.recipes.bench.groups import METHODS, MODULES, SCOPE, Share, Span, shares, without_watching
from regard.recipes.bench.timing import waited

__all__ = ["Watched", "marked", "scoped", "spans_of", "watched"]

_TRIALS = 300
_BACKWARD = "autograd::engine::evaluate_function"


class Watched(NamedTuple):
    """What a profile says of some calls."""

    shares: list[Share]
    seconds: float
    """Of all calls while nobody looked on."""
    slower: float
    """How many times as long they took while the profiler looked on."""

    def told(self, each: int) -> dict[str, Any]:
        """For reports, of so many calls."""
        where = [vars(one) for one in self.shares]
        return {"where": where, "watched": each, "watched_ms": 1e3 * self.seconds / each, "slower": self.slower}


def watched(calls: Sequence[Callable[[], object]], model: nn.Module, device: torch.device) -> Watched:
    """Where the calls' time goes."""
    is_cpu = device.type == "cpu"
    before = _seconds(calls, device)
    with marked(model), _profile(device) as profiler:
        seen = _seconds(calls, device)
    # Others on the machine make some of them slower: the fastest is nearest to the truth.
    seconds = min(before, seen, _seconds(calls, device))
    spans = spans_of(profiler.events() or [], on_device=not is_cpu)
    if is_cpu:
        spans = without_watching(spans, _cost(device))
    return Watched(shares(spans, seconds), seconds, seen / seconds)


def _profile(device: torch.device) -> profile:
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    return profile(activities=activities, acc_events=True)


def _seconds(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
    waited(device)
    begun = time.perf_counter()
    for call in calls:
        call()
    waited(device)
    return time.perf_counter() - begun


def _cost(device: torch.device) -> float:
    """Seconds that the profiler adds for each span, by one operator that does next to nothing."""
    small = [torch.ones(1, device=device).t] * _TRIALS
    with _profile(device) as profiler:
        seen = _seconds(small, device)
    alone = min(_seconds(small, device) for _ in range(3))
    return max(0.0, seen - alone) / max(1, len(profiler.events() or []))


def spans_of(events: Sequence[Any], *, on_device: bool = False) -> list[Span]:
    """The profiler's events, each below what it is part of."""
    events = [event for event in events if event.device_type == DeviceType.CPU]
    own = "self_device_time_total" if on_device else "self_cpu_time_total"
    made = {id(event): Span(event.name, 1e-6 * max(0.0, getattr(event, own))) for event in events}
    # Several have the number of a node: the last that began is the one that made it.
    forward: dict[int, Any] = {}
    for event in sorted(events, key=lambda one: one.time_range.start):
        if event.sequence_nr >= 0 and not _is_backward(event):
            forward[event.sequence_nr] = event
    for event in events:
        parent = event.cpu_parent
        if event.name.startswith(_BACKWARD):
            parent = forward.get(event.sequence_nr, parent)
        made[id(event)].within = None if event.cpu_parent is None else made.get(id(event.cpu_parent))
        made[id(event)].parent = None if parent is None else made.get(id(parent))
    return list(made.values())


def _is_backward(event: Any) -> bool:
    while event is not None:
        if event.name.startswith(_BACKWARD):
            return True
        event = event.cpu_parent
    return False


@contextmanager
def marked(model: nn.Module) -> Iterator[None]:
    """Name the parts of a model for the profiler."""
    with ExitStack() as stack:
        for module in model.modules():
            group = MODULES.get(type(module).__name__)
            if group is not None:
                stack.enter_context(_marked_method(module, "forward", group))
        for path, group in METHODS.items():
            owner: Any = model
            *above, name = path.split(".")
            for part in above:
                owner = getattr(owner, part, None)
            if owner is not None and callable(getattr(owner, name, None)):
                stack.enter_context(_marked_method(owner, name, group))
        yield


@contextmanager
def _marked_method(owner: Any, name: str, group: str) -> Iterator[None]:
    if name in vars(owner):  # somebody else's, such as a counter
        yield
        return
    setattr(owner, name, scoped(getattr(owner, name), group))
    try:
        yield
    finally:
        delattr(owner, name)


def scoped(function: Callable[..., Any], group: str) -> Callable[..., Any]:
    """The function, all of whose work the profiler finds in a span of this group."""

    def inside(*args: Any, **kwargs: Any) -> Any:
        with record_function(SCOPE + group):
            return function(*args, **kwargs)

    return inside
