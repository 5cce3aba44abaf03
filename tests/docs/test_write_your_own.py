"""The page "Write your own": its code runs, its parts are as stated, its recipe trains."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.engines.registry import prepare
from tests.helpers import close
from tests.recipes.commands import run_file
from tests.shapes import without_checks

ROOT = Path(__file__).parents[2]
PAGE = "docs/howto/write-your-own.md"
BLOCKS = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / PAGE).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)
PARTS, RECIPE = [block for block in BLOCKS if not block.startswith("# ")], BLOCKS[-1]
SMALL = (
    "--data.locales en --data.epoch-size 20 --data.val-size 4 --data.test-size 4 "
    "--train.steps 3 --train.warmup 1 --train.batch-tokens 200 "
    "--train.validate-every 3 "
    "--val-sample 2 --model.core.layers 1 --model.core.decoder-layers 1 --model.core.width 16 "
    "--model.core.heads 2 "
    "--model.core.feedforward 16 --train.precision float32 --train.tensorboard false"
)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the names that the code of the page defines."""
    assert len(PARTS) == 13
    torch.manual_seed(1)
    names: dict[str, Any] = {"__name__": "own_parts"}
    with pytest.MonkeyPatch.context() as patch, without_checks():
        patch.chdir(tmp_path_factory.mktemp("page"))
        exec(compile("\n".join(PARTS), PAGE, "exec"), names)
        assert Path("dilated.svg").stat().st_size > 1000
    return names


def test_score_and_choice_are_what_they_state(names) -> None:
    scores = names["Manhattan"]()(
        torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0], [0.0, 5.0]])
    )
    close(scores, torch.tensor([[0.0, -4.0]]) * torch.log(torch.tensor(2.0)))
    weights = names["Thresholded"](0.1)(torch.tensor([[0.6, 0.31, 0.09]]).log(), None)
    close(weights, torch.tensor([[0.6, 0.31, 0.0]]) / 0.91)
    assert names["Thresholded"](0.9)(torch.tensor([[0.6, 0.4]]).log(), None).tolist() == [
        [1.0, 0.0]
    ]
    close(names["weights"].sum(-1), torch.tensor([[1.0] * 6, [0.0] * 6]))


def test_mask_of_a_step_is_the_last_row_and_the_bias_decreases_with_distance(names) -> None:
    mask = names["Dilated"](2)
    assert mask.tensor(4, 4).int().tolist() == [
        [1, 0, 0, 0],
        [0, 1, 0, 0],
        [1, 0, 1, 0],
        [0, 1, 0, 1],
    ]
    assert torch.equal(mask.tensor(1, 4), mask.tensor(4, 4)[-1:])
    bias = names["LogDistance"](2)
    expected = -torch.log(torch.tensor(2.0)) * torch.log(
        torch.tensor([[1.0, 2, 3], [2, 1, 2], [3, 2, 1]])
    )
    close(
        bias.materialize(
            torch.zeros(3, 1), torch.zeros(3, 1), regard.Positions(3, 3, torch.device("cpu"))
        ),
        expected.expand(1, 2, 3, 3),
    )


def test_bias_with_a_layer_works_in_half_precision(names) -> None:
    items = torch.randn(2, 6, 8).bfloat16()
    layer = regard.MultiHead(8, 2, bias=names["LogDistance"](2) + names["Decay"](4)).bfloat16()
    out = layer(items, mask=regard.causal())
    assert out.dtype == torch.bfloat16
    close(out, layer.float()(items.float(), mask=regard.causal()))


