"""Where the time goes: torch's profiler over some calls, its operators grouped in words (regard.recipes.bench.groups).

Parts of the model are marked while the profiler looks on, and only then. What is differentiated belongs to what was
computed forward: the profiler numbers both alike.

Looking on costs time for every operator. So the whole is the time without the profiler: what it took with it, less the
usual ratio of both. And from each operator is taken what the operators inside of it cost to look on, as is measured by
some that do nothing; small operators may still look slower than they are.
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

_TRIALS, _PAIRS = 300, 3
_MEASURED = "ProfilerStep of what is measured"
_BACKWARD = "autograd::engine::evaluate_function"


class Watched(NamedTuple):
    """What a profile says of some calls."""

    shares: list[Share]
    seconds: float
    """Of all calls, less what looking on cost."""
    slower: float
    """How many times as long they took while the profiler looked on."""

    def told(self, each: int) -> dict[str, Any]:
        """For reports, of so many calls."""
        where = [vars(one) for one in self.shares]
        return {"where": where, "watched": each, "watched_ms": 1e3 * self.seconds / each, "slower": self.slower}


def watched(calls: Sequence[Callable[[], object]], model: nn.Module, device: torch.device) -> Watched:
    """Where the calls' time goes."""
    is_cpu = device.type == "cpu"
    price = _price(device)
    ratios = []
    for _ in range(_PAIRS):
        alone = _seconds(calls, device)
        with marked(model), _profile(device) as profiler:
            calls[0]()  # the profiler is slow with the first operators of each kind
            with record_function(_MEASURED):
                seen = _seconds(calls, device)
        ratios.append(seen / alone)
    events = _within(profiler.events() or [], _MEASURED)
    found = without_watching(spans_of(events, on_device=not is_cpu), price if is_cpu else 0.0)
    # Of pairs that lie next to each other in time: others on the machine slow both alike, or one pair alone.
    slower = sorted(ratios)[_PAIRS // 2]
    whole = max(seen / max(1.0, slower), sum(span.own for span in found))
    return Watched(shares(found, whole), whole, slower)


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


def _price(device: torch.device) -> float:
    """Seconds that it costs to look on an operator, by one that does next to nothing."""
    calls = [torch.ones(1).t] * _TRIALS
    alone = min(_seconds(calls, device) for _ in range(3))
    prices = []
    for _ in range(3):
        with _profile(device) as profiler:
            seen = _seconds(calls, device)
        prices.append((seen - alone) / max(1, len(profiler.events() or [])))
    return max(0.0, min(prices))


def _within(events: Sequence[Any], name: str) -> list[Any]:
    """The events that happened during the one of this name."""
    (whole,) = (event.time_range for event in events if event.name == name and event.device_type == DeviceType.CPU)
    return [event for event in events if whole.start <= event.time_range.start < whole.end]


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
        # By class: a part with a forward of its own would not take the fused paths that are to be measured.
        for kind in {type(module) for module in model.modules()}:
            group = MODULES.get(kind.__name__)
            if group is not None:
                stack.enter_context(_marked_class(kind, group))
        for path, group in METHODS.items():
            owner: Any = model
            *above, name = path.split(".")
            for part in above:
                owner = getattr(owner, part, None)
            if owner is not None and callable(getattr(owner, name, None)):
                stack.enter_context(_marked_method(owner, name, group))
        yield


@contextmanager
def _marked_class(kind: Any, group: str) -> Iterator[None]:
    own, inherited = vars(kind).get("forward"), kind.forward
    kind.forward = scoped(inherited, group)
    try:
        yield
    finally:
        if own is None:
            del kind.forward
        else:
            kind.forward = own


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
