"""The OpenAPI document of services of every recipe, and of several runs."""

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import create_autospec

import jsonschema_rs
import pytest
import schemathesis

from regard.recipes.registry import RECIPES
from regard.serve.config import LimitsConfig
from regard.serve.guard import OPEN
from regard.serve.openapi.document import openapi
from regard.serve.runs import ServedRun
from regard.serve.schemas import option_schemas, option_settings
from regard.settings.tree import to_plain
from tests.serve.document import validator


def describe_run(
    recipe: str, name: str = "", *, example: Any = "a text", answered: Any = None
) -> ServedRun:
    """Return a run of default settings, without a model."""
    entry = RECIPES[recipe]
    config = entry.config()
    run = create_autospec(ServedRun, instance=True)
    run.name, run.weights, run.limits = name or recipe, "ab" * 32, LimitsConfig()
    run.input, run.reads_tokens = entry.input_of(config), recipe == "tags"
    run.answer, run.example, run.answered = entry.answer_of(config), example, answered
    options = option_schemas(option_settings(entry, config, {"beam": 16}))
    run.facts = {"name": run.name, "recipe": recipe, "input": run.input, "options": options}
    run.facts |= {"streams": False, "labels": None, "limits": to_plain(run.limits)}
    run.facts |= {"engine": "torch", "weights": run.weights, "parameters": 3, "example": example}
    return run


def document_of(*runs: ServedRun, needs_key: bool = False) -> dict[str, Any]:
    return openapi({run.name: run for run in runs}, needs_key=needs_key)


def examples(part: Any) -> Iterator[tuple[Any, Any]]:
    """Yield all examples below a part of a document, with their schemas."""
    if isinstance(part, list):
        for item in part:
            yield from examples(item)
    elif isinstance(part, dict):
        if "schema" in part and "example" in part:
            yield part["schema"], part["example"]
        for named in part.get("examples", {}).values() if "schema" in part else ():
            yield part["schema"], named["value"]
        for item in part.values():
            yield from examples(item)


@pytest.mark.parametrize("recipe", RECIPES)
def test_document_of_a_recipe_is_valid(recipe: str) -> None:
    document = json.loads(json.dumps(document_of(describe_run(recipe), needs_key=True)))
    schema = schemathesis.openapi.from_dict(document)
    schema.validate()
    count = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        count += 1
        assert operation.definition.raw["summary"]
        assert operation.definition.raw["responses"].keys() >= {"200", "403", "405"}
        if "requestBody" in operation.definition.raw:
            assert operation.definition.raw["responses"].keys() >= {"408", "413", "429", "504"}
    assert count >= 9


def test_examples_conform_to_their_schemas() -> None:
    answer = {"outputs": [{"text": "a", "score": -0.4, "log_prob": -0.8, "finished": True}]}
    document = document_of(describe_run("translate", answered=answer), describe_run("language"))
    found = [*examples(document["paths"]), *examples(document["components"]["responses"])]
    for schema, example in found:
        jsonschema_rs.validate(schema | {"components": document["components"]}, example)
    assert len(found) >= 24
    del document["paths"]["/openapi.json"]
    for operations in document["paths"].values():
        for operation in operations.values():
            reply = operation["responses"]["200"]["content"].get("application/json", {})
            assert not reply or [*examples(reply)]


def test_paths_of_conventions_are_those_of_the_runs() -> None:
    paths = {name: set(document_of(describe_run(name))["paths"]) for name in RECIPES}
    assert {name for name in RECIPES if "/translate" in paths[name]} == {"translate", "dates"}
    assert {name for name in RECIPES if "/v1/completions" in paths[name]} == {"language"}
    assert all("/v1/predict" in own for own in paths.values())


def test_request_is_checked_with_its_options() -> None:
    document = document_of(describe_run("translate"))
    check = validator(document, "Request1")
    for value in (
        {"inputs": ["a"]},
        {"inputs": ["a"], "beam": 4, "n_best": 2, "run": "translate", "on_bad": "skip"},
        {"inputs": ["a"], "run": None, "deadline": 2.5, "look": True, "stream": False},
    ):
        assert check.is_valid(value)
    for value in (
        {},
        {"inputs": []},
        {"inputs": "a"},
        {"inputs": [3]},
        {"inputs": ["a"] * 257},
        {"inputs": ["a" * 65_537]},
        {"inputs": ["a"], "beam": 17},
        {"inputs": ["a"], "beam": "4"},
        {"inputs": ["a"], "batch_tokens": 4},
        {"inputs": ["a"], "run": "other"},
        {"inputs": ["a"], "deadline": 0},
        {"inputs": ["a"], "on_bad": "truncate"},
    ):
        assert not check.is_valid(value)


@pytest.mark.parametrize(
    ("recipe", "good", "bad"),
    [
        ("tags", [["Ann", "sees"], "Ann sees"], [3, [3]]),
        ("images", ["aGk="], [3, [[0.5]]]),
        ("points", ["aGk=", [[0, 0, 1], [0, 1, 0.5, 7]]], [[[0, 0]], 3]),
        ("tracks", ["aGk=", [[[0, 0], [0, 1]]]], [[[0, 0]], [[[0, 0, 0]]]]),
    ],
)
def test_inputs_of_a_kind(recipe: str, good: list[Any], bad: list[Any]) -> None:
    check = validator(document_of(describe_run(recipe)), "Request1")
    assert all(check.is_valid({"inputs": [value]}) for value in good)
    assert not any(check.is_valid({"inputs": [value]}) for value in bad)


def test_reply_has_an_answer_or_an_error_for_each_input() -> None:
    runs = describe_run("reviews"), describe_run("dates"), describe_run("reviews", "other")
    document = document_of(*runs)
    check = validator(document, "Reply")
    answer = {"input": 1, "label": "a", "probability": 0.5, "labels": {"a": 0.5, "b": 0.5}}
    reply = {"run": "reviews", "weights": "ab", "answers": [answer], "notes": []}
    assert check.is_valid(reply)
    assert check.is_valid(reply | {"answers": [answer, {"input": 2, "error": "too long"}]})
    assert check.is_valid(reply | {"look": {"page": None, "rows": None, "note": "too large"}})
    assert not check.is_valid(reply | {"more": 1})
    assert not check.is_valid(reply | {"answers": [answer | {"error": "too long"}]})
    assert not check.is_valid(reply | {"answers": [{"label": "a"}]})


def test_several_runs_need_a_name_and_have_the_options_of_all() -> None:
    document = document_of(describe_run("dates"), describe_run("boxes", example=None))
    predict = document["paths"]["/v1/predict"]["post"]
    content = predict["requestBody"]["content"]
    assert content["application/json"]["examples"] == {
        "dates": {"value": {"run": "dates", "inputs": ["a text"]}}
    }
    assert {"text/plain", "image/png", "multipart/form-data"} <= set(content)
    names = [parameter["name"] for parameter in predict["parameters"]]
    assert len(set(names)) == len(names)
    assert {"run", "beam", "threshold", "on_bad"} <= set(names)
    assert not validator(document, "Request1").is_valid({"inputs": ["a"]})
    assert validator(document, "Request1").is_valid({"inputs": ["a"], "run": "dates"})


def test_keys_are_needed_except_for_open_paths() -> None:
    document = document_of(describe_run("dates"), needs_key=True)
    assert document["security"] == [{"key": []}]
    is_open = {}
    for path, operations in document["paths"].items():
        is_open[path] = all(operation.get("security") == [] for operation in operations.values())
    assert {path for path in is_open if is_open[path]} == {*OPEN, "/v1/looks/{id}"}
    assert "security" not in document_of(describe_run("dates"))
