"""ALiBi, T5 and Shaw biases: slopes and buckets by hand, equations, gradients, refused inputs."""

import math

import pytest
import torch
from torch import Tensor

from regard.attention.attend import attend
from regard.attention.biases import Alibi, RelativeBias, ShawBias
from regard.attention.masks import causal
from regard.attention.positions import Positions
from regard.attention.scores import ScaledDot
from tests.helpers import close

CPU = torch.device("cpu")
KEYS = torch.zeros(7, 1)


def randomize(bias: RelativeBias | ShawBias) -> RelativeBias | ShawBias:
    torch.nn.init.normal_(bias.table)
    return bias


def values(
    bias: Alibi | RelativeBias, positions: Positions, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the bias, (head, query, key)."""
    query = torch.zeros(positions.num_rows, 1, dtype=dtype)
    return bias.materialize(query, query, positions)[0]


@pytest.mark.parametrize(
    ("num_heads", "exponents"),
    [
        (1, [8]),
        (2, [4, 8]),
        (3, [4, 8, 2]),
        (5, [2, 4, 6, 8, 1]),
        (7, [2, 4, 6, 8, 1, 3, 5]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_alibi_slopes_equal_those_of_the_paper_s_code(num_heads, exponents):
    close(
        Alibi(num_heads).slopes,
        torch.tensor([2.0**-exponent for exponent in exponents], dtype=torch.float64),
    )


def test_alibi_decreases_linearly_on_both_sides():
    table = values(Alibi(2), Positions(3, 5, CPU))
    distances = torch.tensor([[2, 1, 0, 1, 2], [3, 2, 1, 0, 1], [4, 3, 2, 1, 0]])
    assert torch.equal(table, -torch.stack([distances / 16, distances / 256]))


def test_causal_alibi_equals_a_slope_times_the_key_position():
    """Softmax ignores a constant per row: reads with -slope (p - j) equal those with slope j."""
    query, keys, read = (torch.randn(1, 3, 5, 7, dtype=torch.float64) for _ in range(3))
    by_key = Alibi(3).slopes[:, None, None] * torch.arange(5)
    close(
        attend(query, (keys, read), mask=causal(), bias=Alibi(3)),
        attend(query, (keys, read), mask=causal(), bias=by_key.unsqueeze(0).double()),
    )


def test_alibi_keeps_its_slopes_in_another_dtype():
    bias, positions = Alibi(7), Positions(1, 601, CPU)  # bfloat16 holds no odd number above 256
    exact = values(bias, positions, torch.float64)
    close(exact, -bias.slopes[:, None, None] * torch.arange(600, -1, -1))
    half = bias.bfloat16()
    assert torch.equal(values(half, positions, torch.float64), exact)
    assert torch.equal(values(half, positions, torch.bfloat16), exact.bfloat16())


def test_alibi_has_no_parameters_and_no_state():
    assert list(Alibi(3).parameters()) == []
    assert Alibi(3).state_dict() == {}
    assert list(RelativeBias(3).state_dict()) == ["table"]


STARTS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]
"""First distance of each bucket: two-sided, 32 buckets up to 128: 8 exact, then at 8, 11.3, 16,
22.6, 32, 45.3, 64, 90.5."""


def test_buckets_by_hand():
    bias, distances = RelativeBias(1), torch.tensor([*range(1, 130), 5000])
    expected = torch.tensor([sum(start <= d for start in STARTS) - 1 for d in distances.tolist()])
    assert torch.equal(bias.bucket(-distances), expected)
    assert torch.equal(bias.bucket(distances), 16 + expected)
    assert bias.bucket(torch.tensor(0)) == 0


def test_one_sided_buckets_are_twice_as_many_and_later_keys_share_the_first():
    """16 exact, then one bucket per factor of 8^(1/16) = 1.139: 16, 18.2, 20.7, ... 112.4."""
    bias = RelativeBias(1, two_sided=False)
    distances = [0, 3, -1, -15, -16, -18, -19, -20, -21, -112, -113, -128]
    buckets = [0, 0, 1, 15, 16, 16, 17, 17, 18, 30, 31, 31]
    assert bias.bucket(torch.tensor(distances)).tolist() == buckets


@pytest.mark.parametrize("two_sided", [True, False])
@pytest.mark.parametrize(
    ("buckets", "max_distance"), [(32, 128), (8, 20), (14, 50), (64, 800), (4, 3)]
)
def test_buckets_follow_the_formula_with_logarithms(two_sided, buckets, max_distance):
    """b/2 + floor(b/2 log(2d/b) / log(2 max/b)), in floating point, away from integers."""
    distance = torch.arange(-1000, 1001)
    actual = RelativeBias(1, buckets, max_distance, two_sided=two_sided).bucket(distance)
    side = buckets // 2 if two_sided else buckets
    exact = side // 2
    past = distance.abs() if two_sided else (-distance).clamp(min=0)
    wide = (
        (past / exact).clamp(min=1).double().log() / math.log(max_distance / exact) * (side - exact)
    )
    expected = torch.where(
        past < exact, past, (exact + (wide + 1e-9).floor().long()).clamp(max=side - 1)
    )
    assert torch.equal(actual, expected + (side * (distance > 0) if two_sided else 0))


def test_relative_bias_indexes_its_table_by_bucket_and_head():
    bias = randomize(RelativeBias(2, buckets=4, max_distance=3))
    # Each side: distance 0 in the first bucket, others in the second.
    own, past, ahead = bias.table[:, 0], bias.table[:, 1], bias.table[:, 3]
    rows = [[past, past, own, ahead], [past, past, past, own]]
    expected = torch.stack([torch.stack(row, -1) for row in rows], -2)
    assert torch.equal(values(bias, Positions(2, 4, CPU)), expected)


def test_relative_bias_supports_reads_without_heads():
    """The result equals one head of a bias with heads: one row, all rows, and a kernel."""
    bias = randomize(RelativeBias(None, 8, 5, two_sided=False))
    single = RelativeBias(1, 8, 5, two_sided=False)
    single.load_state_dict({"table": bias.table.unsqueeze(0)})
    query, keys, read = torch.randn(3, 2, 5), torch.randn(3, 7, 5), torch.randn(3, 7, 2)
    assert torch.equal(
        bias.materialize(query, KEYS, Positions(2, 7, CPU)),
        single.materialize(query, KEYS, Positions(2, 7, CPU))[:, 0],
    )
    assert torch.equal(
        bias.diagonals(Positions(2, 7, CPU)), single.diagonals(Positions(2, 7, CPU))[:, 0]
    )
    expected = attend(
        query.unsqueeze(1), (keys.unsqueeze(1), read.unsqueeze(1)), bias=single
    ).squeeze(1)
    close(attend(query, (keys, read), bias=bias), expected)
    assert (
        bias.picture(2, 3).heading
        == "RelativeBias(num_heads=None, buckets=8, max_distance=5, two_sided=False)"
    )


def test_learned_biases_are_initialized_to_zero():
    assert not values(RelativeBias(3), Positions(5, 5, CPU)).any()
    query = torch.randn(5, 3)
    assert not ShawBias(3, 2).materialize(query, query, Positions(5, 5, CPU)).any()


@pytest.mark.parametrize("num_heads", [None, 2])
def test_shaw_with_scaled_dot_is_equation_4(num_heads):
    """(q_i . (k_j + a_clip(j - i))) / sqrt(d), with the vectors a spelled out for every pair."""
    batch, heads, queries, keys, dim, reach = 3, 2, 5, 7, 11, 2
    bias = randomize(ShawBias(dim, reach, num_heads)).double()
    query = torch.randn(batch, heads, queries, dim, dtype=torch.float64)
    key = torch.randn(batch, heads, keys, dim, dtype=torch.float64)
    literal = torch.zeros(batch, heads, queries, keys, dtype=torch.float64)
    for h in range(heads):
        table = bias.table if num_heads is None else bias.table[h]
        for i in range(queries):
            for j in range(keys):
                vector = table[max(-reach, min(reach, j - (i + keys - queries))) + reach]
                literal[:, h, i, j] = (query[:, h, i] * (key[:, h, j] + vector)).sum(
                    -1
                ) / math.sqrt(dim)
    positions = Positions(queries, keys, CPU)
    close(ScaledDot()(query, key) + bias.materialize(query, key, positions), literal)


def test_shaw_supports_reads_without_heads():
    bias, query = randomize(ShawBias(3, 2)), torch.randn(5, 3)
    table = bias.materialize(query, KEYS, Positions(5, 7, CPU))
    assert table.shape == (5, 7)
    query = query.expand(2, 5, 3)
    assert torch.equal(bias.materialize(query, KEYS, Positions(5, 7, CPU))[1], table)


def test_biases_get_gradients_through_a_read():
    query, keys, read = (torch.randn(2, 3, 5, 7) for _ in range(3))
    bias = RelativeBias(3) + ShawBias(7, 2) + Alibi(3)
    attend(query, (keys, read), mask=causal(), bias=bias).square().sum().backward()
    grads = [parameter.grad for parameter in bias.parameters()]
    assert len(grads) == 2
    assert all(grad.isfinite().all() and grad.abs().max() > 0 for grad in grads)


def test_biases_have_a_repr():
    bias = Alibi(3) + RelativeBias(3, 8, 20, two_sided=False) + ShawBias(5, 4, 3) + ShawBias(5, 4)
    assert bias.picture(2, 3, query=torch.zeros(3, 2, 5)).heading == (
        "Alibi(num_heads=3) + RelativeBias(num_heads=3, buckets=8, max_distance=20, "
        "two_sided=False) + "
        "ShawBias(query_dim=5, max_distance=4, num_heads=3) + ShawBias(query_dim=5, max_distance=4)"
    )


@pytest.mark.usefixtures("no_shape_checks")
def test_wrong_sizes_are_refused():
    for make in (Alibi, RelativeBias):
        with pytest.raises(ValueError, match="num_heads must be at least 1, got 0"):
            make(0)
        with pytest.raises(TypeError, match="num_heads must be an integer, got float"):
            make(2.0)
    with pytest.raises(ValueError, match="buckets must be at least 4, got 3"):
        RelativeBias(1, buckets=3)
    with pytest.raises(ValueError, match="buckets must be at least 2, got 1"):
        RelativeBias(1, buckets=1, two_sided=False)
    with pytest.raises(ValueError, match=r"buckets must be even when two-sided.*got 7"):
        RelativeBias(1, buckets=7)
    with pytest.raises(ValueError, match=r"max_distance must exceed 8"):
        RelativeBias(1, max_distance=8)
    for sizes, name in (
        ((0, 1, 1), "query_dim"),
        ((1, 0, 1), "max_distance"),
        ((1, 1, 0), "num_heads"),
    ):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            ShawBias(*sizes)


def test_shaw_refuses_queries_of_another_size_or_number_of_heads():
    positions = Positions(2, 3, CPU)
    with pytest.raises(ValueError, match="query must have size 5, got 7"):
        ShawBias(5, 1).materialize(torch.zeros(2, 7), torch.zeros(2, 7), positions)
    with pytest.raises(
        ValueError, match=r"query must be \(\.\.\., 3 heads, query, 5\).*\(2, 2, 5\)"
    ):
        ShawBias(5, 1, 3).materialize(torch.zeros(2, 2, 5), torch.zeros(2, 2, 5), positions)


def test_bias_per_head_needs_a_heads_axis():
    query, keys = torch.randn(2, 3, 5), torch.randn(2, 7, 5)
    with pytest.raises(ValueError, match="leading axes of bias Alibi must be"):
        attend(query, (keys, keys), bias=Alibi(2))
