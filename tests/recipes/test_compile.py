"""`run.model` switches to the torch engine, and `compile` freezes the present state of the module."""

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from regard.cli.main import main
from regard.engines.compiled import engine as compiled
from regard.errors import UserError
from regard.recipes.base.recipe import TrainedRun
from regard.recipes.load import load
from tests.recipes.toy import SOURCES, toy_arguments

TEXTS = SOURCES[:6]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compile")
    assert main(["train", *toy_arguments(folder, core="transformer")]) == 0
    return folder / "run"


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> TrainedRun:
    monkeypatch.setattr(compiled, "is_optimized_cpu", lambda: True)
    return load(folder)


def scores(run: Any) -> list[tuple[str, float]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [(best.text, best.score) for best, *_ in run.predict(TEXTS, beam=2, n_best=1)]


def same(found: list[tuple[str, float]], expected: list[tuple[str, float]]) -> bool:
    texts = [text for text, _ in found] == [text for text, _ in expected]
    return texts and [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-4)


def torch_scores(run: TrainedRun) -> list[tuple[str, float]]:
    """Return the answers of the torch engine for the present module."""
    return scores(run.recipe.build_run(run._active.module, run.folder))


class Adapted(nn.Module):
    """A linear map with a low-rank update (LoRA), which can be merged into its weight."""

    def __init__(self, base: nn.Module):
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(base.in_features, 2), nn.Linear(2, base.out_features)
        self.weight, self.bias = base.weight, base.bias
        self.in_features, self.out_features = base.in_features, base.out_features

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        return self.base(items) + self.up(self.down(items))


def appended(model: Any) -> None:
    model.core.decoder.append(copy.deepcopy(model.core.decoder[0]))


def fused(model: Any) -> None:
    """A step of a fused optimizer, which torch does not count as a change of the tensor."""
    weight = model.reads.table.weight
    optimizer = torch.optim.AdamW([weight], lr=0.6, weight_decay=0.0, fused=True)
    weight.grad = torch.zeros_like(weight)
    weight.grad[5:9] = torch.randn(4, weight.shape[1])
    optimizer.step()
    weight.grad = None


def merged(model: Any) -> None:
    torch.manual_seed(5)
    part = model.core.decoder[0].feedforward
    adapted = Adapted(part.expand)
    with torch.no_grad():
        adapted.base.weight += adapted.up.weight @ adapted.down.weight
    part.expand = adapted.base


def hooked(model: Any) -> None:
    model.core.decoder[0].feedforward.register_forward_hook(lambda module, inputs, out: 2 * out)


def unhooked(model: Any) -> None:
    model.core.decoder[0].feedforward.register_forward_hook(lambda module, inputs, out: 2 * out).remove()


def trained_and_evaluated(model: Any) -> None:
    model.train()
    model.eval()


def zeroed(model: Any) -> None:
    with torch.no_grad():
        model.core.encoder[0].attention.query.weight.zero_()


def of_rms(model: Any) -> None:
    model.core.decoder_norm = nn.RMSNorm(model.core.width)


def past_the_count(model: Any) -> None:
    model.reads.table.weight.data[5:9].zero_()


CHANGES: dict[str, tuple[Callable[[Any], None], str, bool]] = {
    # What is done, the engine that `compile` finds afterwards, and whether answers differ.
    "a block appended": (appended, "compiled", True),
    "a step of a fused optimizer": (fused, "compiled", True),
    "numbers written past the count of torch": (past_the_count, "compiled", True),
    "weights set to zero": (zeroed, "compiled", True),
    "merged low-rank update": (merged, "compiled", True),
    "train, then eval": (trained_and_evaluated, "compiled", False),
    "a hook that was removed": (unhooked, "compiled", False),
    "a hook": (hooked, "torch", True),
    "RMSNorm": (of_rms, "torch", True),
    "another eps": (lambda model: setattr(model.core.decoder_norm, "eps", 4.0), "compiled", True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_module_gives_the_answers_of_the_torch_engine(run, change) -> None:
    work, engine, differs = CHANGES[change]
    before = scores(run)
    assert run.engine.name == "compiled"
    work(run.model)
    changed = scores(run)
    assert run.engine.name == "torch"
    assert same(changed, torch_scores(run))
    assert same(changed, before) != differs
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.compile()
    assert run.engine.name == engine
    assert any("engine 'torch' is used" in str(one.message) for one in caught) == (engine == "torch")
    assert same(scores(run), changed)


def test_one_warning_says_that_torch_is_used_and_what_to_do(run) -> None:
    assert run.model is run.model
    with pytest.warns(UserWarning, match=r"using the torch engine.*run\.compile\(\)") as caught:
        run.predict(TEXTS, beam=1)
    assert len(caught) == 1
    run.predict(TEXTS, beam=1)


def test_no_warning_if_torch_was_requested_or_the_package_itself_reads_the_module(run, folder) -> None:
    run.predict(TEXTS[:1], beam=1)
    run.evaluate()
    run.look(TEXTS[:1])
    repr(run)
    assert run.engine.name == "compiled"
    run.predict(TEXTS[:1], beam=1)
    chosen = load(folder, engine="torch")
    assert chosen.model is not None
    chosen.predict(TEXTS[:1], beam=1)


def test_compile_uses_a_copy_for_answers_scores_and_attention(run) -> None:
    module = run.model
    run.compile()
    before, nll, maps = scores(run), run.evaluate()["nll"], run.look(TEXTS[:1])[0].maps[0].weights.clone()
    zeroed(module)
    module.writes.output_table.weight.data.mul_(0.5)
    assert scores(run) == before
    assert run.evaluate()["nll"] == nll
    assert torch.equal(run.look(TEXTS[:1])[0].maps[0].weights, maps)
    assert run.model is module
    assert not same(scores(run), before)
    run.compile()
    assert not same(scores(run), before)


def test_compile_keeps_the_engine_that_the_run_was_loaded_with(folder) -> None:
    run = load(folder, engine="compiled", compute_type="int8")
    assert run.model is not None
    run.compile()
    assert (run.engine.name, run.engine.compute_type) == ("compiled", "int8")
    run.compile("torch")
    assert run.engine.name == "torch"
    with pytest.raises(UserError, match="unknown engine"):
        run.compile("torhc")
    assert run.engine.name == "torch"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda run: pickle.loads(pickle.dumps(run))])  # noqa: S301
def test_a_run_that_was_used_can_be_copied(run, copied) -> None:
    before = scores(run)
    twin = copied(run)
    assert scores(twin) == before
    assert twin.engine.name == "compiled"
    zeroed(twin.model)
    assert scores(run) == before


def test_a_run_loaded_in_inference_mode_is_compiled_and_can_be_trained(run, folder) -> None:
    with torch.inference_mode():
        inside = load(folder)
        assert same(scores(inside), scores(run))
    assert inside.engine.name == "compiled"
    assert same(scores(inside), scores(run))
    assert not any(weight.is_inference() for weight in inside.model.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_another_default_dtype_changes_nothing(folder, dtype, engine) -> None:
    expected = scores(load(folder, engine=engine))
    torch.set_default_dtype(dtype)
    try:
        run = load(folder, engine=engine)
        assert same(scores(run), expected)
        assert {weight.dtype for weight in run._active.module.parameters()} == {torch.float32}
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_autocast_changes_no_answer(folder, engine) -> None:
    expected = scores(load(folder, engine=engine))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same(scores(load(folder, engine=engine)), expected)


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_another_default_device_changes_no_answer(folder, engine) -> None:
    expected = scores(load(folder, engine=engine))
    with torch.device("meta"):
        run = load(folder, engine=engine)
        assert same(scores(run), expected)
        assert same(scores(run), expected)
    assert same(scores(run), expected)


def test_a_copy_of_a_frozen_run_owns_the_module_that_answers(run) -> None:
    module = run.model
    run.compile()
    before = scores(run)
    zeroed(module)
    twin = copy.deepcopy(run)
    assert scores(twin) == before
    assert twin.engine.name == "compiled"
    assert same(torch_scores(twin), before)


def test_attributes_that_others_add_to_modules_change_nothing(run, folder, monkeypatch) -> None:
    expected = scores(run)
    monkeypatch.setattr(nn.Module, "smart_apply", lambda self, function: self, raising=False)
    monkeypatch.setattr(nn.Module, "num_parameters", lambda self: 0, raising=False)
    other = load(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.predict(TEXTS, beam=1)
    assert other.engine.name == "compiled"
    assert scores(other) == expected == scores(run)


def test_a_module_that_cannot_be_copied_is_named(run) -> None:
    model = run.model
    model.note = (weight for weight in model.parameters())
    with pytest.raises(UserError, match="the model cannot be copied"):
        run.compile()


def test_few_texts_use_torch_if_compiled_code_cannot_be_cached(run, folder, monkeypatch) -> None:
    monkeypatch.setattr(compiled, "is_cached", lambda function: False)
    monkeypatch.setattr(compiled, "_loops", lambda: ())
    with pytest.warns(UserWarning, match="using the torch engine.*NUMBA_CACHE_DIR"):
        run.predict(TEXTS, beam=1)
    assert run.engine_for(len(TEXTS)).name == "torch"
    assert run.engine_for(5000).name == "compiled"
    assert load(folder, engine="compiled").engine_for(1).name == "compiled"
