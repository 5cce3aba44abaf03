"""Checks of every recipe's captures: axes match weights, recording changes no answer."""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from regard.attention.kernels import reference
from regard.errors import UserError
from regard.layers.read import Read
from regard.look.capture import Capture
from regard.look.hooks import record_weights
from regard.look.maps import CONTRIBUTION, GRADIENT, AttentionMap
from regard.look.record import record
from regard.look.sample import Image, Plane, Sample, Sound
from regard.recipes.base.recipe import Recipe
from tests.helpers import close
from tests.look.maps import check_same
from tests.recipes.answer_checks import check_answers


def is_equal(first: Any, second: Any) -> bool:
    """Return True if two answers are bitwise equal."""
    if isinstance(first, np.ndarray | torch.Tensor):
        return np.array_equal(np.asarray(first), np.asarray(second))
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(is_equal, first, second))
    return first == second


def predict_each(run: Any, inputs: Sequence[Any], **settings: Any) -> list[Any]:
    """Return each input's answer in a batch of its own: rows of a batch round differently."""
    return [run.predict([item], **settings)[0] for item in inputs]


def check_capture(run: Any, inputs: Sequence[Any]) -> Capture:
    """Capture the reads of these inputs, check the capture, and return it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sample, "__init__", _refuse)  # nothing is recorded
        expected = run.predict(inputs)
    with record(run) as recorded:
        assert is_equal(run.predict(inputs), expected)
    assert recorded.recording.names
    check_again(run, inputs)
    check_batch(run, inputs)
    capture = run.look(inputs)
    assert len(capture)
    if type(run.recipe).forward_for_look is Recipe.forward_for_look:
        _check_equal(capture, recorded, torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = capture.save(f"{folder}/look.safetensors")
        _check_equal(Capture.open(path), capture, torch.float16)
        capture.save(f"{folder}/look.html")
        capture.plot(f"{folder}/look.svg")
    check_maps(capture)
    return capture


def check_maps(capture: Capture) -> None:
    """Check that maps fit their axes, that weights sum to one and contributions to their total."""
    for sample_maps in capture:
        assert sample_maps.sample.title
        _check_axes(sample_maps.sample)
        for attention_map in sample_maps.maps:
            weights, heads = attention_map.weights, len(attention_map.heads)
            axes = sample_maps.queries(attention_map), sample_maps.keys(attention_map)
            assert weights.shape == (heads, *map(len, axes))
            if attention_map.measure == CONTRIBUTION:
                close(weights[:, 0], weights[:, 1:].sum(1))
                continue
            assert (weights >= 0).all()
            totals = weights.sum(-1)
            is_empty = totals == 0 if attention_map.kind == "chain" else torch.tensor(False)
            close(totals, torch.where(is_empty, 0.0, torch.ones_like(totals)))


def _check_equal(capture: Capture, other: Capture, dtype: torch.dtype) -> None:
    """Check that captures have the same weights of the same reads, in this dtype."""
    for one, two in zip(capture, other, strict=True):
        for own, expected in zip(one.find(), two.find(), strict=True):
            assert own.metadata() == expected.metadata()
            assert torch.equal(own.weights, expected.weights.to(dtype))


def check_again(run: Any, inputs: Sequence[Any], **options: Any) -> Capture:
    """Check that outputs that are read again have the attention with which they were computed."""
    recipe, examples = run.recipe.change(options), []
    with record(run) as computed:
        examples += run.prepare(inputs, recipe)
        run.compute(examples, recipe)
    again = run.look_again(examples, recipe)
    check_same(again, computed)
    return again


def check_batch(run: Any, inputs: Sequence[Any]) -> None:
    """Check that inputs together have the answers that each has alone: to 1e-5, equal labels."""
    together = run.answer(inputs)
    check_answers(run, together)
    for number, (given, first) in enumerate(zip(inputs, together, strict=True), start=1):
        second = dict(run.compute_answers([given], first=number)[0].json)
        assert _is_close(first, second), (first, second)


def _is_close(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        is_same = first.keys() == second.keys()
        return is_same and all(_is_close(first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(_is_close, first, second))
    if isinstance(first, np.ndarray):  # pixels, rounded
        return bool(np.abs(first.astype(int) - second).max() <= 1)
    if isinstance(first, float):
        return first == pytest.approx(second, rel=1e-5, abs=1e-6)
    return first == second


def check_test_input(run: Any) -> Any:
    """Check predict and look of the first test input, and of wrong indices; return the input."""
    test_input = run.test_input(0)
    assert is_equal(run.test_input(0), test_input)
    assert is_equal(run.predict([test_input]), run.predict([run.test_input(0)]))
    check_maps(run.look([test_input]))
    for index in (-1, 10**6):
        with pytest.raises(UserError, match=rf"has \d+ inputs, from 0: no input {index}"):
            run.test_input(index)
    return test_input


def _refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("a sample is created, but nothing is recorded")


def _check_axes(sample: Sample) -> None:
    for axis in sample.axes.values():
        if not axis.picture:
            assert not axis.places
            continue
        picture = sample.pictures[axis.picture]
        for position in filter(None, axis.places):
            assert len(position) == {Image: 4, Sound: 2, Plane: 1}[type(picture)]
            if isinstance(picture, Plane):
                assert 0 <= position[0] < len(picture.tracks)


def outputs_of(run: Any, inputs: Sequence[Any]) -> list[Any]:
    """Return the outputs of the model for the rows of inputs."""
    examples = run.prepare(inputs, run.recipe)
    run.recipe.compute_outputs(run._active, examples, run.trace)
    return [output for example in examples for output in example.outputs]


def answer_log_probs(run: Any, inputs: Sequence[Any]) -> list[Callable[[], torch.Tensor]]:
    """Answer inputs as a look does; return a function per row that computes log p."""
    examples = run.prepare(inputs, run.recipe)
    with record(run):
        step = run.recipe.forward_for_look
        run.recipe.compute_outputs(run._active, examples, run.trace, step=step)
    rows = [(example, i) for example in examples for i in range(len(example.rows))]
    return [partial(run.recipe.log_prob, run._model, *row) for row in rows]


def check_gradients(run: Any, inputs: Sequence[Any]) -> Capture:
    """Capture gradients and check each read's map, and the unchanged run; return the capture."""
    expected, plain = run.predict(inputs), run.look(inputs)
    capture = run.look(inputs, gradients=True)
    assert is_equal(run.predict(inputs), expected)
    assert all(weight.requires_grad and weight.grad is None for weight in run.model.parameters())
    assert not run.model.training
    parts, keys = answer_log_probs(run, inputs), []
    assert len(parts) == len(capture) == len(plain)
    for part, sample_maps, plain_maps in zip(parts, capture, plain, strict=True):
        assert sample_maps.sample.title == plain_maps.sample.title
        weights = {weights_map.name: weights_map for weights_map in sample_maps.find()}
        assert list(weights) == [weights_map.name for weights_map in plain_maps.find()]
        gradient_maps = sample_maps.find(measure=GRADIENT)
        names = [name for name in weights if "before the first step" not in name]
        assert [gradient_map.name for gradient_map in gradient_maps] == names
        for gradient_map in gradient_maps:
            weights_map = weights[gradient_map.name]
            for name in ("queries", "keys", "heads", "kind"):
                assert getattr(gradient_map, name) == getattr(weights_map, name)
            assert gradient_map.weights.shape == weights_map.weights.shape
            assert gradient_map.weights.isfinite().all()
            assert not gradient_map.weights[weights_map.weights == 0].any()
            if gradient_map.kind != "chain" and _count_reads(run, part, gradient_map) == 1:
                _check_finite_difference(run, part, gradient_map)
        keys += [gradient_map.key for gradient_map in gradient_maps]
    assert len(set(keys)) == len(keys)  # keys of samples are distinct
    return capture


