"""Routes of the service."""

import asyncio
import json
import logging
import time
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
from regard.serve.openapi.document import DescribedRun, openapi
from regard.serve.openapi.page import docs_page
from regard.serve.problems import RequestError, json_response
from regard.serve.replies import event_response, until_left
from regard.serve.requests import Query, read_query
from regard.serve.runs import ServedRun
from regard.serve.service import Event, Service

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
        exception_handlers={
            RequestError: _answer_problem,
            ClientDisconnect: _answer_left,
            HTTPException: _answer_http_error,
            Exception: _answer_failure,
        },
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
        runs = []
        for run in self.service.runs.values():
            reads_tokens = run.trained.recipe.reads_tokens
            runs.append(DescribedRun(run.describe(), run.answer, reads_tokens, run.answered))
        return openapi(runs, needs_key=self.needs_key)

    async def predict(self, request: Request) -> Response:
        query = await read_query(request)
        run = self.service.run(query.run)
        options = run.read_options(query.options, is_text=query.is_text)
        if query.stream:
            return await self._stream(request, run, query, options)
        work: list[Any] = [
            self.service.answer(
                run, query.inputs, options, on_bad=query.on_bad, deadline=query.deadline
            )
        ]
        if query.look:
            work.append(self.service.look(run, query.inputs, options))
        reply, *looks = await until_left(request, asyncio.gather(*work))
        body = {"run": run.name, "weights": run.weights, "answers": reply.answers}
        body["notes"] = reply.notes
        if looks:
            body["look"] = looks[0]
        return json_response(body)

    async def _stream(
        self, request: Request, run: ServedRun, query: Query, options: dict[str, Any]
    ) -> Response:
        if query.look:
            raise RequestError(
                422, "a streamed answer has no look: ask for it by itself", at="look"
            )
        if query.on_bad == "skip":
            raise RequestError(422, "streamed inputs are not skipped", at="on_bad")
        events = self.service.stream(run, query.inputs, options, deadline=query.deadline)
        return await event_response(
            request, events, _to_event, lambda problem: Event("problem", problem.to_json())
        )

    async def list_runs(self, request: Request) -> Response:
        runs = [run.describe() for run in self.service.runs.values()]
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
        if self.service.is_draining:
            return json_response({"state": "draining"}, status=503)
        return json_response({"state": "ready"})

    async def openapi(self, request: Request) -> Response:
        return json_response(self.document)

    async def docs(self, request: Request) -> Response:
        return HTMLResponse(docs_page(self.document, str(request.base_url)))

    async def metrics(self, request: Request) -> Response:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(self.service.metrics.text(), media_type=kind)


def _to_event(event: Event) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.name.encode(), msgspec.json.encode(event.data))


class _Gate:
    """Checks of all requests before their bodies are read, and a line of the log for each."""

    def __init__(self, application: ASGIApp, service: Service, guard: Guard):
        self._application, self._service, self._guard = application, service, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._application(scope, receive, send)
        begin, status = time.perf_counter(), 499  # the client left

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        size = 0
        try:
            headers = Request(scope).headers
            self._guard.check(scope["path"], headers)
            if scope["path"] in _COSTLY:
                size = self._size(headers)
                self._service.check_room(size)
                receive = _receive_until(receive, self._service.limits.upload)
        except RequestError as problem:
            await _error_response(scope, problem)(scope, receive, send_noted)
        else:
            self._service.held += size
            try:
                await self._application(scope, receive, send_noted)
            except asyncio.CancelledError:
                self._service.metrics.cancel()
            finally:
                self._service.held -= size
        finally:
            seconds = time.perf_counter() - begin
            # Not the path itself, which may hold anything.
            route = scope["path"] if scope["path"] in _COSTLY else "other"
            route = scope["route"].path if "route" in scope else route
            self._service.metrics.finish_request(route, status, seconds)
            if _ACCESS.isEnabledFor(logging.INFO):
                entry = {"time": round(time.time(), 3), "method": scope["method"], "route": route}
                entry |= {"status": status, "seconds": round(seconds, 6)}
                _ACCESS.info(json.dumps(entry))

    def _size(self, headers: Headers) -> int:
        """Return the size of a body, the largest one if it is not known.

        Raises: RequestError 413 for one that is too large.
        """
        length, most = headers.get("content-length", ""), self._service.limits.body
        if not length.isdecimal():
            return most  # Starlette ends it at the limit
        if int(length) > most:
            raise RequestError(413, f"the body may have {most:,} bytes, got {int(length):,}")
        return int(length)


def _receive_until(receive: Receive, seconds: float) -> Receive:
    """Return a function that receives, and raises RequestError 408 for a body that is late."""
    end, is_read = time.perf_counter() + seconds, False

    async def receive_in_time() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        try:
            async with asyncio.timeout(end - time.perf_counter()):
                message = await receive()
        except TimeoutError as error:
            headers = {"Connection": "close"}
            raise RequestError(408, "the body did not arrive in time", headers=headers) from error
        is_read = not message.get("more_body", False)
        return message

    return receive_in_time


async def _answer_problem(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, RequestError)
    return _error_response(request.scope, problem)


async def _answer_left(request: Request, error: Exception) -> Response:
    """Answer a client that left while its body was read, which no one receives."""
    return Response(status_code=499)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """Answer errors of Starlette: unknown paths, methods, forms and bodies that are too large."""
    assert isinstance(error, HTTPException)
    problem = RequestError(error.status_code, error.detail, headers=error.headers)
    return _error_response(request.scope, problem)


async def _answer_failure(request: Request, error: Exception) -> Response:
    problem = RequestError(500, "the service failed: its log says why")
    if is_out_of_memory(error):
        problem = RequestError(503, "not enough memory", headers={"Retry-After": "5"})
    return _error_response(request.scope, problem)


def _error_response(scope: Scope, problem: RequestError) -> Response:
    """Return the response to an error in the form of the path's convention."""
    for path, respond in _CONVENTIONS.items():
        if scope["path"].startswith(path):
            return respond(problem)
    return problem.response()
