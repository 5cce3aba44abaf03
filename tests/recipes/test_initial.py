"""Runs that start from the parameters of another one, and training from Python."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
import torch
from torch import nn

import regard
from regard.errors import UserError
from regard.models.build import build_detector
from regard.models.config import DetectorConfig
from regard.models.cores.config import TransformerConfig
from regard.recipes.base.run import Init, Run
from regard.recipes.initial import check_init, copy_parameters
from regard.recipes.load import create_recipe
from regard.recipes.registry import get_entry
from regard.recipes.reviews.recipe import ReviewsRecipe
from regard.recipes.run_folder import read_init, read_run
from regard.system.files import hash_file
from regard.training.tensors import read_tensors
from tests.helpers import save_weights
from tests.recipes.commands import command, failure

MODEL = {
    "core": {"name": "transformer", "width": 16, "layers": 1, "feedforward": 16},
    "dropout": 0.0,
}
SHORT = {"steps": 4, "warmup": 1, "validate_every": 2, "tensorboard": False, "precision": "float32"}


def write_texts(path: Path, labels: str) -> Path:
    rows = []
    for i in range(8):
        for word, label in zip("abc", labels.split(), strict=True):
            rows.append(f"it was {word} {i}\t{label}\n")
    path.write_text("".join(rows), encoding="utf-8")
    return path


def tensors_of(*folders: Path) -> list[dict[str, torch.Tensor]]:
    return [read_tensors(folder / "model.safetensors") for folder in folders]


def trained_tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    """Return the parameters of a run of classes before its scores were divided by a temperature."""
    (tensors,) = tensors_of(folder)
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    for name in ("writer.output.weight", "writer.output.bias"):
        tensors[name] *= report["validation"]["temperature"]
    return tensors


def close_tensors(own: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> None:
    assert own.keys() == given.keys()
    for name, value in own.items():
        torch.testing.assert_close(value, given[name], atol=1e-6, rtol=1e-5)


def artifacts_of(name: str, *folders: Path) -> list[bytes]:
    return [(folder / "artifacts" / name).read_bytes() for folder in folders]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("init")
    data = {"train": write_texts(folder / "train.tsv", "good bad odd")}
    run = regard.train("reviews", folder / "run", quiet=True, data=data, train=SHORT, model=MODEL)
    assert run.config.model.core.width == 16
    assert run.predict(["it was a 1"])[0] in ("good", "bad", "odd")
    return folder / "run"


def test_a_finished_run_is_loaded(first: Path) -> None:
    data = {"train": str(first.parent / "train.tsv")}
    weights = (first / "model.safetensors").stat().st_mtime_ns
    again = regard.train("reviews", first, quiet=True, data=data, train=SHORT, model=MODEL)
    assert again.folder == first
    assert (first / "model.safetensors").stat().st_mtime_ns == weights


def test_settings_are_checked() -> None:
    for options, message in (
        ({"model": {"depth": 3}}, r"model.depth is not a setting"),
        ({"seed": -1}, r"seed must be from 0 to .*, got -1"),
        ({"threads": 0}, "threads must be from 1 to 1,024, got 0"),
    ):
        with pytest.raises(UserError, match=message):
            regard.train("reviews", "nowhere", **options)
    with pytest.raises(UserError, match="recipe"):
        regard.train("poems", "nowhere")
    with pytest.raises(TypeError, match=r"train has no argument 'modle' with recipe reviews"):
        regard.train("reviews", "nowhere", modle={})
    assert not Path("nowhere").exists()


def start_from(first: Path, folder: Path, labels: str, *more: str, code: int = 0) -> Path:
    data = write_texts(folder / "other.tsv", labels)
    words = (
        f"train reviews --run {folder / 'run'} --init {first} --data.train {data} --train.steps 1 "
        "--train.warmup 1 --train.lr 1e-12 --train.tensorboard false --train.precision float32"
    )
    command(words, *more, code=code)
    return folder / "run"


def test_parameters_and_tokenizer_are_those_of_the_other_run(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = start_from(first, tmp_path, "good bad odd")
    assert f"parameters of {first}" in capsys.readouterr().err
    close_tensors(trained_tensors_of(folder), *tensors_of(first))
    own, given = artifacts_of("tokenizer.json", folder, first)
    assert own == given
    run = read_run(folder)
    assert run.init is not None
    assert (run.init.folder, run.config.model) == (str(first), read_run(first).config.model)
    assert run.init.weights == hash_file(first / "model.safetensors")
    command("train --run", folder)  # finished: continued with its own settings


def test_output_of_other_labels_starts_anew(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, changed = start_from(first, tmp_path, "left right left"), set()
    assert "new: writer.output.weight, writer.output.bias" in capsys.readouterr().err
    own, given = tensors_of(folder, first)
    for name, value in own.items():
        if value.shape != given[name].shape or not torch.allclose(value, given[name], atol=1e-6):
            changed.add(name)
    assert changed == {"writer.output.bias", "writer.output.weight"}


def test_output_of_the_labels_of_both_runs_is_copied(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = start_from(first, tmp_path, "good poor bad")
    message = capsys.readouterr().err
    assert "; new labels: poor\n" in message
    assert "new: " not in message
    tensors = trained_tensors_of(folder), *tensors_of(first)
    own, given = (one["writer.output.weight"] for one in tensors)
    files = artifacts_of("labels.json", folder, first)
    names, known = (json.loads(content)["names"] for content in files)
    for label, other in (("good", "good"), ("bad", "bad"), ("poor", "odd")):
        is_equal = torch.allclose(own[names.index(label)], given[known.index(other)], atol=1e-6)
        assert is_equal == (label == other)


def test_rate_warmup_and_steps_of_a_start_are_those_of_fine_tuning(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_texts(tmp_path / "other.tsv", "good bad odd")
    words = f"train reviews --run {tmp_path / 'run'} --init {first} --data.train {data}"
    command(words, "--train.epochs", 1, "--train.tensorboard", "false")
    train, recipe = read_run(tmp_path / "run").config.train, get_entry("reviews").config().train
    assert (train.lr, train.warmup, train.steps) == (recipe.lr / 5, 0.1, recipe.steps / 3)
    message = "fine-tuning with --train.lr 0.0002 --train.warmup 0.1 --train.steps 500\n"
    assert message in capsys.readouterr().err


def test_rate_of_a_wide_model_is_lower_in_proportion(first: Path, tmp_path: Path) -> None:
    copytree(first, tmp_path, dirs_exist_ok=True)
    content = json.loads((tmp_path / "run.json").read_text())
    content["config"]["model"]["core"]["width"] = 768
    (tmp_path / "run.json").write_text(json.dumps(content))
    entry = get_entry("reviews")
    width = entry.config().model.core.width
    rate = entry.config().train.lr / 5 * width / 768
    assert read_init(tmp_path, entry)[0].train.lr == pytest.approx(rate, rel=0.05)
    assert 1e-5 < rate < 5e-5


def test_adapters_need_a_run_to_start_from(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = f"--data.train {first.parent / 'train.tsv'} --train.lora 2"
    message = failure(capsys, f"train reviews --run {tmp_path / 'no'} {data}")
    assert "--train.lora adapts parameters of another run: give it with --init RUN" in message
    assert not (tmp_path / "no").exists()
    folder = start_from(first, tmp_path, "left right left", "--train.lora", "2")
    assert "new: writer.output.weight, writer.output.bias" in capsys.readouterr().err
    own, given = tensors_of(folder, first)
    assert own.keys() == given.keys()
    assert torch.equal(own["reader.table.weight"], given["reader.table.weight"])


def make_detector(folder: Path, names: str, seed: int) -> regard.Model:
    (folder / "artifacts").mkdir(parents=True)
    (folder / "artifacts" / "labels.json").write_text(json.dumps({"names": names.split()}))
    core = TransformerConfig(width=8, heads=1, feedforward=8, layers=1)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        reader = regard.ImageReader((1, 8, 8), 8, patch=4)
        config = DetectorConfig(core=core, num_queries=2)
        model = build_detector(config, reader, num_classes=len(names.split()), axes=2)
        for value in model.parameters():
            nn.init.normal_(value)
    return model


def start_of(folder: Path, model: nn.Module) -> Init:
    save_weights(folder / "model.safetensors", model)
    return Init(folder=str(folder), weights=hash_file(folder / "model.safetensors"))


def test_a_writer_that_does_not_name_its_labels_takes_none_of_their_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regard.SetWriter, "label_axes", regard.Writer.label_axes)
    init = start_of(tmp_path / "before", make_detector(tmp_path / "before", "cat dog owl", 1))
    model = make_detector(tmp_path / "now", "owl cat dog", 2)
    fresh = model.get_parameter("writer.class_heads.0.weight").clone()
    assert "new: writer.class_heads.0.weight" in copy_parameters(model, init, tmp_path / "now")
    assert torch.equal(model.get_parameter("writer.class_heads.0.weight"), fresh)


def test_parts_of_each_class_of_a_detector_are_copied_by_name(tmp_path: Path) -> None:
    before = make_detector(tmp_path / "before", "cat dog owl", 1)
    init = start_of(tmp_path / "before", before)
    labels = {"writer.class_embedding.weight": 1}
    for name in ("writer.class_heads.0", "writer.proposal_class_head"):
        labels |= {f"{name}.weight": 0, f"{name}.bias": 0}
    given, known = dict(before.named_parameters()), ["cat", "dog", "owl"]
    for number, names in enumerate(("owl cat dog", "ant owl", "ant bee owl cat dog")):
        model = make_detector(tmp_path / str(number), names, 2)
        fresh = {name: value.clone() for name, value in model.named_parameters()}
        copy_parameters(model, init, tmp_path / str(number))
        own = dict(model.named_parameters())
        for name in own.keys() - labels.keys():
            assert torch.equal(own[name], given[name])
        for name, axis in labels.items():
            for place, label in enumerate(names.split()):
                source, index = (given, known.index(label)) if label in known else (fresh, place)
                assert torch.equal(own[name].select(axis, place), source[name].select(axis, index))


def test_what_does_not_fit_is_refused(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, message in {
        "--model.core.width 24": "shape mismatch with --init",
        "--tokenizer.kind char": "--tokenizer.kind must be",
        "--preset none": "leave out --preset",
    }.items():
        folder = start_from(first, tmp_path, "good bad odd", *words.split(), code=2)
        assert message in capsys.readouterr().err
        assert not (folder / "model.safetensors").exists()
    message = failure(capsys, "train language --run", tmp_path / "no", "--init", first)
    assert "is a run of reviews, expected a run of language" in message
    message = failure(capsys, "train reviews --run", tmp_path / "no", "--init", tmp_path)
    assert "is not a run folder" in message
    assert not (tmp_path / "no").exists()


def test_a_recipe_derived_from_that_of_the_run_starts_from_it(first: Path, tmp_path: Path) -> None:
    class Halved(ReviewsRecipe):
        def model(self) -> nn.Module:
            model = super().model()
            for part in model.modules():
                if isinstance(part, regard.Read):
                    part.choice = regard.Soft(0.5)
            return model

    entry = replace(get_entry("reviews"), name="halved", recipe=Halved)
    data, short = {"train": str(first.parent / "train.tsv")}, SHORT | {"steps": 1, "lr": 1e-12}
    run = regard.train(entry, tmp_path / "run", init=first, quiet=True, data=data, train=short)
    close_tensors(trained_tensors_of(run.folder), *tensors_of(first))
    own, given = artifacts_of("tokenizer.json", run.folder, first)
    assert own == given
    options = {"quiet": True, "data": data, "train": short}
    again = regard.train(entry, tmp_path / "again", init=run.folder, **options)
    assert again.folder == tmp_path / "again"
    other = replace(get_entry("language"), name="other", recipe=get_entry("language").load_class())
    for refused in (other, replace(entry, name="odd", recipe=get_entry("images").load_class())):
        message = f"is a run of reviews, expected a run of {refused.name}"
        with pytest.raises(UserError, match=message):
            regard.train(refused, tmp_path / "no", init=first, **options)


def test_a_quiet_run_prints_nothing_and_restores_the_state_of_torch(
    first: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = {"train": str(first.parent / "train.tsv"), "test": str(first.parent / "train.tsv")}
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    options = {"threads": threads + 1, "data": data, "train": SHORT, "model": MODEL}
    regard.train("reviews", tmp_path / "run", quiet=True, **options)
    regard.load(tmp_path / "run")
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    assert capfd.readouterr() == ("", "")


def test_a_run_that_started_from_other_parameters_is_another_run(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, second = start_from(first, tmp_path, "good bad odd"), tmp_path / "second"
    second.mkdir()
    other = start_from(folder, second, "good bad odd")  # from other parameters than `first`
    folder.rename(tmp_path / "start")
    other.rename(folder)
    start_from(first, tmp_path, "good bad odd", code=2)
    assert "holds a run of reviews with other settings: --init is" in capsys.readouterr().err


def test_a_recipe_that_trains_other_models_first_is_refused() -> None:
    config, init = get_entry("draw").config(), Init(folder="runs/draw", weights="1")
    recipe = create_recipe(Run(recipe="draw", seed=1, config=config, init=init), print)
    with pytest.raises(UserError, match="its model reads the codes of models"):
        check_init(recipe)
