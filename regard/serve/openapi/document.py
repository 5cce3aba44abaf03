"""OpenAPI document of the service: document.yaml with the schemas of its runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from regard import __version__
from regard.recipes.base.answers import ContinuedText, GeneratedTexts
from regard.serve.conventions.libretranslate import languages_of
from regard.settings.schemas import REFERENCE, Schema, type_schemas

_TEMPLATE = Path(__file__).with_name("document.yaml")
_JSON = "application/json"


class DescribedRun(NamedTuple):
    """A run as the document describes it."""

    facts: Mapping[str, Any]
    """Its entry in `GET /v1/runs`."""
    answer: type[Any]
    """Type of its answers (`Entry.answer_of`)."""
    reads_tokens: bool = False
    """True if an input may be a list of tokens."""
    answered: Mapping[str, Any] | None = None
    """Answer to its example."""


def openapi(runs: Sequence[DescribedRun], *, needs_key: bool = False) -> dict[str, Any]:
    """Return the OpenAPI document of a service of these runs.

    needs_key: a bearer key is needed, except where an operation has no security.
    """
    document = yaml.safe_load(_TEMPLATE.read_text(encoding="utf-8"))
    document["info"]["version"] = __version__
    if needs_key:
        document["security"] = [{"key": []}]
    templates, paths = document.pop("templates"), document["paths"]
    for operations in paths.values():
        for operation in operations.values():
            form = operation.pop("errors", None)
            for status in operation.pop("problems"):
                name = form or f"Problem{status}"
                operation["responses"][str(status)] = {"$ref": f"#/components/responses/{name}"}
    _describe_conventions(paths, runs)
    schemas, predict = document["components"]["schemas"], paths["/v1/predict"]["post"]
    sent = predict["requestBody"]["content"]
    replied = predict["responses"]["200"]["content"][_JSON]
    fields: dict[str, list[Schema]] = {}
    for number, run in enumerate(runs, start=1):
        name, example = run.facts["name"], run.facts["example"]
        request = _request(run, templates, is_alone=len(runs) == 1)
        schemas[f"Request{number}"] = request
        schemas["Request"]["anyOf"].append({"$ref": f"{REFERENCE}Request{number}"})
        for field, schema in request["properties"].items():
            if schema not in fields.setdefault(field, []):
                fields[field].append(schema)
        answer = _add_answer(schemas, run)
        schemas["Reply"]["properties"]["answers"]["items"]["anyOf"].append(answer)
        for kind in templates["files"][run.facts["input"]]:
            sent[kind] = {"schema": {"type": "string"}}
        if example is not None:
            chosen = {} if len(runs) == 1 else {"run": name}
            sent[_JSON]["examples"][name] = {"value": chosen | {"inputs": [example]}}
        if run.answered is not None:
            reply = {"run": name, "weights": run.facts["weights"]}
            reply |= {"answers": [{"input": 1, **run.answered}], "notes": []}
            replied["examples"][name] = {"value": reply}
    # Beside a body that is a file, the query has the other fields.
    fields.pop("inputs", None)
    for name, own in fields.items():
        part = {"description": own[0]["description"], "schema": {"anyOf": own}}
        predict["parameters"].append({"name": name, "in": "query", **part})
        sent["multipart/form-data"]["schema"]["properties"][name] = part["schema"]
    listed = paths["/v1/runs"]["get"]["responses"]["200"]["content"][_JSON]
    listed["example"] = {"runs": [dict(run.facts) for run in runs]}
    return document


def _request(run: DescribedRun, templates: Mapping[str, Any], *, is_alone: bool) -> Schema:
    """Return the schema of a request of a run as JSON; the only run needs no name."""
    facts = run.facts
    kind = "tokens" if run.reads_tokens else facts["input"]
    items = templates["inputs"][kind]
    if kind == "text":
        items = items | {"maxLength": facts["limits"]["characters"]}
    inputs = {"type": "array", "minItems": 1, "maxItems": facts["limits"]["inputs"], "items": items}
    names = [facts["name"], None] if is_alone else [facts["name"]]
    properties = {"run": {"enum": names, "description": "Name of the run."}, "inputs": inputs}
    return {
        "type": "object",
        "title": facts["name"],
        "properties": properties | templates["fields"] | facts["options"],
        "required": ["inputs"] if is_alone else ["run", "inputs"],
        "additionalProperties": False,
    }


def _add_answer(schemas: dict[str, Schema], run: DescribedRun) -> Schema:
    """Add the schemas of an answer, which has the number of its input; return a reference to it."""
    own = type_schemas(run.answer)
    name, *_ = own
    number = {"type": "integer", "minimum": 1, "description": "Number of the input, from 1."}
    answer = own[name]
    properties = {"input": number} | answer["properties"]
    own[name] = answer | {"properties": properties, "required": ["input", *answer["required"]]}
    schemas |= own
    return {"$ref": f"{REFERENCE}{name}"}


def _describe_conventions(paths: dict[str, Any], runs: Sequence[DescribedRun]) -> None:
    """Name a run in the examples of each convention; remove its paths if no run answers them."""
    translating, continuing = [], []
    for run in runs:
        if run.answer is GeneratedTexts and run.facts["input"] == "text":
            translating.append(run.facts["name"])
        if run.answer is ContinuedText:
            continuing.append(run.facts["name"])
    if translating:
        body = paths["/translate"]["post"]["requestBody"]["content"][_JSON]
        body["example"]["target"] = languages_of(translating[0])[1]
    else:
        del paths["/translate"], paths["/languages"]
    if continuing:
        body = paths["/v1/completions"]["post"]["requestBody"]["content"][_JSON]
        body["example"]["model"] = continuing[0]
        paths["/v1/models/{name}"]["get"]["parameters"][0]["example"] = continuing[0]
    else:
        del paths["/v1/completions"], paths["/v1/models"], paths["/v1/models/{name}"]
