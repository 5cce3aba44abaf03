"""The few numbers by which a change past torch's own count is seen."""

import pytest
import torch

from regard.engines.watch import Samples


@pytest.mark.parametrize("at", [(0, 0), (1, 2), (2, 3)])
def test_first_middle_and_last_number_are_read(at):
    tensor = torch.zeros(3, 4)
    samples = Samples([torch.ones(5), tensor])
    before = samples.read()
    tensor.data[at] = 1e-30
    assert samples.read() != before
    tensor.data[at] = 0.0
    assert samples.read() == before
    tensor.data[0, 1] = 1.0
    assert samples.read() == before


@pytest.mark.parametrize("layout", [lambda x: x.t(), lambda x: x[:, 1:], lambda x: x[:1].expand(3, 4)])
def test_numbers_are_those_of_the_layout(layout):
    whole = torch.zeros(3, 4)
    tensor = layout(whole)
    samples = Samples([tensor])
    before = samples.read()
    tensor.data[-1, -1] = 1.0
    assert samples.read() != before


@pytest.mark.parametrize(
    "other",
    [
        torch.empty(0),
        torch.empty(3, 0),
        torch.ones(3).double(),
        torch.ones(3, dtype=torch.int8),
        torch.eye(3).to_sparse(),
    ],
)
def test_tensors_that_are_no_plain_float32_are_left_out(other):
    assert Samples([other]).read() == b""
    assert Samples([other, torch.ones(1)]).read() == Samples([torch.ones(1)]).read()
