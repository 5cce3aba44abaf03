"""Replies: JSON, errors as RFC 9457 describes them, events, and what takes a while."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive

MEDIA_TYPE = "application/problem+json"


class RequestError(Exception):
    """Error that a request is answered with.

    at: place in the request, such as inputs[3].
    """

    def __init__(
        self, status: int, detail: str, *, at: str = "", headers: Mapping[str, str] | None = None
    ):
        super().__init__(detail)
        self.status, self.detail, self.at, self.headers = status, detail, at, headers

    def message(self, inputs: str) -> str:
        """Return the detail with its place, for requests whose inputs have another name."""
        at = self.at.replace("inputs", inputs)
        return f"{at}: {self.detail}" if at and not self.detail.startswith(at) else self.detail

    def to_json(self) -> dict[str, Any]:
        title = HTTPStatus(self.status).phrase
        body = {"type": "about:blank", "title": title, "status": self.status, "detail": self.detail}
        return body | ({"at": self.at} if self.at else {})

    def response(self) -> Response:
        body = msgspec.json.encode(self.to_json())
        return Response(body, self.status, self.headers, MEDIA_TYPE)


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response with a value as JSON."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


async def until_left(request: Request, work: Awaitable[Any]) -> Any:
    """Return the result of work, which is cancelled if the client leaves."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_wait_until_left(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
        return await working
    finally:
        leaving.cancel()


async def _wait_until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def event_response(
    request: Request, events: AsyncIterator[bytes], to_event: Callable[[RequestError], bytes]
) -> Response:
    """Return a response of server-sent events.

    to_event: encodes an error after the first event, which is the last one.
    Raises: RequestError before the first event.
    """
    first = await until_left(request, anext(events))

    async def all_events() -> AsyncIterator[bytes]:
        try:
            yield first
            async for event in events:
                yield event
        except RequestError as problem:
            yield to_event(problem)

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(all_events(), media_type="text/event-stream", headers=headers)
