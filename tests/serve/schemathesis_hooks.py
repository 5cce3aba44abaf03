"""Changes of the requests that schemathesis makes, so that many of them have answers."""

import random
from typing import Any

import schemathesis
from schemathesis import GenerationMode


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Give a valid JSON body no query, a deadline that can be kept, and often the example's inputs.

    With files, nearly all texts of the schema are no file.
    """
    is_valid = case.meta is None or case.meta.generation.mode == GenerationMode.POSITIVE
    if not is_valid or case.media_type != "application/json" or not isinstance(case.body, dict):
        return
    case.query = {}
    examples = case.operation.definition.raw["requestBody"]["content"]["application/json"]
    values = [one["value"] for one in examples.get("examples", {}).values()]
    for example in values:
        if example.get("run") == case.body.get("run") and random.random() < 0.5:
            case.body["inputs"] = example["inputs"]
    if case.body.get("deadline") is not None:
        case.body["deadline"] = max(5.0, case.body["deadline"])
