"""Profiles of training and inference: torch's profiler, with operators grouped by regard.bench.groups.

Parts of the model are marked only while the profiler runs. A backward operator belongs to its forward operator, which
has the same sequence number in the profile.

Profiling costs time for every operator. The total is therefore the time with the profiler divided by the usual ratio of
the times with and without it. From each operator, the measured overhead of the operators nested in it is subtracted;
small operators may still look slower than they are.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from regard.bench.groups import METHODS, MODULES, SCOPE, GroupShare, Span, shares, subtract_overhead
from regard.bench.timing import synchronize

_TRIALS, _PAIRS = 300, 3
_MEASURED = "ProfilerStep measured"
_BACKWARD = "autograd::engine::evaluate_function"


class CallProfile(NamedTuple):
    """Profile of a sequence of calls."""

    shares: list[GroupShare]
    seconds: float
    """Time of all calls, without the overhead of the profiler."""
    slowdown: float
    """Ratio of the times with and without the profiler."""

    def to_dict(self, count: int) -> dict[str, Any]:
        """Return the profile of `count` calls, for reports."""
        return {
            "profile": [vars(share) for share in self.shares],
            "profiled_calls": count,
            "profiled_ms": 1e3 * self.seconds / count,
            "profiler_slowdown": self.slowdown,
        }


def profile_calls(calls: Sequence[Callable[[], object]], model: nn.Module, device: torch.device) -> CallProfile:
    """Profile the calls."""
    is_cpu = device.type == "cpu"
    overhead = _measure_overhead(device)
    ratios = []
    for _ in range(_PAIRS):
        alone = _seconds(calls, device)
        with mark_modules(model), _profile(device) as profiler:
            calls[0]()  # the first operators of each kind are slow to profile
            with record_function(_MEASURED):
                profiled = _seconds(calls, device)
        ratios.append(profiled / alone)
    events = _within(profiler.events() or [], _MEASURED)
    spans = subtract_overhead(build_spans(events, on_device=not is_cpu), overhead if is_cpu else 0.0)
    # Ratios of measurements next to each other in time, so that other load affects both, or only one pair.
    slowdown = sorted(ratios)[_PAIRS // 2]
    total = max(profiled / max(1.0, slowdown), sum(span.own for span in spans))
    return CallProfile(shares(spans, total), total, slowdown)


def build_spans(events: Sequence[Any], *, on_device: bool = False) -> list[Span]:
    """Build spans from the profiler's events, linked to their enclosing spans."""
    events = [event for event in events if event.device_type == DeviceType.CPU]
    own = "self_device_time_total" if on_device else "self_cpu_time_total"
    spans = {id(event): Span(event.name, 1e-6 * max(0.0, getattr(event, own))) for event in events}
    # Several events share a sequence number: the last to start created the autograd node.
    forward: dict[int, Any] = {}
    for event in sorted(events, key=lambda event: event.time_range.start):
        if event.sequence_nr >= 0 and not _is_backward(event):
            forward[event.sequence_nr] = event
    for event in events:
        parent = event.cpu_parent
        if event.name.startswith(_BACKWARD):
            parent = forward.get(event.sequence_nr, parent)
        spans[id(event)].within = None if event.cpu_parent is None else spans.get(id(event.cpu_parent))
        spans[id(event)].parent = None if parent is None else spans.get(id(parent))
    return list(spans.values())


@contextmanager
def mark_modules(model: nn.Module) -> Iterator[None]:
    """Mark the modules and methods of a model for the profiler."""
    with ExitStack() as stack:
        # By class: a module with its own forward would not take the fused paths that are to be measured.
        for kind in {type(module) for module in model.modules()}:
            group = MODULES.get(kind.__name__)
            if group is not None:
                stack.enter_context(_mark_class(kind, group))
        for path, group in METHODS.items():
            owner: Any = model
            *above, name = path.split(".")
            for part in above:
                owner = getattr(owner, part, None)
            if owner is not None and callable(getattr(owner, name, None)):
                stack.enter_context(_mark_method(owner, name, group))
        yield


def with_scope(function: Callable[..., Any], group: str) -> Callable[..., Any]:
    """Wrap a function in a profiler span of this group."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with record_function(SCOPE + group):
            return function(*args, **kwargs)

    return wrapped


def _profile(device: torch.device) -> profile:
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    return profile(activities=activities, acc_events=True)


def _seconds(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    for call in calls:
        call()
    synchronize(device)
    return time.perf_counter() - start


def _measure_overhead(device: torch.device) -> float:
    """Measure the profiler's overhead per operator in seconds, with a trivial operator."""
    calls = [torch.ones(1).t] * _TRIALS
    alone = min(_seconds(calls, device) for _ in range(3))
    overheads = []
    for _ in range(3):
        with _profile(device) as profiler:
            profiled = _seconds(calls, device)
        overheads.append((profiled - alone) / max(1, len(profiler.events() or [])))
    return max(0.0, min(overheads))


def _within(events: Sequence[Any], name: str) -> list[Any]:
    """Return the events that started during the event of this name."""
    (interval,) = (event.time_range for event in events if event.name == name and event.device_type == DeviceType.CPU)
    return [event for event in events if interval.start <= event.time_range.start < interval.end]


def _is_backward(event: Any) -> bool:
    while event is not None:
        if event.name.startswith(_BACKWARD):
            return True
        event = event.cpu_parent
    return False


@contextmanager
def _mark_class(kind: Any, group: str) -> Iterator[None]:
    own, inherited = vars(kind).get("forward"), kind.forward
    kind.forward = with_scope(inherited, group)
    try:
        yield
    finally:
        if own is None:
            del kind.forward
        else:
            kind.forward = own


@contextmanager
def _mark_method(owner: Any, name: str, group: str) -> Iterator[None]:
    if name in vars(owner):  # already replaced, for example by a counter
        yield
        return
    setattr(owner, name, with_scope(getattr(owner, name), group))
    try:
        yield
    finally:
        delattr(owner, name)
