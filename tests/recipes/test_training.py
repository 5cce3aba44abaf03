"""Run folders from the first command to the report: files kept, errors, files left alone."""

import gzip
import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from regard.cli.main import main
from regard.errors import UserError, did_you_mean
from regard.recipes.base import text_to_text
from regard.recipes.learned_files import check_learned, learn
from regard.recipes.load import load
from regard.system.fingerprints import Content, add_checksum, add_digest
from regard.system.lock import lock_directory
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
    codes: list[int] = []
    with lock_directory(run):
        other = threading.Thread(
            target=lambda: codes.append(main(resume_arguments(run, data_folder, steps=3)))
        )
        other.start()
        other.join()
        assert codes == [2]
        assert "trains in this folder; wait until it has ended" in capsys.readouterr().err
        assert load(run).predict(["ada"])


def test_data_that_was_edited_is_noticed(
    run: Path,
    data_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = [b"as it was"]
    original = text_to_text.TextToTextRecipe.check

    def check(self: text_to_text.TextToTextRecipe) -> None:
        original(self)
        add_digest("pairs.tsv", content[0])

    monkeypatch.setattr(text_to_text.TextToTextRecipe, "check", check)
    other = run.parent / "other"
    assert main(resume_arguments(other, data_folder)) == 0
    assert main(resume_arguments(other, data_folder, steps=3)) == 0
    content[0] = b"edited"
    weights = (other / "model.safetensors").read_bytes()
    message = last_error(capsys, resume_arguments(other, data_folder, steps=4))
    assert "pairs.tsv: its content has changed since the run started" in message
    assert (other / "model.safetensors").read_bytes() == weights


def test_training_continues_with_data_that_moved_unchanged(
    run: Path,
    data_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    content = (data_folder / "train.tsv").read_bytes()
    unmoved = Path(shutil.copytree(run, "unmoved"))
    Path("d2").mkdir()
    Path("d2/train.tsv").write_bytes(content)
    Path("d2/train.tsv.gz").write_bytes(gzip.compress(content))
    Path("d2/train.tab").write_bytes(content)
    for steps, name in enumerate(
        (
            "d2/train.tsv",
            "./d2/train.tsv",
            "d2/train.tsv.gz",
            str(tmp_path / "d2/train.tsv"),
            "d2/train.tab",
        ),
        3,
    ):
        assert main([*resume_arguments(run, data_folder, steps=steps), "--data.train", name]) == 0
        assert "data.train has moved from " in (messages := capsys.readouterr().err)
        assert f" to {name}; its content is the same" in messages
        assert (
            json.loads((run / "run.json").read_text(encoding="utf-8"))["config"]["data"]["train"]
            == name
        )
        assert main(resume_arguments(unmoved, data_folder, steps=steps)) == 0
        assert (unmoved / "model.safetensors").read_bytes() == (
            run / "model.safetensors"
        ).read_bytes()


def test_data_that_moved_and_was_edited_is_refused_by_name(
    run: Path, data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edited, other = tmp_path / "edited.tsv", tmp_path / "train.csv"
    content = (data_folder / "train.tsv").read_bytes()
    edited.write_bytes(content + b"a\tA\n")
    other.write_bytes(content)
    record = (run / "run.json").read_bytes()
    message = last_error(
        capsys, [*resume_arguments(run, data_folder, steps=3), "--data.train", str(edited)]
    )
    assert f"{edited}: its content has changed since the run started, so" in message
    message = last_error(
        capsys, [*resume_arguments(run, data_folder, steps=3), "--data.train", str(other)]
    )
    assert (
        f"{other}: is read as CSV because of its name, but was read as text in columns when the "
        f"run started, so" in message
    )
    message = last_error(
        capsys,
        [
            *resume_arguments(run, data_folder, steps=3),
            "--data.train",
            str(edited),
            "--train.lr",
            "0.5",
        ],
    )
    assert "a run of translate with other settings: --train.lr is" in message
    assert "data.train" not in message
    assert (run / "run.json").read_bytes() == record


def test_another_path_is_another_run_without_a_digest(
    run: Path, data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(data_folder / "train.tsv", tmp_path)
    learned = json.loads((run / "learned.json").read_text(encoding="utf-8"))
    del learned["checksum"], learned["data"]["data.train:"]
    (run / "learned.json").write_text(json.dumps(add_checksum(learned)), encoding="utf-8")
    message = last_error(
        capsys,
        [*resume_arguments(run, data_folder, steps=3), "--data.train", str(tmp_path / "train.tsv")],
    )
    assert (
        f"--data.train is '{data_folder / 'train.tsv'}' there and '{tmp_path / 'train.tsv'}' here"
        in message
    )


def test_damaged_report_is_named_and_written_again(
    run: Path, data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run / "report.json"
    report = json.loads(path.read_text(encoding="utf-8"))
    for content in ("[" * 100_000, "[]", json.dumps(report | {"parameters": 1})):
        path.write_text(content, encoding="utf-8")
        assert main(resume_arguments(run, data_folder)) == 0
        assert "report.json: damaged" in capsys.readouterr().err
        assert json.loads(path.read_text(encoding="utf-8"))["test"] == report["test"]


def test_finished_run_in_a_read_only_folder_is_reported(
    run: Path,
    data_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Path, "mkdir", lambda *args, **kwargs: pytest.fail("nothing is written"))
    monkeypatch.setattr(Path, "replace", lambda *args, **kwargs: pytest.fail("nothing is written"))
    assert main(resume_arguments(run, data_folder)) == 0
    assert "is finished: it stopped by" in capsys.readouterr().out


def test_other_data_of_a_finished_run_is_refused(
    run: Path, data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("checkpoints", "snapshots"):  # as after --train.keep-finished model
        shutil.rmtree(run / name, ignore_errors=True)
    moved, other = tmp_path / "moved.tsv", tmp_path / "other.tsv"
    shutil.copy(data_folder / "train.tsv", moved)
    other.write_text("other\tdata\n", encoding="utf-8")
    arguments = resume_arguments(run, data_folder)
    assert main([*arguments, "--data.train", str(moved)]) == 0
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith(f"the run in {run} is finished: reading {moved}")
    assert any("has moved from" in line for line in rest)
    message = last_error(capsys, [*arguments, "--data.train", str(other)])
    assert f"{other}: its content has changed since the run started" in message
    assert f"the run in {run} is finished, so nothing was trained" in message
    assert f"with --init {run} to start from its parameters" in message


def test_few_examples_for_validation_are_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "six.tsv").write_text(
        "".join(f"{a}{b}\t{a}\n" for a in "xy" for b in "abc"), encoding="utf-8"
    )
    options = "--train.steps 1 --train.warmup 1 --train.tensorboard false --tokenizer.min-count 1 --tokenizer.kind char"
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


def test_names_are_suggested_in_any_case() -> None:
    assert did_you_mean("rbc", ["RBC", "Platelets"]) == " Did you mean 'RBC'?"
    assert did_you_mean("zzz", ["RBC"]) == ""


def test_edited_data_of_a_finished_run_is_detected(
    run: Path, data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, arguments = data_folder / "train.tsv", resume_arguments(run, data_folder)
    content = path.read_bytes()
    assert main(arguments) == 0  # the files were written again, with the same content
    try:
        path.write_bytes(content.replace(b"a", b"e"))
        message = last_error(capsys, arguments)
    finally:
        path.write_bytes(content)
    assert (
        f"{path}: its content has changed since the run started, but the run in {run} is finished"
        in message
    )


def test_trained_weights_without_a_checkpoint_are_not_overwritten(
    run: Path, data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "report.json").unlink()
    message = last_error(capsys, resume_arguments(run, data_folder, steps=3))
    assert "holds trained weights, but there is no checkpoint to resume from" in message


def test_pipe_in_the_place_of_a_file_is_refused_at_once(
    run: Path, data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("log.jsonl", "report.json", "model.safetensors"):
        (run / name).unlink()
        os.mkfifo(run / name)
        assert f"{name}: is a named pipe" in last_error(
            capsys, resume_arguments(run, data_folder, steps=3)
        )
        (run / name).unlink()


def test_learned_files_must_be_unmodified(tmp_path: Path) -> None:
    learn(
        tmp_path,
        lambda stage: (stage / "labels.json").write_text("[1]"),
        claim=lambda: None,
        data={"a": Content("b", "a")},
    )
    check_learned(tmp_path)
    (tmp_path / "labels.json").write_text("[2]")
    with pytest.raises(
        UserError,
        match=r"labels\.json: damaged, or edited by hand.*the new value in .*learned\.json",
    ):
        check_learned(tmp_path)
    (tmp_path / "labels.json").unlink()
    with pytest.raises(UserError, match=r"labels\.json is missing"):
        check_learned(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        '{"files": 3}',
        "[" * 100_000,
        '{"files": {"../x": "1:00112233445566778899aabbccddeeff"}}',
        '{"files": {}, "data": {}, "checksum": 1}',
    ],
)
def test_damaged_record_of_learned_files_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "learned.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"learned\.json: damaged"):
        check_learned(tmp_path)


def test_record_of_learned_files_of_another_version_is_refused(tmp_path: Path) -> None:
    for version, age in ((1, "an older"), (3, "a newer")):
        (tmp_path / "learned.json").write_text(
            json.dumps({"format": "regard-learned", "version": version})
        )
        with pytest.raises(
            UserError,
            match=rf"was written by {age} regard: its version is {version}, this one reads 2",
        ):
            check_learned(tmp_path)


def test_record_of_a_file_outside_the_folder_or_without_a_fingerprint_is_damaged(
    tmp_path: Path,
) -> None:
    whole = {"format": "regard-learned", "version": 2, "data": {}}
    good = "1:00112233445566778899aabbccddeeff"
    for files in (
        {"../x": good},
        {"x": [1, 2]},
        {"x": "1"},
        {"x": f"-{good}"},
        {"x": good.upper()},
        {"x": f"{good}0"},
    ):
        (tmp_path / "learned.json").write_text(json.dumps(add_checksum({**whole, "files": files})))
        with pytest.raises(UserError, match="must hold the fingerprints of files"):
            check_learned(tmp_path)


def test_learning_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(stage: Path) -> None:
        (stage / "half").touch()
        raise UserError("no")

    with pytest.raises(UserError, match="no"):
        learn(tmp_path, fail, claim=lambda: None, data={})
    assert list(tmp_path.iterdir()) == []


def test_files_that_could_not_be_removed_at_once_are_removed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, skipped = shutil.rmtree, []

    def rmtree(path: Path, **options: bool) -> None:
        if Path(path).name == ".learned.new" and Path(path).exists() and not skipped:
            skipped.append(path)
        else:
            original(path, **options)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert main(train_arguments(tmp_path)) == 0
    assert skipped
    assert not (tmp_path / "run" / ".learned.new").exists()
