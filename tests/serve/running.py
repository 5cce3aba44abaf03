"""A service in a thread or in a process of its own, and requests to it."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import IO, Any, NamedTuple

import uvicorn

from regard.recipes.base.trained import TrainedRun
from regard.recipes.run_folder import write_run
from regard.serve.app import make_app
from regard.serve.config import LimitsConfig
from regard.serve.guard import Guard
from regard.serve.service import Service
from tests.recipes.tiny import quick_options
from tests.recipes.untrained import untrained


class Response(NamedTuple):
    """Status, headers and body of an answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RunningService(NamedTuple):
    """Address of a service, and its process if it has one of its own."""

    host: str
    port: int
    process: "subprocess.Popen[str] | None" = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def ask(
        self,
        path: str,
        body: Any = None,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Send a request: JSON, or bytes with the content type of the headers."""
        sent = {"Content-Type": "application/json"} | dict(headers or {})
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection = HTTPConnection(self.host, self.port, timeout=60)
        try:
            verb = method or ("GET" if body is None else "POST")
            connection.request(verb, path, content, sent)
            response = connection.getresponse()
            own = {name.lower(): value for name, value in response.getheaders()}
            return Response(response.status, own, response.read())
        finally:
            connection.close()


def run_apart(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a thread: tests of a browser leave a running loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def untrained_run(recipe: str, folder: Path, *options: str) -> TrainedRun:
    """Return a run with random weights, in a new folder that a service can read.

    options: besides those of a quick run.
    """
    folder.mkdir()
    words = [*quick_options(recipe), *options]
    run = TrainedRun(*untrained(recipe, folder, *words), folder)
    write_run(folder, run.run)
    (folder / "model.safetensors").touch()  # a service hashes it
    return run


@contextmanager
def serving_here(
    runs: Mapping[str, TrainedRun], guard: Guard | None = None, limits: LimitsConfig | None = None
) -> Iterator[RunningService]:
    """Serve runs in a thread of this process until the context ends."""
    service = Service(runs, limits or LimitsConfig())
    service.start()
    config = uvicorn.Config(make_app(service, guard or Guard()), lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield RunningService(*listener.getsockname())
        finally:
            server.should_exit = True
            thread.join()
            service.stop()


@contextmanager
def serving(
    folders: list[Path],
    *options: str,
    program: Sequence[str] = ("-m", "regard"),
    log: IO[str] | None = None,
) -> Iterator[RunningService]:
    """Serve runs at a free port until the context ends.

    program: arguments of Python; log: file of standard error.
    """
    words = ["serve", *map(str, folders), "--port", "0", "--threads", "1", *options]
    command = [sys.executable, *program, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address.startswith("http://"), address
            host, _, port = address.removeprefix("http://").rstrip("/").rpartition(":")
            yield RunningService(host, int(port), process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
