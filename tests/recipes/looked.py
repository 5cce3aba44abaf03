"""Checks for the captures of every recipe: axes match the weights, and recording changes no answer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from regard.attention.kernels import reference
from regard.errors import UserError
from regard.layers.read import Read
from regard.look.capture import Capture
from regard.look.listen import record_weights
from regard.look.maps import GRADIENT, AttentionMap, SampleMaps
from regard.look.record import record
from regard.look.sample import Image, Plane, Sample, Sound
from tests.helpers import close


def is_equal(one: Any, other: Any) -> bool:
    """Return True if two answers are bitwise equal."""
    if isinstance(one, np.ndarray | torch.Tensor):
        return np.array_equal(np.asarray(one), np.asarray(other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_equal, one, other))
    return one == other


def check_capture(run: Any, inputs: Sequence[Any]) -> Capture:
    """Look at these inputs, check the capture, and return it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sample, "__init__", _refuse)  # fails if a sample is created although nothing is recorded
        before = run.predict(inputs)
    with record(run) as during:
        assert is_equal(run.predict(inputs), before)
    assert during.recording.names
    capture = run.look(inputs)
    assert len(capture)
    for seen in capture:
        assert seen.sample.title
        _check_axes(seen.sample)
        for one in seen.maps:
            sizes = len(one.heads), len(seen.queries(one)), len(seen.keys(one))
            assert one.weights.shape == sizes
            assert (one.weights >= 0).all()
            totals = one.weights.sum(-1)
            read = torch.ones_like(totals)
            close(totals, torch.where(totals == 0, totals, read) if one.kind == "chain" else read)
    return capture


def check_test_input(run: Any) -> Any:
    """Check that predict and look take the first test input, and that indices out of range are named; return it."""
    one = run.test_input(0)
    assert is_equal(run.test_input(0), one)
    check_capture(run, [one])
    for index in (-1, 10**6):
        with pytest.raises(UserError, match=rf"has \d+ inputs, from 0 to \d+; there is no input {index}"):
            run.test_input(index)
    return one


def _refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("a sample is created, but nothing is recorded")


def _check_axes(sample: Sample) -> None:
    for axis in sample.axes.values():
        if not axis.on:
            assert not axis.places
            continue
        picture = sample.pictures[axis.on]
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


def check_gradients(run: Any, inputs: Sequence[Any]) -> Capture:
    """Look with gradients, check the gradient map of each read and that the run is unchanged; return the capture."""
    before, plain = run.predict(inputs), run.look(inputs)
    capture = run.look(inputs, gradients=True)
    assert is_equal(run.predict(inputs), before)
    assert all(weight.requires_grad and weight.grad is None for weight in run.model.parameters())
    assert not run.model.training
    parts = run.split_inputs(inputs)
    assert len(parts) == len(capture) == len(plain)
    for given, seen, other in zip(parts, capture, plain, strict=True):
        assert seen.sample.title == other.sample.title
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
    assert len(set(keys)) == len(keys)  # keys of samples are distinct
    return capture


def _check_slope(run: Any, given: Any, seen: SampleMaps, one: AttentionMap) -> None:
    """Check the largest number of a map against the finite difference of log p when that weight is scaled."""
    largest = int(one.weights.abs().argmax())
    place, size = np.unravel_index(largest, one.weights.shape), 1e-2
    place = place if one.heads != ("",) else place[1:]

    def scaled(factor: float) -> float:
        def change(read: Read, args: tuple, kwargs: dict, output: torch.Tensor) -> torch.Tensor:
            inputs = read.prepare_inputs(*args, **kwargs).repeat_heads()
            weights = reference.weights(inputs).clone()
            weights[(0, *place)] *= factor
            return weights @ inputs.values

        handle = run.model.get_submodule(one.name).register_forward_hook(change, with_kwargs=True)
        with torch.no_grad():
            result = float(run.likelihood(given, seen))
        handle.remove()
        return result

    more, middle, less = scaled(1 + size), scaled(1.0), scaled(1 - size)
    # Between the slopes on both sides, which differ at the kink of a rectifier.
    low, high = sorted(((more - middle) / size, (middle - less) / size))
    slack = max(1e-6 * max(1.0, abs(more)) / size, 0.02 * max(abs(low), abs(high)))
    assert low - slack <= float(one.weights.flatten()[largest]) <= high + slack


def _calls(run: Any, given: Any, seen: SampleMaps, one: AttentionMap) -> int:
    """Return how often a read runs under teacher forcing."""
    with record_weights(run.model) as maps, torch.no_grad():
        run.likelihood(given, seen)
    return maps.counts()[one.name]
