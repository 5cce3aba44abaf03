"""Runs from text to text, as LibreTranslate translates: /translate and /languages.

A run whose folder is named by two codes of languages, such as en-de, translates between them. Any
other run translates from `auto` to its name.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from babel import Locale, UnknownLocaleError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from regard.recipes.base.answers import GeneratedTexts
from regard.serve.guard import Guard
from regard.serve.replies import RequestError, json_response, until_left
from regard.serve.requests import Query, decode_object, in_time, to_struct
from regard.serve.runs import ServedRun
from regard.serve.service import Service


class TranslationQuery(msgspec.Struct):
    """Body of a request, as JSON or as a form."""

    q: str | list[str]
    source: str
    target: str
    format: Literal["text"] = "text"  # in HTML, tags would be translated
    alternatives: Annotated[int, msgspec.Meta(ge=0)] = 0
    api_key: str | None = None


def routes(service: Service, guard: Guard) -> list[Route]:
    """Return the routes of the convention."""

    async def translate(request: Request) -> Response:
        is_json = request.headers.get("content-type", "").startswith("application/json")
        if is_json:
            values = decode_object(await in_time(request.body(), service.limits.upload))
        else:
            values = dict(await in_time(request.form(max_files=0), service.limits.upload))
        query = to_struct(values, TranslationQuery, strict=is_json)
        header = request.headers.get("authorization", "")
        guard.check_key(f"Bearer {query.api_key}" if query.api_key else header)
        source, run = _find(service, query)
        # A wider beam could change the best output: there are fewer alternatives instead.
        n_best = min(1 + query.alternatives, run.options["beam"].value)
        is_one = isinstance(query.q, str)
        asked = Query([query.q] if is_one else query.q, options={"n_best": n_best})
        reply = await until_left(request, service.answer(run, asked))
        body: dict[str, list[Any]] = {"translatedText": []}
        for answer in reply.answers:
            best, *others = [output["text"] for output in answer.json["outputs"]]
            body["translatedText"].append(best)
            if query.alternatives:
                body.setdefault("alternatives", []).append(others)
            if query.source == "auto":  # known, not detected
                detected = {"language": source, "confidence": 0}
                body.setdefault("detectedLanguage", []).append(detected)
        return json_response({name: own[0] for name, own in body.items()} if is_one else body)

    async def languages(request: Request) -> Response:
        entries: dict[str, dict[str, Any]] = {}
        for source, target, _ in language_pairs(service.runs):
            for code in (source, target):
                entries.setdefault(code, {"code": code, "name": _name(code) or code, "targets": []})
            entries[source]["targets"].append(target)
        return json_response([*entries.values()])

    return [Route("/translate", translate, methods=["POST"]), Route("/languages", languages)]


def error_response(problem: RequestError) -> Response:
    """Return the response to an error as LibreTranslate gives it."""
    status = {401: 403, 422: 400}.get(problem.status, problem.status)
    return json_response({"error": problem.message("q")}, status, problem.headers)


def _find(service: Service, query: TranslationQuery) -> tuple[str, ServedRun]:
    """Return the source and the run of a request. Raises: RequestError unless there is one."""
    found, known = [], []
    for source, target, run in language_pairs(service.runs):
        known.append(f"{source} to {target}")
        if query.target == target and query.source in (source, "auto"):
            found.append((source, run))
    if len(found) != 1:
        expected = f"expected one of: {', '.join(known) or 'no run from text to text is served'}"
        number = "several runs translate" if found else "no run translates"
        raise RequestError(400, f"{number} from {query.source} to {query.target}; {expected}")
    return found[0]


def language_pairs(runs: Mapping[str, ServedRun]) -> Iterator[tuple[str, str, ServedRun]]:
    """Yield the source and the target of each run from text to text, and the run."""
    for name, run in runs.items():
        if run.answer is GeneratedTexts and run.input == "text":
            codes = name.split("-")
            is_pair = len(codes) == 2 and all(map(_name, codes))
            yield (codes[0], codes[1], run) if is_pair else ("auto", name, run)


def _name(code: str) -> str | None:
    """Return the English name of a language; None if there is none of this code."""
    try:
        return Locale.parse(code).english_name
    except (ValueError, UnknownLocaleError):
        return None
