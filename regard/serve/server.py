"""The process of the service: its socket, its log and its end."""

import gc
import logging
import socket
import sys
from collections.abc import Mapping

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from regard.recipes.base.trained import TrainedRun
from regard.serve.app import make_app
from regard.serve.config import LimitsConfig
from regard.serve.guard import Guard
from regard.serve.service import Service
from regard.system.verbosity import print_notice

_MAX_HEADER = 65_536
"""Bytes of the first line and the header fields of a request, or of those after its body."""


class _Protocol(HttpToolsProtocol):
    """A connection that is closed if the header of a request is too large."""

    _size = 0
    """Bytes that were received since the last part of a body, or the end of a request."""

    def data_received(self, data: bytes) -> None:
        self._size += len(data)
        super().data_received(data)
        if self._size > _MAX_HEADER and not self.transport.is_closing():
            self.send_400_response("The header of the request is too large.")

    def on_body(self, body: bytes) -> None:
        self._size = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._size = 0
        super().on_message_complete()


def serve(
    trained: Mapping[str, TrainedRun],
    listener: socket.socket,
    guard: Guard,
    limits: LimitsConfig,
    *,
    workers: int | None = None,
    is_logging: bool = True,
) -> None:
    """Answer requests until a signal ends it, then those that were accepted.

    workers:    threads of each run with a compiled engine; two by default.
    is_logging: write a line of JSON for each request to standard error, as errors are.
    """
    service = Service(trained, limits, workers=workers)
    service.start()
    errors = logging.StreamHandler(sys.stderr)
    for name in ("regard.serve", "uvicorn"):
        logging.getLogger(name).addHandler(errors)
    if is_logging:
        logging.getLogger("regard.serve.access").setLevel(logging.INFO)
    config = uvicorn.Config(
        make_app(service, guard),
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=round(limits.deadline) + 5,
    )
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"http://{shown}:{port}/", flush=True)
    print_notice("Ctrl-C ends the service; /docs describes it.")
    # To look for garbage among everything holds up all requests: for some tenths of a second what
    # is loaded, which stays, and for 50 ms a thousand requests that wait. They leave none, so this
    # is done a hundredth as often.
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 1_000)
    server = uvicorn.Server(config)
    service.is_draining = lambda: server.should_exit
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:  # the signal that ended it, raised again
        pass
    finally:
        service.stop()
