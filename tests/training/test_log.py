import gc
import json
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from regard.errors import UserError
from regard.training.log import Log
from regard.training.progress import Progress


def record_step(log: Log, progress: Progress, *, is_line: bool, fraction: float = 0.25) -> None:
    log.record_step(
        progress, lr=0.5, norm=2.0, fraction=fraction, count=30, seconds=0.5, is_line=is_line
    )


def test_lines_hold_means_over_tokens_and_null_for_nan(tmp_path: Path) -> None:
    progress = Progress(step=7, epoch=1, seconds=60.0, log_sums=[20.0, 10.0, 5.0])
    with Log(tmp_path, is_enabled=True, tensorboard=False, step=0, log_bytes=0) as log:
        record_step(log, progress, is_line=False)
        record_step(log, progress, is_line=True)
        log.record("validation", progress, {"bleu": float("nan"), "notes": [1, 2]})
        size = log.size()
    text = (tmp_path / "log.jsonl").read_text()
    assert size == len(text)
    first, second = map(json.loads, text.splitlines())
    position = {"step": 7, "epoch": 1, "seconds": 60.0}
    means = {"loss": 4.0, "nll": 2.0, "lr": 0.5, "grad_norm": 2.0, "tokens_per_s": 60.0}
    assert first == {"kind": "train", **position, **means}
    assert second == {"kind": "validation", **position, "bleu": None, "notes": [1, 2]}


def test_without_a_terminal_lines_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(step=7, epoch=1, seconds=3700.0, log_sums=[20.0, 10.0, 5.0])
    with Log(tmp_path, is_enabled=True, tensorboard=False, step=0, log_bytes=0) as log:
        for is_line in (False, True, False):
            record_step(log, progress, is_line=is_line)
        log.show_status("validating")
        log.note("[bold] is a word, :smile: too\x1b[2J")
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines() == [
        "epoch 2  step 7  loss 4.0000  lr 5.00e-01  60 tokens/s  3:05:00 left",
        "[bold] is a word, :smile: too\\x1b[2J",
    ]


def test_disabled_log_prints_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Log(tmp_path, is_enabled=False, tensorboard=True, step=0, log_bytes=0) as log:
        record_step(log, Progress(log_sums=[1.0, 1.0, 1.0]), is_line=True)
        log.record("end", Progress(), {})
        log.note("hello")
        assert log.size() == 0
    assert capsys.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_log_is_closed_if_its_curves_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "tb").write_text("no folder")
    with pytest.raises(OSError, match="tb"):  # and no warning of a file that was left open
        Log(tmp_path, is_enabled=True, tensorboard=True, step=0, log_bytes=0)
    gc.collect()


def test_curves_hold_numbers_only_and_drop_points_that_a_resumed_run_repeats(
    tmp_path: Path,
) -> None:
    for start, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        with Log(tmp_path, is_enabled=True, tensorboard=True, step=start, log_bytes=0) as log:
            for step in steps:
                values = {"loss": 10.0 * start + step, "notes": "text"}
                log.record("train", Progress(step=step), values)
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert events.Tags()["scalars"] == ["train/loss"]
    points = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert points == [(1, 1), (2, 2), (3, 23), (4, 24)]


def test_full_disk_raises_an_error_that_names_the_log(tmp_path: Path) -> None:
    def work() -> None:
        with Log(tmp_path, is_enabled=True, tensorboard=True, step=0, log_bytes=0) as log:
            log._file.close()
            log._file = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115
            log.record("validation", Progress(), {"bleu": 1.0})

    with pytest.raises(UserError, match=r"log\.jsonl: cannot be written: No space left on device"):
        work()


def test_curves_are_in_separate_files_if_the_clock_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1e9)
    # Names of files end with the number of files so far, and are read in alphabetical order.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    for step in (1, 2):
        with Log(tmp_path, is_enabled=True, tensorboard=True, step=step - 1, log_bytes=0) as log:
            log.record("validation", Progress(step=step), {"bleu": step / 2})
    assert len(list((tmp_path / "tb").iterdir())) == 2
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    points = [(point.step, point.value) for point in events.Scalars("validation/bleu")]
    assert points == [(1, 0.5), (2, 1.0)]
