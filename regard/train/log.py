"""What a run tells: a bar or lines on the terminal, log.jsonl, and curves for TensorBoard.

log.jsonl holds one JSON object a line, `kind` being

    train       every log_every steps: loss (as differentiated) and nll (-log p), both a target token and mean
                since the last line; lr, norm (of the gradient before clipping), tokens_per_s (target tokens)
    validation  what the task measures
    end         why the run stopped, and which weights were kept
    diverged    the batch whose loss or gradient was no number

and always step, epoch and seconds. Numbers that JSON lacks (NaN, infinity) are null.
"""

import json
import math
import os
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from regard.display import escaped
from regard.errors import UserError
from regard.files import check_file
from regard.run_files import check_no_link
from regard.train.board import Board
from regard.train.progress import Progress


class Log:
    """The log of one run folder, open from `with` to its end. On other than the main process it does
    nothing."""

    def __init__(self, folder: Path, *, speaks: bool, tensorboard: bool, step: int, log_bytes: int):
        self._speaks = speaks
        self._tokens, self._seconds = 0, 0.0
        self._console = Console(stderr=True, quiet=not speaks, highlight=False, soft_wrap=True)
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[numbers]}"),
            console=self._console,
            refresh_per_second=2,
            transient=True,
            disable=not (speaks and self._console.is_terminal),
        )
        self._task = self._bar.add_task("", total=1.0, numbers="")
        if not speaks:
            return
        self._path = folder / "log.jsonl"
        _cut(self._path, log_bytes)
        self._file = self._path.open("a", encoding="utf-8")
        # Points of a later step than the one resumed from are dropped by TensorBoard.
        try:
            self._board = Board(folder / "tb", step=step + 1) if tensorboard else None
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        if self._speaks:
            # A disk that was full may still be so when what is left is written; the first error is told.
            for one in (self._file, *([self._board] if self._board else [])):
                with suppress(OSError) if error else nullcontext():
                    one.close()

    def size(self) -> int:
        """Bytes of log.jsonl so far, all of them handed to the system."""
        if not self._speaks:
            return 0
        self._file.flush()
        return os.fstat(self._file.fileno()).st_size

    def note(self, text: str) -> None:
        """Tell a sentence."""
        self._console.print(escaped(text), markup=False, emoji=False)

    def record(self, kind: str, progress: Progress, values: Mapping[str, Any]) -> None:
        """One line of log.jsonl, and a point on each numeric value's curve."""
        if not self._speaks:
            return
        line = {
            "kind": kind,
            "step": progress.step,
            "epoch": progress.epoch,
            "seconds": round(progress.seconds, 3),
        }
        line |= {name: _plain(value) for name, value in values.items()}
        try:
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._file.flush()
            for name, value in values.items():
                if self._board and isinstance(value, int | float) and not isinstance(value, bool):
                    self._board.point(f"{kind}/{name}", value, progress.step)
        except OSError as failure:
            raise UserError(f"{self._path}: cannot be written: {failure.strerror or failure}.") from failure

    def trained(
        self,
        progress: Progress,
        *,
        lr: float,
        norm: float,
        share: float,
        tokens: int,
        seconds: float,
        is_line: bool,
    ) -> None:
        """A step is done, of so many tokens and seconds; the share of the run that lies behind gives the time
        left.

        Moves the bar on; at a line's end records what was summed up, and where there is no bar tells it.
        """
        if not self._speaks:
            return
        self._tokens, self._seconds = self._tokens + tokens, self._seconds + seconds
        loss, nll, count = progress.unlogged
        rate = self._tokens / max(self._seconds, 1e-9)
        left = f"  {_clock(progress.seconds * (1 - share) / share)} left" if 0 < share < 1 else ""
        where = f"epoch {progress.epoch + 1}  step {progress.step}"
        numbers = f"loss {loss / count:.4f}  lr {lr:.2e}  {rate:,.0f} tokens/s{left}"
        total = 1.0 if share > 0 else None
        self._bar.update(self._task, description=where, completed=share, total=total, numbers=numbers)
        if not is_line:
            return
        self._tokens, self._seconds = 0, 0.0
        measured = {
            "loss": loss / count,
            "nll": nll / count,
            "lr": lr,
            "norm": norm,
            "tokens_per_s": round(rate, 1),
        }
        self.record("train", progress, measured)
        if self._bar.disable:
            self.note(f"{where}  {numbers}")

    def busy(self, text: str) -> None:
        """Say on the bar what the loop is doing instead of steps."""
        self._bar.update(self._task, numbers=text)


def _cut(path: Path, length: int) -> None:
    """Forget what was written after the checkpoint that the run goes on from."""
    check_no_link(path.parent, path.name)
    if path.exists() and check_file(path).st_size > length:
        os.truncate(path, length)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
