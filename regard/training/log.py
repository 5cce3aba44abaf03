"""Logs of training: lines of log.jsonl, the terminal, and TensorBoard."""

import json
import math
import os
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Self

from regard.compat.rich import BarColumn, Console, TextColumn
from regard.compat.rich import Progress as Bar
from regard.errors import UserError
from regard.system.progress import format_time
from regard.system.terminal import escape_text
from regard.system.verbosity import verbosity
from regard.training.progress import Progress


class Log:
    """Log of a run folder, a context manager; ranks other than 0 (`is_enabled` False) write none.

    unit: what the loss is a mean over, for rates: tokens, images ...
    """

    def __init__(
        self,
        folder: Path,
        *,
        is_enabled: bool,
        tensorboard: bool,
        step: int,
        log_bytes: int,
        unit: str = "tokens",
    ):
        self._unit = unit
        is_shown = is_enabled and verbosity() != "quiet"
        self._count, self._seconds, self._loss = 0, 0.0, ""
        self._console = Console(stderr=True, quiet=not is_shown, highlight=False, soft_wrap=True)
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[numbers]}"),
            console=self._console,
            refresh_per_second=2,
            transient=True,
            disable=not (is_shown and self._console.is_terminal),
        )
        self._task = self._bar.add_task("", total=1.0, numbers="")
        self._board: Any = None
        if is_enabled and tensorboard:
            from torch.utils.tensorboard import SummaryWriter  # takes 0.7 s # noqa: PLC0415

            # TensorBoard drops the points after the step that is resumed from.
            self._board = SummaryWriter(str(folder / "tb"), purge_step=step + 1)
        self._path = folder / "log.jsonl" if is_enabled else Path(os.devnull)
        self._file = self._path.open("a", encoding="utf-8")
        if os.fstat(self._file.fileno()).st_size > log_bytes:
            self._file.truncate(log_bytes)  # written after the checkpoint that is resumed

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._bar.stop()
        # On a full disk closing may fail too; the first error is the one that is raised.
        for file in (self._file, *([self._board] if self._board else [])):
            with suppress(OSError) if error else nullcontext():
                file.close()

    def size(self) -> int:
        """Return the current length of log.jsonl in bytes, after flushing it."""
        self._file.flush()
        return os.fstat(self._file.fileno()).st_size

    def note(self, text: str) -> None:
        self._console.print(escape_text(text), markup=False, emoji=False)

    def record(self, kind: str, progress: Progress, values: Mapping[str, Any]) -> None:
        """Append a line to log.jsonl, and a point to the curve of each numeric value."""
        line: dict[str, Any] = {"kind": kind, "step": progress.step, "epoch": progress.epoch}
        line["seconds"] = round(progress.seconds, 3)
        for name, value in values.items():
            is_number = not isinstance(value, float) or math.isfinite(value)
            line[name] = value if is_number else None
        try:
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._file.flush()
            for name, value in values.items():
                if self._board and isinstance(value, int | float) and not isinstance(value, bool):
                    self._board.add_scalar(f"{kind}/{name}", value, progress.step)
            if self._board:
                self._board.flush()
        except OSError as failure:
            raise UserError(
                f"{self._path}: cannot be written: {failure.strerror or failure}."
            ) from failure

    def record_step(
        self,
        progress: Progress,
        *,
        lr: float,
        norm: float,
        fraction: float,
        count: int,
        seconds: float,
        is_line: bool,
    ) -> None:
        """Record a step of `count` tokens, or images ..., that took `seconds`.

        Updates the progress bar. If `is_line`, writes a line with the means since the last line,
        and also prints it if there is no progress bar.

        fraction: completed fraction of the run, from which the remaining time is estimated.
        """
        self._count, self._seconds = self._count + count, self._seconds + seconds
        loss, nll, total_count = progress.log_sums
        rate = self._count / max(self._seconds, 1e-9)
        remaining = ""
        if 0 < fraction < 1:
            remaining = f"  {format_time(progress.seconds * (1 - fraction) / fraction)} left"
        position = f"epoch {progress.epoch + 1}  step {progress.step}"
        if total_count:  # else no step was read since the last line
            self._loss = f"loss {loss / total_count:.4f}  "
        numbers = f"{self._loss}lr {lr:.2e}  "
        numbers += f"{format(rate, ',.0f' if rate >= 10 else '.2g')} {self._unit}/s{remaining}"
        total = 1.0 if fraction > 0 else None
        self._bar.update(
            self._task, description=position, completed=fraction, total=total, numbers=numbers
        )
        if not is_line:
            return
        self._count, self._seconds = 0, 0.0
        values = {"loss": loss / total_count, "nll": nll / total_count, "lr": lr, "grad_norm": norm}
        values[f"{self._unit.replace(' ', '_')}_per_s"] = round(rate, 1)
        self.record("train", progress, values)
        if self._bar.disable:
            self.note(f"{position}  {numbers}")

    def show_status(self, text: str) -> None:
        """Show a text in place of the numbers on the progress bar, while no steps are made."""
        self._bar.update(self._task, numbers=text)
