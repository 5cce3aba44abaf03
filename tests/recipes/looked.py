"""What holds of every recipe's captures: axes fit the weights, nothing said changes, nothing is made for nobody."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from regard.errors import UserError
from regard.look.capture import Capture
from regard.look.record import record
from regard.look.scene import Image, Plane, Scene, Sound
from tests.helpers import close

__all__ = ["checked", "checked_test_input", "same"]


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
