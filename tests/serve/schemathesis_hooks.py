"""Changes of the requests that schemathesis makes, so that many of them have answers."""

import random
from typing import Any

import schemathesis
from schemathesis import GenerationMode

NAMES = ("model", "source", "target")
"""Fields of the conventions that name a run."""


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Change a valid JSON body: no query, a deadline that can be kept, often a run that exists.

    Half of the inputs are those of the example: nearly no text is the content of a file.
    """
    is_valid = case.meta is None or case.meta.generation.mode == GenerationMode.POSITIVE
    if not is_valid or case.media_type != "application/json" or not isinstance(case.body, dict):
        return
    content = case.operation.definition.raw["requestBody"]["content"]["application/json"]
    if case.body.get("deadline") is not None:
        case.body["deadline"] = max(5.0, case.body["deadline"])
    if "inputs" in case.body:
        case.query = {}
    if random.random() < 0.5:
        return
    for example in content.get("examples", {}).values():
        if example["value"].get("run") == case.body.get("run"):
            case.body["inputs"] = example["value"]["inputs"]
    case.body |= {name: content["example"][name] for name in NAMES if name in case.body}
