"""Curves for TensorBoard, written as they come.

torch's SummaryWriter writes in a thread of its own, which tells of a full disk in a traceback, and that later.
"""

import os
import socket
import time
from pathlib import Path

# protobuf makes these names when the modules are loaded.
from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyrefly: ignore[missing-module-attribute]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyrefly: ignore[missing-module-attribute]
from tensorboard.summary.writer.record_writer import RecordWriter


class Board:
    """A new file of events in a folder; TensorBoard drops points of `step` and later that older files hold."""

    def __init__(self, folder: Path, *, step: int):
        folder.mkdir(parents=True, exist_ok=True)
        begun = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        # "x": where the clock was set back, a file of this name may be there.
        number = next(number for number in range(1 << 20) if not (folder / f"{begun}.{number}").exists())
        self._file = (folder / f"{begun}.{number}").open("xb")
        self._records = RecordWriter(self._file)
        self._add(Event(file_version="brain.Event:2"))
        self._add(Event(step=step, session_log=SessionLog(status=SessionLog.START)))

    def close(self) -> None:
        """No more points come."""
        self._file.close()

    def point(self, name: str, value: float, step: int) -> None:
        """A point of a curve."""
        self._add(Event(step=step, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)])))

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())
        self._records.flush()
