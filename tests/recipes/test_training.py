"""Run folders from the first command to the report: files kept, errors, files left alone."""

import fcntl
import json
import os
import shutil
from pathlib import Path

import pytest

from regard.recipes.load import load
from tests.recipes.commands import command, failure, printed
from tests.recipes.toy import toy_arguments


def train_arguments(folder: Path, *more: object, steps: int = 2) -> list[object]:
    words = toy_arguments(folder, core="transformer", steps=steps)
    return [*words, "--train.validate-every", "1", *more]


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    command("train", *train_arguments(folder))
    return folder


@pytest.fixture
def run(data_folder: Path, tmp_path: Path) -> Path:
    """Return a copy of the run, to be resumed."""
    return Path(shutil.copytree(data_folder / "run", tmp_path / "run"))


def resume_arguments(run: Path, data_folder: Path, *, steps: int = 2) -> list[object]:
    return train_arguments(data_folder, "--run", run, steps=steps)


def test_first_command_that_fails_leaves_no_folder_and_the_corrected_one_succeeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = train_arguments(tmp_path, "--run", tmp_path / "a" / "b")
    for options in ("--data.train nowhere.tsv", "--tokenizer.min-count 1000"):
        assert "regard: " in failure(capsys, "train", *words, *options.split())
        assert not (tmp_path / "a").exists()
    command("train", *words)
    assert load(tmp_path / "a" / "b").predict(["ada"])


def test_run_that_diverged_has_no_weights_and_gives_its_folder_to_other_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        # Far beyond what a setting may be.
        patch.setattr("regard.training.loop.learning_rate", lambda *_, **__: 1e38)
        words = train_arguments(tmp_path, "--train.validate-every", 0)
        assert "There is no checkpoint yet" in failure(capsys, "train", *words)
        assert (tmp_path / "run" / "log.jsonl").exists()
        message = failure(capsys, "train", *train_arguments(tmp_path, steps=1))
        assert "training stopped after step 1 of epoch" in message
        assert not (tmp_path / "run" / "model.safetensors").exists()
    command("train", *train_arguments(tmp_path))


def test_second_training_in_a_folder_is_refused_and_reading_is_not(
    run: Path, data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handle = os.open(run, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # as another process would
        message = failure(capsys, "train", *resume_arguments(run, data_folder, steps=3))
        assert "another process works in this folder" in message
        assert load(run).predict(["ada"])
    finally:
        os.close(handle)


def test_training_continues_with_data_that_moved_unchanged(
    run: Path,
    data_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    unmoved = Path(shutil.copytree(run, "unmoved"))
    Path("d2").mkdir()
    shutil.copy(data_folder / "train.tsv", "d2/train.tsv")
    moved = ["--data.train", "d2/train.tsv"]
    command("train", *resume_arguments(run, data_folder, steps=3), *moved)
    messages = capsys.readouterr().err
    assert "data.train has moved from " in messages
    assert " to d2/train.tsv; its content is the same" in messages
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert record["config"]["data"]["train"] == moved[1:]
    command("train", *resume_arguments(unmoved, data_folder, steps=3))
    weights = [(folder / "model.safetensors").read_bytes() for folder in (unmoved, run)]
    assert weights[0] == weights[1]


def test_data_that_was_edited_is_refused_by_name(
    run: Path, data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edited = tmp_path / "edited.tsv"
    edited.write_bytes((data_folder / "train.tsv").read_bytes() + b"a\tA\n")
    record = (run / "run.json").read_bytes()
    for steps in (2, 3):  # finished, to be continued
        words = [*resume_arguments(run, data_folder, steps=steps), "--data.train", edited]
        message = failure(capsys, "train", *words)
        assert f"--data.train: {edited} is not the data that the run in {run} started" in message
    message = failure(capsys, "train", *words, "--train.lr", "0.5")
    assert "a run of translate with other settings: --train.lr is" in message
    assert (run / "run.json").read_bytes() == record


def test_run_is_trained_and_resumed_from_a_pipe(data_folder: Path, tmp_path: Path) -> None:
    for steps in (2, 3):
        reads, writes = os.pipe()
        os.write(writes, (data_folder / "train.tsv").read_bytes())
        os.close(writes)
        pipe = ["--data.train", f"/dev/fd/{reads}", "--data.format", "tsv"]
        try:
            command("train", *resume_arguments(tmp_path / "run", data_folder, steps=steps), *pipe)
        finally:
            os.close(reads)


def test_finished_run_says_so_and_writes_nothing(
    run: Path,
    data_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Path, "replace", lambda *args, **kwargs: pytest.fail("nothing is written"))
    out = printed(capsys, "train", *resume_arguments(run, data_folder))
    assert "is finished: it stopped by" in out


def test_few_examples_for_validation_and_texts_of_training_are_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{a}{b}\t{a}\n" for a in "xy" for b in "abc"]
    (tmp_path / "six.tsv").write_text("".join(rows), encoding="utf-8")
    options = (
        "train reviews --train.steps 1 --train.warmup 1 --train.tensorboard false "
        "--tokenizer.min-count 1 --tokenizer.kind char --model.core.width 8 --model.core.hidden 8"
    )
    note = "six.tsv: the size of the validation set is only 1, too few"
    command(options, "--run", tmp_path / "a", "--data.train", tmp_path / "six.tsv")
    err = capsys.readouterr().err
    assert err.count(note) == 1
    assert "also in the training data" not in err
    command(options, "--run", tmp_path / "b")  # synthetic data has enough
    assert "too few" not in capsys.readouterr().err
    (tmp_path / "val.tsv").write_text("xa\tx\nxa\ty\nnew\ty\n", encoding="utf-8")
    data = {"train": "six.tsv", "val": "val.tsv", "test": "six.tsv"}
    files = [f"--data.{name}={tmp_path / file}" for name, file in data.items()]
    command(options, "--run", tmp_path / "c", *files)
    err = capsys.readouterr().err
    assert err.count("val.tsv: 2 of 3 texts are also in the training data") == 1
    assert err.count("six.tsv: 6 of 6 texts are also in the training data") == 1


def test_trained_weights_without_a_checkpoint_are_not_overwritten(
    run: Path, data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "report.json").unlink()
    message = failure(capsys, "train", *resume_arguments(run, data_folder, steps=3))
    assert "model.safetensors exists, but there is no checkpoint to resume from" in message
