"""OpenAPI document of the service: document.yaml with the schemas of its runs."""

import copy
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from regard import __version__
from regard.settings.schemas import REFERENCE, Schema, type_schemas

_TEMPLATE = Path(__file__).with_name("document.yaml")
_JSON, _PROBLEM = "application/json", "application/problem+json"
_FORM = "multipart/form-data"


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
    paths, components = document["paths"], document["components"]
    templates, schemas = document.pop("templates"), components["schemas"]
    components["responses"] = _problems(document.pop("problems"))
    if needs_key:
        document["security"] = [{"key": []}]
    for path, operations in [*paths.items()]:
        for operation in operations.values():
            _add_problems(operation)
            if not _has_run(operation, runs):
                del paths[path]
    predict = paths["/v1/predict"]["post"]
    named: dict[str, list[Schema]] = {"Request": [], "Reply": []}
    for number, run in enumerate(runs, start=1):
        own = type_schemas(run.answer)
        answer, *_ = own
        schemas |= own | {answer: _with_input(own[answer])}
        schemas[f"Request{number}"] = _request(run, templates, is_alone=len(runs) == 1)
        schemas[f"Reply{number}"] = _reply(run, answer, templates)
        for name, all_of_name in named.items():
            all_of_name.append({"$ref": f"{REFERENCE}{name}{number}"})
    schemas |= {name: {"anyOf": references} for name, references in named.items()}
    predict["parameters"] = _parameters(schemas, len(runs))
    content = _bodies(runs, templates["files"])
    fields = {own["name"]: own["schema"] for own in predict["parameters"]}
    content[_FORM]["schema"]["properties"] |= fields
    predict["requestBody"] = {"required": True, "content": content}
    replied = predict["responses"]["200"]["content"][_JSON]
    for run in runs:
        if run.answered is not None:
            answers = {"answers": [{"input": 1, **run.answered}], "notes": []}
            head = {"run": run.facts["name"], "weights": run.facts["weights"]}
            replied.setdefault("examples", {})[head["run"]] = {"value": head | answers}
    listed = paths["/v1/runs"]["get"]["responses"]["200"]["content"][_JSON]
    listed["example"] = {"runs": [dict(run.facts) for run in runs]}
    return document


def _has_run(operation: dict[str, Any], runs: Sequence[DescribedRun]) -> bool:
    """Return True unless an operation needs a kind of run that is absent; name it in examples."""
    only = operation.pop("only", None)
    names = []
    for run in runs:
        if run.answer.__name__ == only and run.facts["input"] == "text":
            names.append(run.facts["name"])
    if only is None or not names:
        return only is None
    pair = re.fullmatch("[a-z]{2,3}-([a-z]{2,3})", names[0])
    named = {"RUN": names[0], "LANGUAGE": pair[1] if pair else names[0]}
    for part in operation.get("requestBody", {}).get("content", {}).values():
        for key, value in part["example"].items():
            part["example"][key] = named.get(str(value), value)
    for part in operation.get("parameters", ()):
        part["example"] = names[0]
    return True


def _add_problems(operation: dict[str, Any]) -> None:
    """Add the responses of the problems of an operation; that of a convention has its own form."""
    statuses, form = operation.pop("problems"), operation.pop("errors", None)
    for status in statuses:
        response: dict[str, Any] = {"$ref": f"#/components/responses/Problem{status}"}
        if form is not None:
            content = {_JSON: {"schema": {"$ref": f"{REFERENCE}{form}"}}}
            content[_PROBLEM] = {"schema": {"$ref": f"{REFERENCE}Problem"}}
            response = {"description": HTTPStatus(status).phrase, "content": content}
        operation["responses"].setdefault(str(status), response)


def _problems(meanings: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the responses of errors by name, with an example each."""
    responses = {}
    for status, parts in meanings.items():
        title = HTTPStatus(status).phrase
        example = {"type": "about:blank", "title": title, "status": status}
        example |= {name: parts[name] for name in ("detail", "at") if name in parts}
        content = {_PROBLEM: {"schema": {"$ref": f"{REFERENCE}Problem"}, "example": example}}
        response = {"description": parts["meaning"], "headers": parts.get("headers", {})}
        responses[f"Problem{status}"] = response | {"content": content}
    return responses


def _with_input(answer: Schema) -> Schema:
    """Return the schema of an answer with the number of its input."""
    number = {"type": "integer", "minimum": 1, "description": "Number of the input, from 1."}
    properties = {"input": number} | answer.get("properties", {})
    return answer | {"properties": properties, "required": ["input", *answer.get("required", [])]}


def _request(run: DescribedRun, templates: Mapping[str, Any], *, is_alone: bool) -> Schema:
    """Return the schema of a request of a run as JSON; the only run needs no name."""
    facts, schema = run.facts, copy.deepcopy(templates["request"])
    properties = schema["properties"]
    properties["run"] |= {"enum": [facts["name"], None] if is_alone else [facts["name"]]}
    kind = "tokens" if run.reads_tokens else facts["input"]
    items = dict(templates["inputs"][kind])
    if kind == "text":
        items["maxLength"] = facts["limits"]["characters"]
    properties["inputs"] |= {"maxItems": facts["limits"]["inputs"], "items": items}
    properties |= facts["options"]
    required = ["inputs"] if is_alone else ["run", "inputs"]
    return schema | {"title": facts["name"], "required": required}


def _reply(run: DescribedRun, answer: str, templates: Mapping[str, Any]) -> Schema:
    """Return the schema of the reply of a run; answer: the name of the schema of its answers."""
    schema = copy.deepcopy(templates["reply"])
    schema["properties"]["run"] |= {"enum": [run.facts["name"]]}
    answers = [{"$ref": f"{REFERENCE}{name}"} for name in (answer, "SkippedInput")]
    schema["properties"]["answers"]["items"] = {"anyOf": answers}
    return schema | {"title": run.facts["name"]}


def _bodies(runs: Sequence[DescribedRun], files: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the content of a request: JSON, a form, or a file itself."""
    text = {"type": "string"}
    inputs = {"type": "array", "minItems": 1, "items": text, "description": "Files, or texts."}
    form: Schema = {"type": "object", "properties": {"inputs": inputs}, "required": ["inputs"]}
    form["additionalProperties"] = False
    as_json: dict[str, Any] = {"schema": {"$ref": f"{REFERENCE}Request"}, "examples": {}}
    content = {_JSON: as_json, _FORM: {"schema": form}}
    for run in runs:
        name = run.facts["name"]
        if run.facts["example"] is not None:
            chosen = {} if len(runs) == 1 else {"run": name}
            as_json["examples"][name] = {"value": {**chosen, "inputs": [run.facts["example"]]}}
        content |= {kind: {"schema": text} for kind in files[run.facts["input"]]}
    return content


def _parameters(schemas: Mapping[str, Schema], count: int) -> list[dict[str, Any]]:
    """Return what the query may have beside a body that is a file: the fields of all requests."""
    found: dict[str, list[Schema]] = {}
    for number in range(1, count + 1):
        for name, schema in schemas[f"Request{number}"]["properties"].items():
            own = found.setdefault(name, [])
            if name != "inputs" and schema not in own:
                own.append(schema)
    parameters = []
    for name, own in found.items():
        if own:
            schema = own[0] if len(own) == 1 else {"anyOf": own}
            text = own[0]["description"]
            parameters.append({"name": name, "in": "query", "description": text, "schema": schema})
    return parameters
