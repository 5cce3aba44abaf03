"""Replies that take a while: computed until the client leaves, or streamed as events."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive

from regard.serve.problems import RequestError

EventT = TypeVar("EventT")


async def until_left(request: Request, work: "asyncio.Future[Any]") -> Any:
    """Return the result of work, which is cancelled if the client leaves."""
    leaving = asyncio.ensure_future(_wait_until_left(request.receive))
    try:
        await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
        return await work
    finally:
        leaving.cancel()


async def _wait_until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def event_response(
    request: Request,
    events: AsyncIterator[EventT],
    encode: Callable[[EventT], bytes],
    to_event: Callable[[RequestError], EventT],
) -> Response:
    """Return a response of server-sent events.

    to_event: an error after the first event as the last one.
    Raises: RequestError before the first event.
    """
    first = await until_left(request, asyncio.ensure_future(anext(events)))

    async def encoded() -> AsyncIterator[bytes]:
        try:
            yield encode(first)
            async for event in events:
                yield encode(event)
        except RequestError as problem:
            yield encode(to_event(problem))

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(encoded(), media_type="text/event-stream", headers=headers)
