"""Tensor biases, and sums of biases."""

import pytest
import torch

from regard.attention.attend import attend
from regard.attention.biases import Alibi, RelativeBias, TensorBias
from regard.attention.choices import Soft
from regard.attention.masks import dense
from regard.attention.positions import Positions
from regard.attention.scores import Additive
from tests.helpers import ADDITIVE_KERNELS, close

CPU = torch.device("cpu")
QUERY = torch.zeros(3, 1)


def test_tensor_bias_is_the_tensor():
    tensor = torch.randn(3, 5)
    assert TensorBias(tensor).materialize(QUERY, QUERY, Positions(3, 5, CPU)) is tensor
    assert torch.equal(
        TensorBias(tensor).materialize(QUERY, QUERY, Positions(3, 5, CPU).tile(1, 3)), tensor[1:3]
    )


def test_sum_aligns_axes_from_the_left():
    by_row, by_head = torch.randn(2, 3, 5), torch.randn(2, 7, 1, 5)
    total = (TensorBias(by_row) + TensorBias(by_head)).materialize(
        QUERY, QUERY, Positions(3, 5, CPU)
    )
    close(total, by_row.unsqueeze(1) + by_head)


def test_tensors_are_added_on_either_side():
    positions, tensor, alibi = Positions(3, 5, CPU), torch.randn(3, 5), Alibi(2)
    expected = alibi.materialize(QUERY, QUERY, positions) + tensor
    close((alibi + tensor).materialize(QUERY, QUERY, positions), expected)
    close((tensor + alibi).materialize(QUERY, QUERY, positions), expected)


def test_parameters_of_a_sum_are_those_of_both():
    assert [name for name, _ in (RelativeBias(2) + Alibi(2)).named_parameters()] == ["left.table"]


@pytest.mark.usefixtures("no_shape_checks")
def test_wrong_biases_are_refused():
    with pytest.raises(TypeError, match="bias must be a Bias or a tensor, got list"):
        TensorBias([[0.0]])
    with pytest.raises(TypeError, match=r"bias must be floating point, got torch.bool"):
        TensorBias(torch.ones(2, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"bias must be \(\.\.\., query, key\), got shape \(2,\)"):
        TensorBias(torch.zeros(2))
    with pytest.raises(TypeError, match="bias must be a Bias or a tensor, got str"):
        Alibi(2) + "1"  # pyrefly: ignore


def test_tensor_bias_refuses_another_size():
    with pytest.raises(
        ValueError, match=r"bias must be \(\.\.\., 3 queries or 1, 4 keys or 1\), got \(3, 5\)"
    ):
        TensorBias(torch.zeros(3, 5)).materialize(QUERY, QUERY, Positions(3, 4, CPU))


@pytest.mark.parametrize("kernel", ADDITIVE_KERNELS)
def test_masked_infinities_of_a_bias_do_not_reach_the_gradient_of_beta(kernel):
    bias = torch.zeros(3, 4)
    bias[0, 1], bias[:, 3], bias[2] = torch.inf, torch.nan, -torch.inf
    allowed = torch.ones(3, 4, dtype=torch.bool)
    allowed[0, 1], allowed[:, 3] = False, False
    choice, score = Soft(2.0, learn=True), Additive(5, 5, 3)
    query, memory = torch.randn(3, 5), (torch.randn(4, 5), torch.randn(4, 2))
    outs = [
        attend(
            query,
            memory,
            score=score,
            choice=choice,
            mask=dense(allowed & (bias > -torch.inf)),
            bias=b,
            kernel=kernel,
        )
        for b in (bias, None)
    ]
    close(*outs)
    assert not outs[0][2].any()
    gradients = [torch.autograd.grad(out.square().sum(), choice.log_beta)[0] for out in outs]
    close(*gradients)
