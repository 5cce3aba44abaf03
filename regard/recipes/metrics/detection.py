"""COCO average precision of detected boxes.

    AP    mean over classes and IoU 0.50, 0.55 .. 0.95 of the area under precision over recall
    AP50  the same at IoU 0.50; AP75 at 0.75          at most 100 boxes per image

Source: T.-Y. Lin et al., "Microsoft COCO: Common Objects in Context", ECCV 2014, computed by faster-coco-eval.
"""

import contextlib
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster
from numpy.typing import NDArray

_MAX_BOXES = 100


class ImageDetections(NamedTuple):
    """Detected boxes of an image, highest score first."""

    scores: NDArray[np.float64]
    classes: NDArray[np.int64]
    boxes: NDArray[np.float64]
    """(boxes, 4): x, y, width, height in pixels"""
    queries: NDArray[np.int64] | None = None
    """Index of the decoder query that predicted each box."""


def average_precision(
    detections: Sequence[ImageDetections],
    boxes: Sequence[NDArray[np.float64]],
    classes: Sequence[NDArray[np.int64]],
    names: Sequence[str],
) -> dict[str, Any]:
    """Return AP, AP50, AP75 and the AP50 of each class, in percent, over the classes that occur."""
    truth = {
        "images": [{"id": i + 1} for i in range(len(boxes))],
        "categories": [{"id": c + 1, "name": name} for c, name in enumerate(names)],
        "annotations": [
            {"image_id": i + 1, "category_id": int(c) + 1, "bbox": box.tolist(), "area": float(box[2] * box[3])}
            for i, (rows, kinds) in enumerate(zip(boxes, classes, strict=True))
            for box, c in zip(rows, kinds, strict=True)
        ],
    }
    for number, annotation in enumerate(truth["annotations"], start=1):
        annotation |= {"id": number, "iscrowd": 0}
    answers = [
        {"image_id": i + 1, "category_id": int(c) + 1, "bbox": box.tolist(), "score": float(score)}
        for i, image in enumerate(detections)
        for score, c, box in list(zip(image.scores, image.classes, image.boxes, strict=True))[:_MAX_BOXES]
    ]
    if not answers or not truth["annotations"]:
        return {"ap": 0.0, "ap50": 0.0, "ap75": 0.0, "by_class": dict.fromkeys(names, 0.0)}
    with contextlib.redirect_stdout(io.StringIO()):  # faster-coco-eval prints a report
        reference = COCO(truth)
        evaluation = COCOeval_faster(reference, reference.loadRes(answers), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"][:, :, :, 0, -1]  # (IoU, recall, class) of any size, at most 100
    return {
        "ap": _mean(precision),
        "ap50": _mean(precision[0]),
        "ap75": _mean(precision[5]),
        "by_class": {name: _mean(precision[0, :, c]) for c, name in enumerate(names)},
    }


def _mean(precision: NDArray[np.float64]) -> float:
    """Return the mean in percent, without -1, which marks classes that do not occur."""
    known = precision[precision > -1]
    return 100 * float(known.mean()) if known.size else 0.0
