"""Processes of a measurement: servers, offline prediction, the load generator, and their use."""

import contextlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.serve.client import Answer, Job, Result
from benchmarks.serve.material import BEAM

__all__ = ["Offline", "Server", "Use", "ctranslate2_server", "regard_server"]


class Server:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen, port: int, path: str):
        self.process, self.port, self.path = process, port, path

    def send(self, texts: Sequence[str], **job: Any) -> list[Answer]:
        """Send requests of one text each (`Job`), and return their answers."""
        bodies = [json.dumps(self.body(text)) for text in texts]
        given = msgspec.json.encode(Job(port=self.port, path=self.path, bodies=bodies, **job))
        command = [sys.executable, "-m", "benchmarks.serve.client"]
        found = subprocess.run(command, input=given, stdout=subprocess.PIPE, check=True)
        return msgspec.json.decode(found.stdout, type=Result).answers

    def body(self, text: str) -> dict[str, Any]:
        """Return the body of a request."""
        if self.path == "/translate":
            return {"text": text}
        return {"inputs": [text], "beam": BEAM}

    def cpu(self) -> float:
        """Return the CPU seconds of the server so far."""
        return _cpu(self.process.pid)

    def held(self) -> dict[str, int]:
        """Return the memory in KB, threads and descriptors of the server."""
        folder = Path(f"/proc/{self.process.pid}")
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        held = {name: int(status[name].split()[0]) for name in ("VmRSS", "Threads")}
        return held | {"descriptors": len(list((folder / "fd").iterdir()))}


@contextlib.contextmanager
def regard_server(run: Path, *options: str) -> Iterator[Server]:
    """Serve a run by `regard serve`, on a free port."""
    command = ["-m", "regard", "serve", str(run), "--port", "0", *options]
    with _started(command, {}) as (process, port):
        yield Server(process, port, "/v1/predict")


@contextlib.contextmanager
def ctranslate2_server(folder: Path) -> Iterator[Server]:
    """Serve an export by benchmarks.serve.ctranslate2_app, on a free port."""
    app = "benchmarks.serve.ctranslate2_app:app"
    command = ["-m", "uvicorn", app, "--port", "0", "--no-access-log"]
    with _started(command, {"MODEL": str(folder), "BEAM": str(BEAM)}) as (process, port):
        yield Server(process, port, "/translate")


@contextlib.contextmanager
def _started(
    arguments: list[str], variables: dict[str, str]
) -> Iterator[tuple[subprocess.Popen, int]]:
    """Start a server, and yield its process and the port that it prints."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | variables
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as log:
        with open(log.name, "w", encoding="utf-8") as out:
            process = subprocess.Popen(
                [sys.executable, *arguments], stdout=out, stderr=out, env=environment
            )
        try:
            while not (address := re.search(r"http://[\d.]+:(\d+)", Path(log.name).read_text())):
                if process.poll() is not None:
                    raise RuntimeError(f"{arguments} ended:\n{Path(log.name).read_text()}")
                time.sleep(0.1)
            yield process, int(address[1])
        finally:
            process.terminate()
            process.wait()


class Offline:
    """Offline prediction in a process of its own, with as many workers as the server."""

    def __init__(self, run: Path):
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other, run), daemon=True)
        self.process.start()
        self.pipe.recv()  # it is warm

    def __enter__(self) -> "Offline":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.join()

    def predict(self, texts: Sequence[str]) -> float:
        """Return the seconds that `predict` takes."""
        self.pipe.send(("predict", texts))
        return self.pipe.recv()

    def answer(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Return the answers as JSON."""
        self.pipe.send(("answer", texts))
        return self.pipe.recv()

    def cpu(self) -> float:
        """Return the CPU seconds so far."""
        return _cpu(self.process.pid)


def _work(pipe: Connection, run: Path) -> None:
    """Answer what the pipe asks."""
    import regard  # noqa: PLC0415  # torch is needed in this process alone

    trained = regard.load(run, engine="compiled", workers=2)
    trained.predict(["warm up"] * 2, beam=BEAM)
    pipe.send(None)
    while True:
        what, texts = pipe.recv()
        start = time.perf_counter()
        found = getattr(trained, what)(texts, beam=BEAM)
        pipe.send(found if what == "answer" else time.perf_counter() - start)


class Use:
    """Average number of cores that other processes used in the meantime."""

    def __init__(self, *known: Server | Offline):
        self.known = known
        self.begin = self._now()

    def others(self) -> float:
        """Return the average from the creation until now."""
        seconds, busy = (now - then for now, then in zip(self._now(), self.begin, strict=True))
        return max(0.0, busy / seconds)

    def _now(self) -> tuple[float, float]:
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
        busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
        ours = sum(os.times()[:4]) + sum(process.cpu() for process in self.known)
        return time.perf_counter(), busy - ours


def _cpu(process: int | None) -> float:
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