@pytest.mark.parametrize("name", ["model", "dilated", "gated", "own"])
def test_models_decode_as_they_read_all_positions_and_learn_with_their_parts(
    names, name: str
) -> None:
    model, target = (
        names[name].double(),
        regard.Padded(torch.tensor([[5, 2, 7, 1]]), torch.tensor([4])),
    )
    expected, state = model(None, target), model.start(None, rows=1)
    for time in range(expected.shape[1]):
        logits, state = model.step(target.items[:, time], state)
        close(logits, expected[:, time])
    model.loss(regard.Batch(None, target)).total.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_mask_of_a_model_hides_what_it_states_and_gates_scale_the_output(names) -> None:
    target = regard.Padded(torch.tensor([[5, 2, 7, 1, 3, 4]]), torch.tensor([6]))
    with regard.record(names["dilated"]) as capture:
        names["dilated"](target=target)
    assert len([*capture.recording]) == 2
    for read in capture.recording:
        assert torch.equal(capture.recording[read][0][0, 0] > 0, names["Dilated"](2).tensor(5, 5))
    attention, items = (
        names["gated"].core.decoder[0].attention,
        torch.randn(1, 3, 16, dtype=torch.float64),
    )
    heads = regard.MultiHead(16, 2, output_projection=False).double()
    heads.load_state_dict(attention.state_dict(), strict=False)
    scaled = torch.sigmoid(attention.gate(items)) * heads(items)
    close(attention(items), attention.output(scaled))
    for name, reason in (
        ("dilated", "has a mask of its own, a Dilated"),
        ("gated", "GatedAttention"),
    ):
        with pytest.raises(
            regard.UserError, match=f"engine 'compiled' does not support this model: .*{reason}"
        ):
            prepare("compiled", names[name].float())


def test_replaced_choice_is_that_of_the_recorded_weights(names) -> None:
    with regard.record(names["model"]) as capture:
        names["model"](target=regard.Padded(torch.tensor([[5, 2, 7, 1]]), torch.tensor([4])))
    assert len([*capture.recording]) == 2
    for read in capture.recording:
        (weights,) = capture.recording[read]
        assert ((weights == 0) | (weights >= 0.05)).all()


@pytest.mark.filterwarnings("default:engine 'torch' is used, which is slower")
def test_recipe_trains_and_is_used_through_its_file(
    names, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_parts.py").write_text("\n".join(PARTS), encoding="utf-8")
    file = Path("thresholded_dates.py")
    file.write_text(RECIPE, encoding="utf-8")
    try:
        assert run_file(file, f"train --run run {SMALL}") == 0
        assert "try  python thresholded_dates.py predict run INPUT" in capsys.readouterr().out
        assert run_file(file, "predict run 1998-05-12") == 0
        assert run_file(file, "look run 1998-05-12 --out weights.safetensors") == 0
    finally:
        sys.modules.pop("own_parts", None)
    maps = regard.Capture.open(tmp_path / "weights.safetensors")[0].find(kind="cross")
    assert maps
    assert all(((m.weights == 0) | (m.weights >= 0.1 - 1e-6)).all() for m in maps)


Q, K, V = torch.randn(1, 3, 8), torch.randn(1, 5, 8), torch.randn(1, 5, 7)


def test_one_length_holds_for_all_rows() -> None:
    for mask in (regard.padding, regard.prefix):
        out = regard.attend(
            torch.ones(2, 3, 8), (K.expand(2, -1, -1), V.expand(2, -1, -1)), mask=mask(2)
        )
        close(
            out,
            regard.attend(
                torch.ones(2, 3, 8), (K.expand(2, -1, -1), V.expand(2, -1, -1)), mask=mask([2, 2])
            ),
        )


class Distance(regard.Score):
    def compare(self, query: Tensor, keys: Tensor) -> Tensor:
        return -torch.cdist(query, keys)


class Formed(regard.Score):
    """A form of its own."""

    def __init__(self, form: object):
        super().__init__()
        self.own = form

    def form(self, dim: int) -> regard.InnerProduct | regard.TanhSum | None:
        return self.own  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("form", "kernel"),
    [
        (regard.InnerProduct(0.3), "sdpa"),
        (regard.InnerProduct(-2.0, cap=0.7), "reference"),
        (regard.TanhSum(torch.linspace(-1, 1, 8)), "additive"),
    ],
)
def test_scores_and_weights_are_computed_from_the_form(form, kernel: str) -> None:
    if isinstance(form, regard.TanhSum):
        scores = torch.tanh(Q[:, :, None] + K[:, None]) @ form.v
    else:
        scores = form.scale * Q @ K.mT
        scores = scores if form.cap is None else form.cap * torch.tanh(scores / form.cap)
    score = Formed(form)
    close(score(Q, K), scores)
    close(regard.attention_weights(Q, (K, V), score=score), scores.softmax(-1))
    for name in ("auto", kernel):
        close(regard.attend(Q, (K, V), score=score, kernel=name), scores.softmax(-1) @ V)


