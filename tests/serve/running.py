"""A service in a process of its own, and requests to it."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import IO, Any, NamedTuple


class Response(NamedTuple):
    """Status, headers and body of an answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RunningService(NamedTuple):
    """Address and process of a service."""

    host: str
    port: int
    process: "subprocess.Popen[str]"

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
