"""`run.model` switches to torch; `compile` freezes the current state of the module."""

import copy
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from regard.cli.main import main
from regard.engines.compiled import engine as compiled
from regard.errors import UserError
from regard.layers.multihead import MultiHead
from regard.recipes.base.trained import TrainedRun
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
    return [(best.text, best.score) for best, *_ in run.predict(TEXTS, beam=2, n_best=1)]


def are_close(actual: list[tuple[str, float]], expected: list[tuple[str, float]]) -> bool:
    texts, numbers = zip(*actual, strict=True)
    other_texts, others = zip(*expected, strict=True)
    return texts == other_texts and numbers == pytest.approx(others, abs=1e-4)


def torch_scores(run: TrainedRun) -> list[tuple[str, float]]:
    """Return the outputs and scores of the torch engine for the current module."""
    return scores(TrainedRun(run.recipe, run._active.module, run.folder))


class Adapted(nn.Module):
    """Linear map with a low-rank update (LoRA), which can be merged into its weight."""

    def __init__(self, base: nn.Module):
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(base.in_features, 2), nn.Linear(2, base.out_features)
        self.weight, self.bias = base.weight, base.bias
        self.in_features, self.out_features = base.in_features, base.out_features

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        return self.base(items) + self.up(self.down(items))


def append_block(model: Any) -> None:
    model.core.decoder.append(copy.deepcopy(model.core.decoder[0]))


def take_fused_step(model: Any) -> None:
    """Take a step of a fused optimizer, which torch does not count as a change of the tensor."""
    weight = model.reader.table.weight
    optimizer = torch.optim.AdamW([weight], lr=0.6, weight_decay=0.0, fused=True)
    weight.grad = torch.zeros_like(weight)
    weight.grad[5:9] = torch.randn(4, weight.shape[1])
    optimizer.step()
    weight.grad = None


def merge_adapter(model: Any) -> None:
    torch.manual_seed(5)
    part = model.core.decoder[0].feedforward
    adapted = Adapted(part.expand)
    with torch.no_grad():
        adapted.base.weight += adapted.up.weight @ adapted.down.weight
    part.expand = adapted.base


def add_hook(model: Any) -> None:
    model.core.decoder[0].feedforward.register_forward_hook(lambda module, inputs, out: 2 * out)


def add_and_remove_hook(model: Any) -> None:
    part = model.core.decoder[0].feedforward
    part.register_forward_hook(lambda module, inputs, out: 2 * out).remove()


def train_and_eval(model: Any) -> None:
    model.train()
    model.eval()


def zero_weights(model: Any) -> None:
    with torch.no_grad():
        model.core.encoder[0].attention.query.weight.zero_()


def replace_norm(model: Any) -> None:
    model.core.decoder_norm = nn.RMSNorm(model.core.width)


def write_to_data(model: Any) -> None:
    model.reader.table.weight.data[5:9].zero_()