def _check_finite_difference(
    run: Any, log_prob: Callable[[], torch.Tensor], gradient_map: AttentionMap
) -> None:
    """Check a map's largest number against finite differences of log p in that weight."""
    largest = int(gradient_map.weights.abs().argmax())
    index, size = np.unravel_index(largest, gradient_map.weights.shape), 1e-2
    index = index if gradient_map.heads != ("",) else index[1:]

    def log_p_with_factor(factor: float) -> float:
        def scale_weight(read: Read, args: Any, kwargs: Any, output: Any) -> torch.Tensor:
            inputs = read.prepare_inputs(*args, **kwargs).repeat_heads()
            weights = reference.weights(inputs).clone()
            weights[(0, *index)] *= factor
            return weights @ inputs.values

        read = run.model.get_submodule(gradient_map.name)
        handle = read.register_forward_hook(scale_weight, with_kwargs=True)
        with torch.no_grad():
            result = float(log_prob())
        handle.remove()
        return result

    more, middle, less = map(log_p_with_factor, (1 + size, 1.0, 1 - size))
    # Between the slopes on both sides, which differ at the kink of a rectifier.
    low, high = sorted(((more - middle) / size, (middle - less) / size))
    slack = max(1e-6 * max(1.0, abs(more)) / size, 0.02 * max(abs(low), abs(high)))
    assert low - slack <= float(gradient_map.weights.flatten()[largest]) <= high + slack


def _count_reads(run: Any, log_prob: Callable[[], torch.Tensor], gradient_map: AttentionMap) -> int:
    """Return the number of calls of a read under teacher forcing."""
    with record_weights(run.model) as maps, torch.no_grad():
        log_prob()
    return len(maps[gradient_map.name])
