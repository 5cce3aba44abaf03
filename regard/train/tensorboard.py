"""Scalar curves for TensorBoard, written synchronously.

torch's SummaryWriter writes in a background thread, where a full disk shows late and as a traceback.
"""

import os
import socket
import time
from pathlib import Path

# protobuf creates these names when the modules are loaded.
from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyrefly: ignore[missing-module-attribute]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyrefly: ignore[missing-module-attribute]
from tensorboard.summary.writer.record_writer import RecordWriter


class Board:
    """New event file in a folder. TensorBoard drops the points of older files from `step` on."""

    def __init__(self, folder: Path, *, step: int):
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        # A file of this name can exist if the clock was set back.
        number = next(number for number in range(1 << 20) if not (folder / f"{stem}.{number}").exists())
        self._file = (folder / f"{stem}.{number}").open("xb")
        self._records = RecordWriter(self._file)
        self._add(Event(file_version="brain.Event:2"))
        self._add(Event(step=step, session_log=SessionLog(status=SessionLog.START)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Add a point to a curve."""
        self._add(Event(step=step, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)])))

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())
        self._records.flush()
