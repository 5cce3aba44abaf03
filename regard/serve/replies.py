"""Replies that take a while: computed until the client leaves, or streamed as events."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive

from regard.serve.problems import RequestError


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
