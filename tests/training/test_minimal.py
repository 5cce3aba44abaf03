"""Rows without targets, and the shortest ones: every parameter takes part in every batch."""

import pytest

from tests.training.minimal import NAMES, Rows, model_of


@pytest.mark.parametrize("rows", [(1, 3), (0, 1, 2, 3)], ids=["empty", "mixed"])
@pytest.mark.parametrize(("core", "writer"), NAMES)
def test_every_parameter_has_a_gradient_without_targets(
    core: str, writer: str, rows: tuple[int, ...]
) -> None:
    model = model_of(core, writer)
    loss = model.loss(Rows(writer).collate(0, rows))
    loss.total.backward()
    assert loss.total.isfinite()
    for name, value in model.named_parameters():
        assert value.grad is not None, name
        assert value.grad.isfinite().all(), name
