"""Answers of a run as JSON have the form of the schema of its recipe."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jsonschema_rs

from regard.settings.schemas import REFERENCE, type_schemas

OPTIONAL = ("pixels",)
"""Keys of answers that may be absent: in Python an image has pixels, elsewhere a file."""


def check_answers(
    run: Any, answers: Sequence[Mapping[str, Any]], origin: Sequence[str] = ()
) -> None:
    """Fail unless all answers have exactly the keys and kinds of the type that the run names.

    origin: keys of the input, which `regard predict --json` adds, and which may be absent.
    """
    schemas = type_schemas(run.recipe.entry.answer_of(run.config))
    first, *_ = schemas
    document = {"$ref": f"{REFERENCE}{first}", "components": {"schemas": schemas}}
    validator = jsonschema_rs.validator_for(document)
    for answer in answers:
        validator.validate({key: part for key, part in answer.items() if key not in origin})


def changed_keys(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield copies of an answer without one of its keys, and with one more, at each depth."""
    yield {**answer, "other": 1}
    for key, part in answer.items():
        if key not in OPTIONAL:
            yield {name: value for name, value in answer.items() if name != key}
        if isinstance(part, list) and part and isinstance(part[0], dict):
            for changed in changed_keys(part[0]):
                yield {**answer, key: [changed, *part[1:]]}
