"""Groups of operators: each operator in one group, unknown ones in `other operators`, shares add up to 100 %."""

import pytest
import torch
from torch import Tensor, nn

from regard.bench.groups import (
    BATCHES,
    OTHER,
    OUTPUT,
    PYTHON,
    SCOPE,
    SEARCH,
    UPDATE,
    Span,
    group_of,
    shares,
    subtract_overhead,
)
from regard.bench.profile import build_spans, mark_modules, profile_calls, with_scope
from regard.compat.torch import runs_original_forward
from regard.layers.dropout import Dropout


def chain(*names: str) -> Span:
    """Return a span nested in others, the outermost first."""
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
        ([SCOPE + "dropout", "_SixteenBitDropout", "aten::mul"], "dropout"),
        ([SCOPE + OUTPUT, "_ChunkedLoss", "aten::mm"], OUTPUT),
        ([SCOPE + OTHER, SCOPE + OUTPUT, "aten::linear"], OUTPUT),
        ([SCOPE + UPDATE, "aten::copy_"], UPDATE),
        ([SCOPE + SEARCH, "aten::topk"], SEARCH),
        ([SCOPE + SEARCH, SCOPE + OTHER, "aten::add"], OTHER),
        ([SCOPE + BATCHES], BATCHES),
        (["aten::embedding"], "embedding"),
        (["aten::clone", "aten::copy_"], "copies and memory"),
        (["mine::new_operator"], OTHER),
        (["aten::added_in_a_later_torch"], OTHER),
        ([SCOPE + "attention"], PYTHON),
        (["autograd::engine::evaluate_function: MulBackward0"], PYTHON),
    ],
)
def test_group_of_an_operator_is_its_own_or_that_of_an_enclosing_one(names: list[str], group: str) -> None:
    assert group_of(chain(*names)) == group


def test_shares_add_up_and_python_is_the_rest() -> None:
    outer = Span("aten::linear", 1.0)
    spans = [outer, Span("aten::addmm", 2.0, parent=outer), Span("mine::unknown", 3.0), Span(SCOPE + "attention", 9.0)]
    result = {share.group: share for share in shares(spans, wall=8.0)}
    assert {group: share.seconds for group, share in result.items()} == {
        "matrix products": 3.0,
        OTHER: 3.0,
        PYTHON: 2.0,
    }
    assert sum(share.percent for share in result.values()) == pytest.approx(100)
    assert result["matrix products"].percent == pytest.approx(37.5)
    assert result["matrix products"].operators == ("aten::addmm", "aten::linear")


def test_shares_are_never_negative_where_clocks_differ() -> None:
    result = shares([Span("aten::mm", 2.0)], wall=1.9)
    assert [(share.group, share.percent) for share in result] == [("matrix products", 100.0), (PYTHON, 0.0)]


def test_no_spans_have_a_share_of_zero() -> None:
    assert [share.percent for share in shares([], wall=0.0)] == [0.0]


def test_overhead_is_subtracted_from_the_enclosing_span() -> None:
    outer = Span("aten::linear", 5.0)
    inside = [Span("aten::t", 0.5, within=outer), Span("aten::addmm", 2.0, within=outer)]
    assert [span.own for span in subtract_overhead([outer, *inside], 1.0)] == [3.0, 0.5, 2.0]
    assert [span.own for span in subtract_overhead([outer, *inside], 4.0)] == [0.0, 0.5, 2.0]


class Small(nn.Module):
    """Model with a module of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(8, 8), Dropout(0.5), nn.LayerNorm(8))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the modules in sequence."""
        return self.parts(x)


def test_backward_operators_belong_to_the_group_of_their_forward_operators() -> None:
    model, x = Small(), torch.randn(5, 8)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profiler:
        with_scope(model.parts[1], "dropout")(x.double().requires_grad_()).sum().backward()
    spans = build_spans(list(profiler.events() or []))
    backward = [span for span in spans if span.name.startswith("_SixteenBitDropoutBackward")]
    assert backward
    products = [span for span in spans if span.name in ("aten::mul", "aten::mul_")]
    assert len(products) >= 4  # two forward, two backward
    assert {group_of(span) for span in products} == {"dropout"}


def test_profile_counts_no_time_twice_and_restores_the_model() -> None:
    model, x = Small(), torch.randn(64, 8)
    before = [set(vars(module)) for module in model.modules()]
    result = profile_calls([lambda: model(x).sum().backward()], model, torch.device("cpu"))
    assert sum(share.percent for share in result.shares) == pytest.approx(100)
    assert sum(share.seconds for share in result.shares) == pytest.approx(result.seconds)
    groups = [share.group for share in result.shares]
    assert len(set(groups)) == len(groups)
    assert {"matrix products", "dropout", "normalization", PYTHON} <= set(groups)
    assert [set(vars(module)) for module in model.modules()] == before


def test_marks_keep_the_fused_paths() -> None:
    """The profiler sees the paths that training takes: no part has its own forward. The classes are restored."""
    model = nn.Sequential(nn.LayerNorm(4), Dropout(0.5))
    before = nn.LayerNorm.forward, Dropout.forward
    with mark_modules(model):
        assert all(runs_original_forward(type(part), part) for part in model)
        assert nn.LayerNorm.forward is not before[0]
        assert model.train()(torch.ones(2, 4)).shape == (2, 4)
    assert (nn.LayerNorm.forward, Dropout.forward) == before