CHANGES: dict[str, tuple[Callable[[Any], None], str, bool]] = {
    # The change, the engine that `compile` selects afterwards, and True if answers differ.
    "a block appended": (append_block, "compiled", True),
    "a step of a fused optimizer": (take_fused_step, "compiled", True),
    "weights written through .data, which torch does not count": (write_to_data, "compiled", True),
    "weights set to zero": (zero_weights, "compiled", True),
    "merged low-rank update": (merge_adapter, "compiled", True),
    "train, then eval": (train_and_eval, "compiled", False),
    "a hook that was removed": (add_and_remove_hook, "compiled", False),
    "a hook": (add_hook, "torch", True),
    "RMSNorm": (replace_norm, "torch", True),
    "another eps": (lambda model: setattr(model.core.decoder_norm, "eps", 4.0), "compiled", True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_module_gives_the_answers_of_the_torch_engine(run, change) -> None:
    work, engine, differs = CHANGES[change]
    expected = scores(run)
    assert run.engine.name == "compiled"
    work(run.model)
    changed = scores(run)
    assert run.engine.name == "torch"
    assert are_close(changed, torch_scores(run))
    assert are_close(changed, expected) != differs
    is_warned = engine == "torch"
    with pytest.warns(UserWarning, match="'torch' is used") if is_warned else nullcontext():
        run.compile()
    assert run.engine.name == engine
    assert are_close(scores(run), changed)


def test_the_package_itself_keeps_the_engine(run) -> None:
    run.predict(TEXTS[:1], beam=1)
    run.evaluate()
    run.look(TEXTS[:1])
    repr(run)
    assert run.engine.name == "compiled"


def test_compile_uses_a_copy_for_answers_scores_and_attention(run) -> None:
    module = run.model
    run.compile()
    expected, nll = scores(run), run.evaluate()["nll"]
    maps = run.look(TEXTS[:1])[0].maps[0].weights.clone()
    zero_weights(module)
    module.writer.output_table.weight.data.mul_(0.5)
    assert scores(run) == expected
    assert run.evaluate()["nll"] == nll
    assert torch.equal(run.look(TEXTS[:1])[0].maps[0].weights, maps)
    assert run.model is module
    assert not are_close(scores(run), expected)
    assert run.engine is run.engine  # with the steps that it has captured
    run.compile()
    assert not are_close(scores(run), expected)


def test_compile_keeps_the_engine_that_the_run_was_loaded_with(folder) -> None:
    run = load(folder, engine="compiled", compute_type="int8")
    assert run.model is not None
    run.compile()
    assert (run.engine.name, run.engine.compute_type) == ("compiled", "int8")
    run.compile("torch")
    run.compile()  # that of the last call
    assert run.engine.name == "torch"
    with pytest.raises(UserError, match="engine must be one of"):
        run.compile("torhc")
    assert run.engine.name == "torch"


@pytest.mark.parametrize("copy_run", [copy.deepcopy, lambda run: pickle.loads(pickle.dumps(run))])  # noqa: S301
def test_a_run_that_was_used_can_be_copied(run, copy_run) -> None:
    expected = scores(run)
    twin = copy_run(run)
    assert scores(twin) == expected
    assert twin.engine.name == "compiled"
    zero_weights(twin.model)
    assert scores(run) == expected


def test_a_run_loaded_in_inference_mode_is_compiled_and_can_be_trained(run, folder) -> None:
    with torch.inference_mode():
        inside = load(folder)
        assert are_close(scores(inside), scores(run))
    assert inside.engine.name == "compiled"
    assert are_close(scores(inside), scores(run))
    assert not any(weight.is_inference() for weight in inside.model.parameters())


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_another_default_dtype_changes_nothing(folder, engine) -> None:
    expected = scores(load(folder, engine=engine))
    torch.set_default_dtype(torch.float64)
    try:
        run = load(folder, engine=engine)
        assert are_close(scores(run), expected)
        assert {weight.dtype for weight in run._active.module.parameters()} == {torch.float32}
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_autocast_and_another_default_device_change_no_answer(folder, engine) -> None:
    expected = scores(load(folder, engine=engine))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert are_close(scores(load(folder, engine=engine)), expected)
    with torch.device("meta"):
        run = load(folder, engine=engine)
        assert are_close(scores(run), expected)
    assert are_close(scores(run), expected)


def test_a_copy_of_a_frozen_run_owns_the_module_that_answers(run) -> None:
    module = run.model
    run.compile()
    expected = scores(run)
    zero_weights(module)
    assert scores(run) == expected
    twin = copy.deepcopy(run)
    assert scores(twin) == expected
    assert twin.engine.name == "compiled"
    assert are_close(torch_scores(twin), expected)


def test_patched_class_is_refused(folder, monkeypatch) -> None:
    """Functions of classes are compared with the modules that define them."""
    monkeypatch.setattr(compiled, "is_optimized_cpu", lambda: True)
    monkeypatch.setattr(MultiHead, "forward", lambda self, *inputs, **masks: inputs[0])
    with pytest.warns(UserWarning, match="a replaced method forward of MultiHead"):
        assert load(folder).engine.name == "torch"
