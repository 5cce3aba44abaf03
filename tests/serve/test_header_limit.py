"""A connection ends when the header of a request exceeds its limit, and not for a large body."""

import asyncio

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from regard.serve.server import _Protocol
from tests.serve.running import run_apart

BEGIN = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
CHUNKED = BEGIN + b"Transfer-Encoding: chunked\r\n\r\n"


async def _application(scope: Scope, receive: Receive, send: Send) -> None:
    size = len(await Request(scope, receive).body())
    await PlainTextResponse(str(size))(scope, receive, send)


async def exchange(*parts: bytes) -> bytes:
    """Send parts to an application that tells the size of the body; return what it answers."""
    config = uvicorn.Config(_application, http=_Protocol, lifespan="off", log_config=None)
    config.load()
    server = uvicorn.Server(config)
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(
        lambda: _Protocol(config, server.server_state, {}), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.05)  # the parts arrive one by one
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()
        listening.close()


@pytest.mark.parametrize(
    "parts",
    [
        [b"GET /", b"a" * 70_000],
        [BEGIN, b"X: ", b"a" * 70_000],
        [CHUNKED, b"1\r\na\r\n0\r\nX: ", b"a" * 70_000],
    ],
)
def test_large_header_ends_the_connection(parts: list[bytes]) -> None:
    answer = run_apart(exchange(*parts))
    assert b"400 Bad Request" in answer
    assert answer.endswith(b"The header of the request is too large.")


def test_large_body_is_read() -> None:
    head = BEGIN + b"Content-Length: 300000\r\n\r\n"
    assert run_apart(exchange(head, b"a" * 300_000)).endswith(b"300000")
    chunk = b"%x\r\n" % 300_000 + b"a" * 300_000 + b"\r\n0\r\n\r\n"
    assert run_apart(exchange(CHUNKED, chunk)).endswith(b"300000")
