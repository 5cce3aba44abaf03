"""Run folders from the first command to the report: files kept, errors, files left alone."""

import fcntl
import json
import os
import shutil
from pathlib import Path

import pytest

from regard.cli.main import main
from regard.recipes.load import load
from tests.recipes.toy import toy_arguments


def train_arguments(folder: Path, *more: str, steps: int = 2) -> list[str]:
    return [
        "train",
        *toy_arguments(folder, core="transformer", steps=steps),
        "--train.validate-every",
        "1",
        *more,
    ]


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    assert main(train_arguments(folder)) == 0
    return folder


@pytest.fixture
def run(data_folder: Path, tmp_path: Path) -> Path:
    """Return a copy of the run, to be resumed."""
    return Path(shutil.copytree(data_folder / "run", tmp_path / "run"))


def resume_arguments(run: Path, data_folder: Path, *, steps: int = 2) -> list[str]:
    return train_arguments(data_folder, "--run", str(run), steps=steps)


def last_error(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """Run a command that fails, and return the last line of its error output."""
    assert main(words) == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_first_command_that_fails_leaves_no_folder_and_the_corrected_one_succeeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nested = ["--run", str(tmp_path / "a" / "b")]
    for options in (
        ["--data.train", str(tmp_path / "nowhere.tsv")],
        ["--tokenizer.min-count", "1000"],
    ):
        assert "regard: " in last_error(capsys, train_arguments(tmp_path, *options, *nested))
        assert not (tmp_path / "a").exists()
    assert main(train_arguments(tmp_path, *nested)) == 0
    assert load(tmp_path / "a" / "b").predict(["ada"])


def test_run_that_diverged_before_a_checkpoint_gives_its_folder_to_other_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(
            "regard.training.loop.learning_rate", lambda *_, **__: 1e38
        )  # far beyond what a setting may be
        message = last_error(capsys, train_arguments(tmp_path, "--train.validate-every", "0"))
    assert "There is no checkpoint yet" in message
    assert (tmp_path / "run" / "log.jsonl").exists()
    assert main(train_arguments(tmp_path)) == 0


def test_weights_that_are_not_finite_after_the_last_step_are_not_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.training.loop.learning_rate", lambda *_, **__: 1e38)
    message = last_error(capsys, train_arguments(tmp_path, steps=1))
    assert "training stopped after step 1 of epoch" in message
    assert "holds" in message
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_second_training_in_a_folder_is_refused_and_reading_is_not(
    run: Path, data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handle = os.open(run, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # as another process would
        message = last_error(capsys, resume_arguments(run, data_folder, steps=3))
        assert "another process trains in this folder" in message
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
    Path("d2/train.tsv").write_bytes((data_folder / "train.tsv").read_bytes())
    moved = ["--data.train", "d2/train.tsv"]
    assert main([*resume_arguments(run, data_folder, steps=3), *moved]) == 0
    messages = capsys.readouterr().err
    assert "data.train has moved from " in messages
    assert " to d2/train.tsv; its content is the same" in messages
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert record["config"]["data"]["train"] == moved[1]
    assert main(resume_arguments(unmoved, data_folder, steps=3)) == 0
    weights = [(folder / "model.safetensors").read_bytes() for folder in (unmoved, run)]
    assert weights[0] == weights[1]


def test_data_that_was_edited_is_refused_by_name(
    run: Path, data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edited = tmp_path / "edited.tsv"
    edited.write_bytes((data_folder / "train.tsv").read_bytes() + b"a\tA\n")
    record = (run / "run.json").read_bytes()
    for steps in (2, 3):  # finished, to be continued
        arguments = resume_arguments(run, data_folder, steps=steps)
        message = last_error(capsys, [*arguments, "--data.train", str(edited)])
        assert f"--data.train: {edited} is not the data that the run in {run} started" in message
    arguments = [*resume_arguments(run, data_folder), "--data.train", str(edited)]
    message = last_error(capsys, [*arguments, "--train.lr", "0.5"])
    assert "a run of translate with other settings: --train.lr is" in message
    assert (run / "run.json").read_bytes() == record


def test_run_is_trained_and_resumed_from_a_pipe(
    data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = (data_folder / "train.tsv").read_bytes()
    for steps in (2, 3):
        reads, writes = os.pipe()
        os.write(writes, content)
        os.close(writes)
        words = resume_arguments(tmp_path / "run", data_folder, steps=steps)
        try:
            assert main([*words, "--data.train", f"/dev/fd/{reads}", "--data.format", "tsv"]) == 0
        finally:
            os.close(reads)


def test_finished_run_says_so_and_writes_nothing(
    run: Path,
    data_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Path, "replace", lambda *args, **kwargs: pytest.fail("nothing is written"))
    assert main(resume_arguments(run, data_folder)) == 0
    assert "is finished: it stopped by" in capsys.readouterr().out


def test_few_examples_for_validation_are_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "six.tsv").write_text(
        "".join(f"{a}{b}\t{a}\n" for a in "xy" for b in "abc"), encoding="utf-8"
    )
    options = (
        "--train.steps 1 --train.warmup 1 --train.tensorboard false "
        "--tokenizer.min-count 1 --tokenizer.kind char"
    )
    for name, data, count in (("a", ["--data.train", str(tmp_path / "six.tsv")], 1), ("b", [], 0)):
        words = [
            "--run",
            str(tmp_path / name),
            *options.split(),
            "--model.core.width",
            "8",
            "--model.core.hidden",
            "8",
        ]
        assert main(["train", "reviews", *data, *words]) == 0
        assert (
            capsys.readouterr().err.count(
                "six.tsv: the size of the validation set is only 1, too few"
            )
            == count
        )


def test_a_kernel_without_gradient_is_refused_before_data_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--model.core",
        "transformer",
        "--model.core.kernel",
        "flex",
        "--run",
        str(tmp_path / "run"),
    ]
    assert main(["train", "reviews", *words]) == 2
    err = capsys.readouterr().err
    assert "--model.core.kernel flex has no gradient on a CPU" in err
    assert "reading" not in err


def test_trained_weights_without_a_checkpoint_are_not_overwritten(
    run: Path, data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "report.json").unlink()
    message = last_error(capsys, resume_arguments(run, data_folder, steps=3))
    assert "model.safetensors exists, but there is no checkpoint to resume from" in message
