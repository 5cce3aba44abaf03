"""Tasks of Label Studio: records of its JSON export.

{"data": {...}, "annotations": [{"result": [{"type": "labels", "value": {...}}],
                                 "was_cancelled": false}]}

Source: labelstud.io/guide/task_format.
"""

from typing import Any

import msgspec

from regard.data.bad_rows import LeftOutError
from regard.errors import UserError


class _Result(msgspec.Struct):
    type: str = ""
    value: dict[str, Any] = {}
    image_rotation: float = 0


class _Annotation(msgspec.Struct):
    result: list[_Result]
    was_cancelled: bool = False


class _Task(msgspec.Struct):
    data: dict[str, Any]
    annotations: list[_Annotation]


def read_task(record: Any, kind: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the data of a task, and the values of the results of a type, such as `labels`. Raises
    LeftOutError for a task without an annotation, UserError for one with several or with labels of
    another type, and msgspec.ValidationError for another record."""
    if isinstance(record, dict) and "annotation_id" in record:
        raise UserError("is of the export JSON-MIN of Label Studio, expected its JSON")
    task = msgspec.convert(record, _Task)
    annotations = [found for found in task.annotations if not found.was_cancelled]
    if not annotations:
        raise LeftOutError("has no annotation")
    if len(annotations) > 1:
        raise UserError(f"has {len(annotations)} annotations, expected one")
    values = []
    for result in annotations[0].result:
        if result.image_rotation:
            raise UserError(f"was drawn on an image rotated by {result.image_rotation:g} degrees")
        if result.type == kind:
            values.append(result.value)
        elif result.type.endswith(("labels", "rectangle")):  # others are no regions, as choices
            raise UserError(f"has a result of the type {result.type}, expected {kind}")
    return task.data, values
