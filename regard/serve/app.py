"""Routes of the service."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from functools import cached_property
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.errors import is_out_of_memory
from regard.serve.conventions import libretranslate, openai
from regard.serve.guard import Guard
from regard.serve.looks import page_text
from regard.serve.openapi.document import openapi
from regard.serve.openapi.page import docs_page
from regard.serve.replies import RequestError, event_response, json_response, until_left
from regard.serve.requests import Query, in_time, read_query
from regard.serve.runs import ServedRun
from regard.serve.service import Service, Token

_ACCESS = logging.getLogger("regard.serve.access")
_COSTLY = ("/v1/predict", "/translate", "/v1/completions")
"""Routes whose requests are refused before their bodies are read if too many inputs wait."""
_CONVENTIONS = {
    "/translate": libretranslate.error_response,
    "/languages": libretranslate.error_response,
    "/v1/completions": openai.error_response,
    "/v1/models": openai.error_response,
}
"""Errors of conventions by the begin of their paths; other paths have those of RFC 9457."""
_ERRORS = (RequestError, ClientDisconnect, HTTPException, Exception)


def make_app(service: Service, guard: Guard) -> ASGIApp:
    """Return the application."""
    routes = _Routes(service, needs_key=guard.keys is not None)
    application = Starlette(
        routes=[
            Route("/", routes.page),
            Route("/v1/predict", routes.predict, methods=["POST"]),
            Route("/v1/runs", routes.list_runs),
            Route("/v1/looks/{id}", routes.look),
            Route("/health/live", routes.live),
            Route("/health/ready", routes.ready),
            Route("/metrics", routes.metrics),
            Route("/openapi.json", routes.openapi),
            Route("/docs", routes.docs),
            *libretranslate.routes(service, guard),
            *openai.routes(service),
        ],
        exception_handlers=dict.fromkeys(_ERRORS, _answer_error),
        max_body_size=service.limits.body,
    )
    return _Gate(application, service, guard)


class _Routes:
    """Handlers of the routes."""

    def __init__(self, service: Service, *, needs_key: bool):
        self.service, self.needs_key = service, needs_key

    @cached_property
    def document(self) -> dict[str, Any]:
        """The OpenAPI document, with the answers to examples once the service has started."""
        return openapi(self.service.runs, needs_key=self.needs_key)

    async def predict(self, request: Request) -> Response:
        query = await in_time(read_query(request), self.service.limits.upload)
        run = self.service.run(query.run)
        query.options = run.read_options(query.options, is_text=query.is_text)
        if query.stream and query.look:
            raise RequestError(422, "a streamed answer has no look: ask for it alone", at="look")
        if query.stream and query.on_bad == "skip":
            raise RequestError(422, "streamed inputs are not skipped", at="on_bad")
        if query.stream:
            events = self._events(run, query)
            return await event_response(
                request, events, lambda problem: _encode_event("problem", problem.to_json())
            )
        return json_response(await until_left(request, self._reply(run, query)))

    async def _reply(self, run: ServedRun, query: Query) -> dict[str, Any]:
        reply = await self.service.answer(run, query)
        body: dict[str, Any] = {"run": run.name, "weights": run.weights}
        body |= {"answers": reply.to_json(), "notes": reply.notes}
        if query.look:
            body["look"] = await self.service.look(run, query, reply)
        return body

    async def _events(self, run: ServedRun, query: Query) -> AsyncIterator[bytes]:
        """Yield the events of a streamed answer: token, answer, done."""
        async for part in self.service.stream(run, query):
            if isinstance(part, Token):
                yield _encode_event("token", {"input": part.number, "text": part.text})
                continue
            for answer in part.to_json():
                yield _encode_event("answer", answer)
            done = {"run": run.name, "weights": run.weights, "notes": part.notes}
            yield _encode_event("done", done)

    async def list_runs(self, request: Request) -> Response:
        runs = [run.facts for run in self.service.runs.values()]
        return json_response({"runs": runs})

    async def look(self, request: Request) -> Response:
        page = self.service.looks.page(request.path_params["id"])
        if page is None:
            raise RequestError(404, "there is no such look, or it is too old")
        return HTMLResponse(page)

    async def page(self, request: Request) -> Response:
        return HTMLResponse(page_text())

    async def live(self, request: Request) -> Response:
        return json_response({"state": "live"})

    async def ready(self, request: Request) -> Response:
        if self.service.is_draining():
            return json_response({"state": "draining"}, status=503)
        return json_response({"state": "ready"})

    async def openapi(self, request: Request) -> Response:
        return json_response(self.document)

    async def docs(self, request: Request) -> Response:
        return HTMLResponse(docs_page(self.document, str(request.base_url)))

    async def metrics(self, request: Request) -> Response:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(self.service.metrics.text(), media_type=kind)


def _encode_event(name: str, data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))


class _Gate:
    """Checks of all requests before their bodies are read, and a line of the log for each."""

    def __init__(self, application: ASGIApp, service: Service, guard: Guard):
        self._application, self._service, self._guard = application, service, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin, path, service = time.perf_counter(), scope["path"], self._service
        status, held = 499, 0  # of a client that left

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            headers = Headers(scope=scope)
            self._guard.check(path, headers)
            if path in _COSTLY:
                length, most = headers.get("content-length", ""), service.limits.body
                size = int(length) if length.isdecimal() else most  # Starlette ends it there
                if size > most:
                    raise RequestError(413, f"the body may have {most:,} bytes, got {size:,}")
                service.check_room(size)
                held = size
            service.held += held
            await self._application(scope, receive, send_noted)
        except RequestError as problem:
            await _error_response(path, problem)(scope, receive, send_noted)
        except asyncio.CancelledError:
            service.metrics.cancelled.inc()
        finally:
            service.held -= held
            # Not the path itself, which may hold anything.
            route = path if path in _COSTLY else "other"
            route = scope["route"].path if "route" in scope else route
            seconds = time.perf_counter() - begin
            service.metrics.requests.labels(route, status).inc()
            service.metrics.seconds.labels(route).observe(seconds)
            if _ACCESS.isEnabledFor(logging.INFO):
                entry = {"time": round(time.time(), 3), "method": scope["method"], "route": route}
                entry |= {"status": status, "seconds": round(seconds, 6)}
                _ACCESS.info(json.dumps(entry))


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):  # while its body was read: no one receives this
        return Response(status_code=499)
    problem = RequestError(500, "the service failed: its log says why")
    if isinstance(error, RequestError):
        problem = error
    elif isinstance(error, HTTPException):  # unknown paths, methods, forms, too large bodies
        problem = RequestError(error.status_code, error.detail, headers=error.headers)
    elif is_out_of_memory(error):
        problem = RequestError(503, "not enough memory", headers={"Retry-After": "5"})
    return _error_response(request.scope["path"], problem)


def _error_response(path: str, problem: RequestError) -> Response:
    """Return the response to an error in the form of the path's convention."""
    for begin, respond in _CONVENTIONS.items():
        if path.startswith(begin):
            return respond(problem)
    return problem.response()
