"""OpenAPI document of the service: document.yaml with the schemas of its runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from regard import __version__
from regard.serve.conventions.libretranslate import language_pairs
from regard.serve.conventions.openai import language_models
from regard.serve.runs import ServedRun
from regard.settings.schemas import REFERENCE, Schema, type_schemas

_TEMPLATE = Path(__file__).with_name("document.yaml")
_JSON = "application/json"


def openapi(runs: Mapping[str, ServedRun], *, needs_key: bool = False) -> dict[str, Any]:
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
    for number, (name, run) in enumerate(runs.items(), start=1):
        request = _request(run, templates, is_alone=len(runs) == 1)
        schemas[f"Request{number}"] = request
        schemas["Request"]["anyOf"].append({"$ref": f"{REFERENCE}Request{number}"})
        for field, schema in request["properties"].items():
            if schema not in fields.setdefault(field, []):
                fields[field].append(schema)
        answer = _add_answer(schemas, run)
        schemas["Reply"]["properties"]["answers"]["items"]["anyOf"].append(answer)
        for kind in templates["files"][run.input]:
            sent[kind] = {"schema": {"type": "string"}}
        if run.example is not None:
            chosen = {} if len(runs) == 1 else {"run": name}
            sent[_JSON]["examples"][name] = {"value": chosen | {"inputs": [run.example]}}
        if run.answered is not None:
            reply = {"run": name, "weights": run.weights}
            reply |= {"answers": [{"input": 1, **run.answered}], "notes": []}
            replied["examples"][name] = {"value": reply}
    # Beside a body that is a file, the query has the other fields.
    fields.pop("inputs", None)
    for name, own in fields.items():
        part = {"description": own[0]["description"], "schema": {"anyOf": own}}
        predict["parameters"].append({"name": name, "in": "query", **part})
        sent["multipart/form-data"]["schema"]["properties"][name] = part["schema"]
    listed = paths["/v1/runs"]["get"]["responses"]["200"]["content"][_JSON]
    listed["example"] = {"runs": [run.facts for run in runs.values()]}
    return document


def _request(run: ServedRun, templates: Mapping[str, Any], *, is_alone: bool) -> Schema:
    """Return the schema of a request of a run as JSON; the only run needs no name."""
    items = templates["inputs"]["tokens" if run.reads_tokens else run.input]
    if run.input == "text" and not run.reads_tokens:
        items = items | {"maxLength": run.limits.characters}
    inputs = {"type": "array", "minItems": 1, "maxItems": run.limits.inputs, "items": items}
    names = [run.name, None] if is_alone else [run.name]
    properties = {"run": {"enum": names, "description": "Name of the run."}, "inputs": inputs}
    return {
        "type": "object",
        "title": run.name,
        "properties": properties | templates["fields"] | run.facts["options"],
        "required": ["inputs"] if is_alone else ["run", "inputs"],
        "additionalProperties": False,
    }


def _add_answer(schemas: dict[str, Schema], run: ServedRun) -> Schema:
    """Add the schemas of an answer, which has the number of its input; return a reference to it."""
    own = type_schemas(run.answer)
    name, *_ = own
    number = {"type": "integer", "minimum": 1, "description": "Number of the input, from 1."}
    answer = own[name]
    properties = {"input": number} | answer["properties"]
    own[name] = answer | {"properties": properties, "required": ["input", *answer["required"]]}
    schemas |= own
    return {"$ref": f"{REFERENCE}{name}"}


def _describe_conventions(paths: dict[str, Any], runs: Mapping[str, ServedRun]) -> None:
    """Name a run in the examples of each convention; remove its paths if no run answers them."""
    pairs, models = [*language_pairs(runs)], [*language_models(runs)]
    if pairs:
        body = paths["/translate"]["post"]["requestBody"]["content"][_JSON]
        body["example"]["target"] = pairs[0][1]
    else:
        del paths["/translate"], paths["/languages"]
    if models:
        body = paths["/v1/completions"]["post"]["requestBody"]["content"][_JSON]
        body["example"]["model"] = models[0]
        paths["/v1/models/{name}"]["get"]["parameters"][0]["example"] = models[0]
    else:
        del paths["/v1/completions"], paths["/v1/models"], paths["/v1/models/{name}"]
