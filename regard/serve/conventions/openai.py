"""Language runs, as OpenAI continues texts: /v1/completions and /v1/models.

Sampling has the settings of the run if a request does not give them, except that max_tokens is 16;
sample k of a prompt, from 0, has the seed + k.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from regard.recipes.base.answers import ContinuedText
from regard.recipes.base.recipe import Answer
from regard.serve.replies import RequestError, event_response, json_response, until_left
from regard.serve.requests import Query, decode_object, in_time, to_struct
from regard.serve.runs import ServedRun
from regard.serve.schemas import convert_option
from regard.serve.service import Reply, Service, Token
from regard.settings.ranges import short_repr

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
_OPTIONS = {name: name for name in _SAMPLING} | {"max_tokens": "length"}
_REFUSED = ("suffix", "presence_penalty", "frequency_penalty", "logit_bias")
"""Fields that would change an answer, but are not supported: they must be 0 or empty."""
_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
_Stop = Annotated[str, msgspec.Meta(min_length=1)]


class CompletionQuery(msgspec.Struct):
    """Body of a request without the settings of sampling; unknown fields are ignored."""

    model: str
    prompt: str | list[str]  # ids of tokens are not read
    n: Annotated[int, msgspec.Meta(ge=1)] | None = None
    best_of: int | None = None
    echo: bool | None = None
    stop: _Stop | Annotated[list[_Stop], msgspec.Meta(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    logprobs: None = None


class CompletionChoice:
    """A text while it is generated, which ends before the first of `stop`."""

    def __init__(self, index: int, query: CompletionQuery, prompt: str):
        self._index, self._text = index, prompt if query.echo else ""
        self._begin, self._told = len(self._text), 0
        self._stop = [query.stop] if isinstance(query.stop, str) else query.stop or []

    def add(self, text: str, answer: Answer | None = None) -> dict[str, Any]:
        """Return the new part of the choice: of the text that follows, or of a whole answer."""
        self._text = (self._text if answer is None else self._text[: self._begin]) + text
        found = [self._text.find(stop, self._begin) for stop in self._stop]
        end, reason = min((at for at in found if at >= 0), default=len(self._text)), None
        if answer is not None:
            reason = "stop" if answer.is_finished or end < len(self._text) else "length"
        elif self._stop:  # the last characters may begin one of them
            end = min(end, len(self._text) - max(map(len, self._stop)) + 1)
        part = self._text[self._told : max(end, self._told)]
        self._told += len(part)
        return {"index": self._index, "text": part, "logprobs": None, "finish_reason": reason}


class _Completion:
    """A request for completions: its prompts, and the options of each sample of a prompt."""

    def __init__(self, service: Service, values: dict[str, Any]):
        self.service, self.query = service, to_struct(values, CompletionQuery)
        self.run, n = _find(service, self.query.model), self.query.n or 1
        prompt, most = self.query.prompt, service.limits.inputs
        self.prompts = [prompt] if isinstance(prompt, str) else prompt
        for name in _REFUSED:
            if values.get(name):
                raise RequestError(400, f"{name} is not supported: leave it out", at=name)
        if self.query.best_of not in (None, n):
            raise RequestError(400, f"best_of must be n ({n})", at="best_of")
        if n * len(self.prompts) > most:
            raise RequestError(400, f"at most {most} choices are made", at="n")
        options = {"length": 16, "seed": self.run.options["seed"].value}
        for name, own in _OPTIONS.items():
            if values.get(name) is not None:
                options[own] = convert_option(self.run.options[own], name, values[name])
        self.samples = []
        for sample in range(n):
            own = options | {"seed": options["seed"] + sample}
            self.samples.append(Query(self.prompts, stream=bool(self.query.stream), options=own))
        self.head: dict[str, Any] = {"id": f"cmpl-{secrets.token_hex(12)}"}
        self.head |= {"object": "text_completion", "created": int(time.time())}
        self.head |= {"model": self.run.name, "system_fingerprint": self.run.weights[:16]}

    async def answer(self) -> dict[str, Any]:
        """Return the body of the response."""
        work = [self.service.answer(self.run, sample) for sample in self.samples]
        replies, parts = await asyncio.gather(*work), []
        for number, prompt in enumerate(self.prompts):
            for reply in replies:
                answer = reply.answers[number]
                choice = CompletionChoice(len(parts), self.query, prompt)
                parts.append(choice.add(answer.json["text"], answer))
        return self.head | {"choices": parts, "usage": _usage(replies)}

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield parts of choices as events, one sample of all prompts after the other."""
        replies: list[Reply] = []
        for sample in self.samples:
            choices = []
            for number, prompt in enumerate(self.prompts):
                index = number * len(self.samples) + len(replies)
                choices.append(CompletionChoice(index, self.query, prompt))
            async for part in self.service.stream(self.run, sample):
                if isinstance(part, Token):
                    yield self._event(choices=[choices[part.number - 1].add(part.text)])
                    continue
                replies.append(part)
                for choice, answer in zip(choices, part.answers, strict=True):
                    yield self._event(choices=[choice.add(answer.json["text"], answer)])
        if (self.query.stream_options or {}).get("include_usage"):
            yield self._event(choices=[], usage=_usage(replies))
        yield b"data: [DONE]\n\n"

    def _event(self, **parts: Any) -> bytes:
        return _to_event(self.head | parts)


def routes(service: Service) -> list[Route]:
    """Return the routes of the convention."""

    async def complete(request: Request) -> Response:
        body = await in_time(request.body(), service.limits.upload)
        completion = _Completion(service, decode_object(body))
        if completion.query.stream:
            events = completion.stream()
            return await event_response(request, events, lambda error: _to_event(_to_error(error)))
        return json_response(await until_left(request, completion.answer()))

    async def list_models(request: Request) -> Response:
        models = [_model(run) for run in language_models(service.runs).values()]
        return json_response({"object": "list", "data": models})

    async def show_model(request: Request) -> Response:
        return json_response(_model(_find(service, request.path_params["name"])))

    return [
        Route("/v1/completions", complete, methods=["POST"]),
        Route("/v1/models", list_models),
        Route("/v1/models/{name}", show_model),
    ]


def error_response(problem: RequestError) -> Response:
    """Return the response to an error as OpenAI gives it."""
    status = 400 if problem.status == 422 else problem.status
    return json_response(_to_error(problem), status, problem.headers)


def _to_error(problem: RequestError) -> dict[str, Any]:
    place = problem.at.replace("inputs", "prompt") or None
    kind = "invalid_request_error" if problem.status < 500 else "server_error"
    error = {"message": problem.message("prompt"), "type": kind, "param": place}
    return {"error": error | {"code": _CODES.get(problem.status)}}


def _to_event(data: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(data)


def _usage(replies: Sequence[Reply]) -> dict[str, int]:
    """Return the tokens of all samples; a prompt counts once."""
    read, written = replies[0].num_read, sum(reply.num_written for reply in replies)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def language_models(runs: Mapping[str, ServedRun]) -> dict[str, ServedRun]:
    """Return the runs of language models by name."""
    return {name: run for name, run in runs.items() if run.answer is ContinuedText}


def _find(service: Service, name: str) -> ServedRun:
    """Return a language model. Raises: RequestError if there is none of this name."""
    models = language_models(service.runs)
    if name not in models:
        known = ", ".join(models) or "none"
        text = f"there is no model {short_repr(name)}; the models are: {known}"
        raise RequestError(404, text, at="model")
    return models[name]


def _model(run: ServedRun) -> dict[str, Any]:
    return {"id": run.name, "object": "model", "created": run.created, "owned_by": "regard"}