COMPARE, FORM = {"compare": Distance.compare}, {"form": Formed.form}


@pytest.mark.parametrize(
    ("base", "methods"),
    [
        (regard.Score, COMPARE | FORM),
        (Distance, FORM),
        (Formed, COMPARE),
        (regard.Dot, COMPARE),
        (regard.SoftCap, FORM),
    ],
)
def test_own_score_with_two_formulas_is_refused(
    base: type[regard.Score], methods: dict[str, Any]
) -> None:
    with pytest.raises(TypeError, match="score Both must define compare or form, not both"):
        type("Both", (base,), methods)


class Added(regard.Mask):
    """Numbers to add to the scores, in place of True and False."""

    def materialize(self, positions: regard.Positions) -> Tensor:
        return torch.zeros(positions.num_rows, positions.num_keys)

    def select(self, index: Tensor) -> regard.Mask:
        return self


class ForThreeHeads(regard.Bias):
    def materialize(self, query: Tensor, keys: Tensor, positions: regard.Positions) -> Tensor:
        return torch.zeros(3, positions.num_rows, positions.num_keys)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"score": Formed("dot")}, r"Formed must define compare\(query, keys\), or a form"),
        ({"score": Formed(None)}, r"Formed must define compare\(query, keys\), or a form"),
        (
            {"score": Formed(regard.InnerProduct(torch.nn.Parameter(torch.ones(()))))},
            r"scale of Formed\.form must be a number, got a tensor; use Soft\(beta\)",
        ),
        ({"mask": Added()}, "Added.materialize must be boolean, got torch.float32"),
        ({"mask": ~Added() & regard.causal()}, "Added.materialize must be boolean"),
        ({"bias": ForThreeHeads()}, "leading axes of bias ForThreeHeads must be those of the read"),
        ({"score": lambda query, keys: query @ keys.mT}, "score must be .* Score, got function"),
        ({"mask": regard.causal}, "mask must be an object of class Mask, got function"),
    ],
)
@pytest.mark.usefixtures("no_shape_checks")
def test_part_that_does_not_fit_is_refused(parts, message: str) -> None:
    for read in (regard.attend, regard.attention_weights):
        with pytest.raises((TypeError, ValueError), match=message):
            read(Q, (K, V), **parts)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: regard.MultiHead(8, num_heads=2, score=regard.Dot), "got the class Dot"),
        (lambda: regard.SoftCap(abs, 3.0), "score of SoftCap must be an object of class Score"),
    ],
)
@pytest.mark.usefixtures("no_shape_checks")
def test_layer_with_what_is_no_part_is_refused(make, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


class Float64Score(regard.Score):
    def compare(self, query: Tensor, keys: Tensor) -> Tensor:
        return query.double() @ keys.double().mT


class Float64Choice(regard.Choice):
    def weights(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return regard.Soft().weights(scores.double(), allowed)


class Float64Bias(regard.Bias):
    def materialize(self, query: Tensor, keys: Tensor, positions: regard.Positions) -> Tensor:
        return torch.zeros(positions.num_rows, positions.num_keys, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "part", [{"score": Float64Score()}, {"choice": Float64Choice()}, {"bias": Float64Bias()}]
)
def test_own_parts_may_compute_in_float64(part: dict[str, Any], dtype: torch.dtype) -> None:
    query, keys, values = (tensor.to(dtype) for tensor in (Q, K, V))
    parts = {"score": regard.Dot()} | part
    for kernel in ("auto", "reference"):
        out = regard.attend(query, (keys, values), kernel=kernel, **parts)
        assert out.dtype == dtype
        close(out, regard.attend(query, (keys, values), score=regard.Dot()))


def test_tensor_is_a_bias_of_a_read() -> None:
    bias, other = torch.randn(2, 1, 3, 5)
    read, memory = regard.Read(bias=bias), regard.Memory(K, V)
    close(read(Q, memory), regard.attend(Q, memory, bias=bias))
    close(read(Q, memory, bias=other), regard.attend(Q, memory, bias=bias + other))
