"""Average precision of detected boxes in images (COCO) and in point clouds.

    AP    mean over classes and IoU 0.50, 0.55 .. 0.95 of the area under precision over recall
    AP50  the same at IoU 0.50; AP75 at 0.75; AP25 at 0.25; of at most 100 boxes of a class in an
          image or cloud
    AR    mean over classes and IoU 0.50, 0.55 .. 0.95 of the recall of these boxes
    IoU   area or volume of the intersection over that of the union

In AP, precision is the largest at any higher recall, and is averaged over the recalls 0, 0.01 .. 1.
Precision, recall and F1 of a class are those of the boxes with a score of at least a threshold,
which count as correct if they match a box of their class: one after the other, highest score first,
each with the free box of the largest IoU, if that is at least 0.5 (in clouds 0.25). A crowd is a
region of a group of objects; a detection of its class of which half lies in it is not an error.

Source: T.-Y. Lin et al., "Microsoft COCO: Common Objects in Context", ECCV 2014, computed by
faster-coco-eval; in three dimensions AP25 and AP50 as in misra2021.
"""

import contextlib
import io
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.recipes.metrics.counts import count_scores

_MAX_BOXES = 100
_CLOUD_IOU = (0.25, 0.5)
_SIZES = ("small", "medium", "large")
_AREAS = (0, 32**2, 96**2, 1e10)
"""Bounds of the areas of each size in COCO; an area on a bound belongs to both."""


class Detections(NamedTuple):
    """Detected boxes of an image or a cloud, highest score first."""

    scores: NDArray[np.float64]
    classes: NDArray[np.int64]
    boxes: NDArray[np.float64]
    """Images (boxes, 4): x, y, width, height in pixels; clouds (boxes, 6): first corner, size"""
    queries: NDArray[np.int64] | None = None
    """Index of the decoder query that predicted each box."""


class Truth(NamedTuple):
    """Annotated boxes of an image or a cloud, in the form of `Detections.boxes`."""

    boxes: NDArray[np.float64]
    classes: NDArray[np.int64]
    areas: NDArray[np.float64]
    """Areas by which objects are small, medium or large."""
    is_crowd: NDArray[np.bool_]


