"""What holds of every recipe's captures: axes fit the weights, nothing said changes, nothing is made for nobody."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from regard.attention.kernels import reference
from regard.errors import UserError
from regard.layers.read import Read
from regard.look.capture import Capture
from regard.look.listen import listen
from regard.look.map import GRADIENT, Map, Seen
from regard.look.record import record
from regard.look.scene import Image, Plane, Scene, Sound
from tests.helpers import close

__all__ = ["checked", "checked_test_input", "differentiated", "same"]


def same(one: Any, other: Any) -> bool:
    """Whether two answers are equal to the last bit."""
    if isinstance(one, np.ndarray | torch.Tensor):
        return np.array_equal(np.asarray(one), np.asarray(other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def checked(run: Any, inputs: Sequence[Any]) -> Capture:
    """The capture of a look at these inputs, if all is well with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scene, "__init__", _refuse)  # whoever makes a scene for nobody fails
        before = run.predict(inputs)
    with record(run) as during:
        assert same(run.predict(inputs), before)
    assert during.recording.names
    capture = run.look(inputs)
    assert len(capture)
    for seen in capture:
        assert seen.scene.title
        _check_axes(seen.scene)
        for one in seen.maps:
            sizes = len(one.heads), len(seen.queries(one)), len(seen.keys(one))
            assert one.weights.shape == sizes
            assert (one.weights >= 0).all()
            totals = one.weights.sum(-1)
            read = torch.ones_like(totals)
            close(totals, torch.where(totals == 0, totals, read) if one.kind == "chain" else read)
    return capture


def checked_test_input(run: Any) -> Any:
    """The first input of the test data, if predict and look take it, and numbers out of range are named."""
    one = run.test_input(0)
    assert same(run.test_input(0), one)
    checked(run, [one])
    for index in (-1, 10**6):
        with pytest.raises(UserError, match=rf"has \d+ inputs, from 0 to \d+; there is no number {index}"):
            run.test_input(index)
    return one


def _refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("a scene is made, but nobody looks on")


def _check_axes(scene: Scene) -> None:
    for axis in scene.axes.values():
        if not axis.on:
            assert not axis.places
            continue
        picture = scene.pictures[axis.on]
        for place in axis.places:
            if place is None:
                continue
            match picture:
                case Image():
                    assert len(place) == 4
                case Sound():
                    assert len(place) == 2
                case Plane():
                    assert 0 <= place[0] < len(picture.tracks)


def differentiated(run: Any, inputs: Sequence[Any]) -> Capture:
    """A look with gradients, if each read has a map of them that is right, and the run is left as it was."""
    before, plain = run.predict(inputs), run.look(inputs)
    capture = run.look(inputs, gradients=True)
    assert same(run.predict(inputs), before)
    assert all(weight.requires_grad and weight.grad is None for weight in run.model.parameters())
    assert not run.model.training
    parts = run.parts(inputs)
    assert len(parts) == len(capture) == len(plain)
    for given, seen, other in zip(parts, capture, plain, strict=True):
        assert seen.scene.title == other.scene.title
        weights = {one.name: one for one in seen.find()}
        assert list(weights) == [one.name for one in other.maps]
        changed = seen.find(measure=GRADIENT)
        assert [one.name for one in changed] == [name for name in weights if "before the first step" not in name]
        for one in changed:
            of = weights[one.name]
            assert (one.queries, one.keys, one.heads, one.kind) == (of.queries, of.keys, of.heads, of.kind)
            assert one.weights.shape == of.weights.shape
            assert one.weights.isfinite().all()
            assert not one.weights[of.weights == 0].any()
        for one in changed:
            if one.kind != "chain" and _calls(run, given, seen, one) == 1:
                _check_slope(run, given, seen, one)
    keys = [one.key for seen in capture for one in seen.find(measure=GRADIENT)]
    assert len(set(keys)) == len(keys)  # scenes share no numbers
    return capture


def _check_slope(run: Any, given: Any, seen: Seen, one: Map) -> None:
    """The largest number of a map is the slope of log p as that weight is scaled: a difference of two runs."""
    largest = int(one.weights.abs().argmax())
    place, size = np.unravel_index(largest, one.weights.shape), 1e-2
    place = place if one.heads != ("",) else place[1:]

    def scaled(factor: float) -> float:
        def change(read: Read, args: tuple, kwargs: dict, output: torch.Tensor) -> torch.Tensor:
            problem = read.pose(*args, **kwargs).ungrouped()
            weights = reference.weights(problem).clone()
            weights[(0, *place)] *= factor
            return weights @ problem.values

        handle = run.model.get_submodule(one.name).register_forward_hook(change, with_kwargs=True)
        with torch.no_grad():
            result = float(run.likelihood(given, seen))
        handle.remove()
        return result

    more, same, less = scaled(1 + size), scaled(1.0), scaled(1 - size)
    # Between the slopes on both sides, which differ where a rectifier opens or closes on the way.
    low, high = sorted(((more - same) / size, (same - less) / size))
    slack = max(1e-6 * max(1.0, abs(more)) / size, 0.02 * max(abs(low), abs(high)))
    assert low - slack <= float(one.weights.flatten()[largest]) <= high + slack


def _calls(run: Any, given: Any, seen: Seen, one: Map) -> int:
    """How often a read runs when an answer is given all at once."""
    with listen(run.model) as maps, torch.no_grad():
        run.likelihood(given, seen)
    return maps.counts()[one.name]
