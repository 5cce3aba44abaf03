"""Operators in words: each in one group, unknown ones among the others, and all shares together the whole."""

import pytest
import torch
from torch import Tensor, nn

from regard.layers.dropout import Dropout
from regard.layers.linear import is_exact
from regard.recipes.bench.groups import (
    BATCHES,
    CHOOSING,
    OTHER,
    OUTPUT,
    PYTHON,
    SCOPE,
    UPDATE,
    Span,
    group_of,
    shares,
    without_watching,
)
from regard.recipes.bench.watch import marked, scoped, spans_of, watched


def chain(*names: str) -> Span:
    """A span inside of others, the outermost first."""
    span = None
    for name in names:
        span = Span(name, 1.0, parent=span, within=span)
    assert span is not None
    return span


@pytest.mark.parametrize(
    ("names", "group"),
    [
        (["aten::linear", "aten::addmm"], "matrix products"),
        (["mkldnn::_linear_pointwise"], "matrix products"),
        (["aten::conv2d", "aten::mkldnn_convolution"], "matrix products"),
        (["aten::bmm"], "matrix products"),
        ([SCOPE + "attention", "aten::matmul", "aten::bmm"], "attention"),
        ([SCOPE + "attention", "aten::linear", "aten::addmm"], "matrix products"),
        ([SCOPE + "attention", "aten::tanh"], "attention"),
        ([SCOPE + "recurrent cells", "aten::tanh"], "recurrent cells"),
        (["aten::tanh"], "activations"),
        (["aten::scaled_dot_product_attention", "aten::copy_"], "attention"),
        (["aten::native_layer_norm"], "normalization"),
        ([SCOPE + "dropout", "_FewBits", "aten::mul"], "dropout"),
        ([SCOPE + OUTPUT, "_ChunkedLoss", "aten::mm"], OUTPUT),
        ([SCOPE + OTHER, SCOPE + OUTPUT, "aten::linear"], OUTPUT),
        ([SCOPE + UPDATE, "aten::copy_"], UPDATE),
        ([SCOPE + CHOOSING, "aten::topk"], CHOOSING),
        ([SCOPE + CHOOSING, SCOPE + OTHER, "aten::add"], OTHER),
        ([SCOPE + BATCHES], BATCHES),
        (["aten::embedding"], "embedding"),
        (["aten::clone", "aten::copy_"], "copies and memory"),
        (["mine::new_operator"], OTHER),
        (["aten::added_in_a_later_torch"], OTHER),
        ([SCOPE + "attention"], PYTHON),
        (["autograd::engine::evaluate_function: MulBackward0"], PYTHON),
    ],
)
def test_group_of_an_operator_is_its_own_or_that_of_what_it_is_part_of(names: list[str], group: str) -> None:
    assert group_of(chain(*names)) == group


def test_shares_are_the_whole_and_python_what_is_left() -> None:
    outer = Span("aten::linear", 1.0)
    spans = [outer, Span("aten::addmm", 2.0, parent=outer), Span("mine::unknown", 3.0), Span(SCOPE + "attention", 9.0)]
    found = {one.group: one for one in shares(spans, wall=8.0)}
    assert {group: one.seconds for group, one in found.items()} == {"matrix products": 3.0, OTHER: 3.0, PYTHON: 2.0}
    assert sum(one.percent for one in found.values()) == pytest.approx(100)
    assert found["matrix products"].percent == pytest.approx(37.5)
    assert found["matrix products"].operators == ("aten::addmm", "aten::linear")


def test_shares_are_never_negative_where_clocks_differ() -> None:
    found = shares([Span("aten::mm", 2.0)], wall=1.9)
    assert [(one.group, one.percent) for one in found] == [("matrix products", 100.0), (PYTHON, 0.0)]


def test_nothing_at_all_has_shares() -> None:
    assert [one.percent for one in shares([], wall=0.0)] == [0.0]


def test_what_watching_cost_is_taken_from_what_ran_around() -> None:
    outer = Span("aten::linear", 5.0)
    inside = [Span("aten::t", 0.5, within=outer), Span("aten::addmm", 2.0, within=outer)]
    assert [span.own for span in without_watching([outer, *inside], 1.0)] == [3.0, 0.5, 2.0]
    assert [span.own for span in without_watching([outer, *inside], 4.0)] == [0.0, 0.5, 2.0]


class Small(nn.Module):
    """A part of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(8, 8), Dropout(0.5), nn.LayerNorm(8))

    def forward(self, x: Tensor) -> Tensor:
        """What the parts say, one after the other."""
        return self.parts(x)


def test_what_is_differentiated_belongs_to_what_was_computed_forward() -> None:
    model, x = Small(), torch.randn(5, 8)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profiler:
        scoped(model.parts[1], "dropout")(x.double().requires_grad_()).sum().backward()
    spans = spans_of(list(profiler.events() or []))
    backward = [span for span in spans if span.name.startswith("_FewBitsBackward")]
    assert backward
    products = [span for span in spans if span.name in ("aten::mul", "aten::mul_")]
    assert len(products) >= 4  # two forward, two backward
    assert {group_of(span) for span in products} == {"dropout"}


def test_watching_counts_no_time_twice_and_leaves_the_model_as_it_was() -> None:
    model, x = Small(), torch.randn(64, 8)
    before = [set(vars(module)) for module in model.modules()]
    found = watched([lambda: model(x).sum().backward()], model, torch.device("cpu"))
    assert sum(one.percent for one in found.shares) == pytest.approx(100)
    assert sum(one.seconds for one in found.shares) == pytest.approx(found.seconds)
    groups = [one.group for one in found.shares]
    assert len(set(groups)) == len(groups)
    assert {"matrix products", "dropout", "normalization", PYTHON} <= set(groups)
    assert [set(vars(module)) for module in model.modules()] == before


def test_marks_leave_the_fused_paths_as_they_are() -> None:
    """The profiler sees the paths that training takes: no part has its own forward. The classes are restored."""
    model = nn.Sequential(nn.LayerNorm(4), Dropout(0.5))
    before = nn.LayerNorm.forward, Dropout.forward
    with marked(model):
        assert all(is_exact(type(part), part) for part in model)
        assert nn.LayerNorm.forward is not before[0]
        assert model.train()(torch.ones(2, 4)).shape == (2, 4)
    assert (nn.LayerNorm.forward, Dropout.forward) == before