def average_precision(
    detections: Sequence[Detections],
    truths: Sequence[Truth],
    names: Sequence[str],
    *,
    threshold: float,
) -> dict[str, Any]:
    """Return scores over classes, and those of each class, in percent.

    Of images: AP, AP50, AP75 and AR, and AP and AR of small, medium and large boxes (areas up to
    32^2 pixels, up to 96^2 and above), if the images have such boxes. Of clouds: AP25 and AP50.

    threshold: lowest score of the boxes whose precision, recall and F1 are computed.
    """
    is_cloud = detections[0].boxes.shape[1] == 6
    precision, recall = _curves(detections, truths, names, is_cloud=is_cloud)
    scores: dict[str, Any] = {}
    if is_cloud:
        scores |= {"ap25": _mean(precision[0, ..., 0]), "ap50": _mean(precision[1, ..., 0])}
    else:
        scores |= {"ap": _mean(precision[..., 0]), "ap50": _mean(precision[0, ..., 0])}
        scores |= {"ap75": _mean(precision[5, ..., 0]), "ar": _mean(recall[..., 0])}
        areas = np.concatenate([truth.areas[~truth.is_crowd] for truth in truths])
        for metric, curve in (("ap", precision), ("ar", recall)):
            for i, size in enumerate(_SIZES, start=1):
                if ((areas >= _AREAS[i - 1]) & (areas <= _AREAS[i])).any():
                    scores[f"{metric}_{size}"] = _mean(curve[..., i])
    iou = _CLOUD_IOU[0] if is_cloud else 0.5
    hits, found = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
    for image, truth in zip(detections, truths, strict=True):
        kept = image.scores >= threshold
        kinds, boxes = image.classes[kept], image.boxes[kept]
        is_same = kinds[:, None] == truth.classes
        overlaps = np.where(is_same & ~truth.is_crowd, box_iou(boxes, truth.boxes), 0)
        half = boxes[:, boxes.shape[1] // 2 :].prod(1)[:, None] / 2
        is_inside = (intersections(boxes, truth.boxes) >= half) & (half > 0)
        is_ignored = (is_same & truth.is_crowd & is_inside).any(1)
        for c, row, ignores in zip(kinds, overlaps, is_ignored, strict=True):
            if row.size and row.max() >= iou:
                hits[c] += 1
                overlaps[:, row.argmax()] = 0
            elif ignores:
                continue
            found[c] += 1
    classes = np.concatenate([truth.classes[~truth.is_crowd] for truth in truths])
    present = np.bincount(classes, minlength=len(names))
    rows = count_scores(names, hits.tolist(), found.tolist(), present.tolist())
    for c, name in enumerate(names):
        rows[name] = {"ap25" if is_cloud else "ap50": _mean(precision[0, :, c, 0])} | rows[name]
    return scores | {"classes": rows}


def intersections(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the area or volume (a, b) that boxes (a, 2 axes) and (b, 2 axes) have in common."""
    axes = a.shape[1] // 2
    first = np.maximum(a[:, None, :axes], b[None, :, :axes])
    last = np.minimum(a[:, None, :axes] + a[:, None, axes:], b[None, :, :axes] + b[None, :, axes:])
    return (last - first).clip(min=0).prod(-1)


def box_iou(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the IoU (a, b) of boxes (a, 2 axes) and (b, 2 axes), by first corner and sizes."""
    axes, both = a.shape[1] // 2, intersections(a, b)
    either = a[:, None, axes:].prod(-1) + b[None, :, axes:].prod(-1) - both
    return both / np.maximum(either, np.finfo(np.float64).tiny)


def _cloud_iou(evaluation: Any, cloud: int, category: int) -> Any:
    """Return the IoU (detections, boxes) of the entries `box`, by decreasing score."""
    truth = evaluation.gt_dataset.get_instances([cloud], [category], True)[0][0]
    found = evaluation.dt_dataset.get_instances([cloud], [category], True)[0][0]
    if not truth or not found:
        return []
    order = np.argsort([-entry["score"] for entry in found], kind="mergesort")[:_MAX_BOXES]
    boxes = np.array([found[i]["box"] for i in order])
    return box_iou(boxes, np.array([entry["box"] for entry in truth]))


def _curves(
    detections: Sequence[Detections],
    truths: Sequence[Truth],
    names: Sequence[str],
    *,
    is_cloud: bool,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return precision (IoU, recall, class, size), recall (IoU, class, size); -1 without a box.

    Sizes are: all, small, medium, large.
    """
    annotations: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    for i, truth in enumerate(truths, start=1):
        for box, c, area, is_crowd in zip(*truth, strict=True):
            one = {"id": len(annotations) + 1, "image_id": i, "category_id": int(c) + 1}
            annotations.append(one | {"area": float(area), "iscrowd": int(is_crowd)} | _entry(box))
    for i, image in enumerate(detections, start=1):
        for score, c, box in zip(image.scores, image.classes, image.boxes, strict=True):
            one = {"image_id": i, "category_id": int(c) + 1, "score": float(score)}
            answers.append(one | _entry(box))
    if not answers or not annotations:
        return np.zeros((10, 1, len(names), 4)), np.zeros((10, len(names), 4))
    from faster_coco_eval import COCO, COCOeval_faster  # noqa: PLC0415

    truth = {
        "images": [{"id": i + 1} for i in range(len(truths))],
        "categories": [{"id": c + 1, "name": name} for c, name in enumerate(names)],
        "annotations": annotations,
    }
    with contextlib.redirect_stdout(io.StringIO()):  # faster-coco-eval prints a report
        reference = COCO(truth)
        evaluation: Any = COCOeval_faster(reference, reference.loadRes(answers), "bbox")
        if is_cloud:
            evaluation.params.iouThrs = np.array(_CLOUD_IOU)
            evaluation.computeIoU = partial(_cloud_iou, evaluation)
        evaluation.evaluate()
        evaluation.accumulate()
    curves = evaluation.eval
    return curves["precision"][..., -1], curves["recall"][..., -1]  # at most 100 boxes of a class


def _entry(box: NDArray[np.float64]) -> dict[str, list[float]]:
    """Return a box as an entry of COCO: `bbox` has two axes, `box` all."""
    sides, axes = box.tolist(), len(box) // 2
    return {"bbox": [*sides[:2], *sides[axes : axes + 2]], "box": sides}


def _mean(values: NDArray[np.float64]) -> float:
    """Return the mean in percent, without -1, which marks classes that do not occur."""
    known = values[values > -1]
    return 100 * float(known.mean()) if known.size else 0.0
