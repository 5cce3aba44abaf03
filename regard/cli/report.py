"""Scores and outputs as people read them."""

from collections.abc import Mapping, Sequence
from typing import Any

_NAMES = {
    "exact": "exact match, %",
    "ceiling": "most that a perfect reader gets, %",
    "bleu": "BLEU",
    "accuracy": "accuracy, %",
    "drawn": "drawings that show what was asked for, %",
    "items": "items asked for that are seen, %",
    "drawn_real": "real canvases that show it, as they are judged, %",
    "drawn_rebuilt": "the same through the autoencoder, %",
    "judge_accuracy": "accuracy of the judge on real images, %",
    "error": "mean squared error a pixel, of pixels within [0, 1]",
    "error_pca": "the same by as many principal components",
    "codes_used": "codes in use",
    "code_perplexity": "perplexity of their use",
    "ap": "AP, %",
    "ap50": "AP50, %",
    "ap75": "AP75, %",
    "f1": "F1 of events, onset within 50 ms, %",
    "f1_200ms": "F1 of events, onset and offset within 200 ms, %",
    "f1_segments": "F1 of segments of a second, %",
    "onset_ms": "mean error of their onset, ms",
    "duration_ms": "mean error of their duration, ms",
    "ade": "ADE, m",
    "fde": "FDE, m",
    "ade_walking_on": "ADE of walking on at the last step, m",
    "fde_walking_on": "FDE of walking on at the last step, m",
    "micro_f1": "micro F1, %",
    "macro_f1": "macro F1, %",
    "average_precision": "mean average precision, %",
    "entity_f1": "entity F1, %",
    "entity_precision": "entity precision, %",
    "entity_recall": "entity recall, %",
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
    "r2": "R^2",
    "bits": "bits a token",
    "unknown": "unknown tokens, %",
    "nll": "nll, nats a token",
    "perplexity": "perplexity a token",
}
_WIDE = 48


def score_table(scores: Mapping[str, Any]) -> str:
    """One test's scores, how they were made, and a few outputs."""
    title = f"{scores['data']}: {scores['examples']:,} examples"
    if "beam" in scores:
        title += ", greedy search" if scores["beam"] == 1 else f", beam {scores['beam']}"
    names = _NAMES if "perplexity" in scores else _NAMES | {"nll": "nll, nats"}
    numbers = {name: value for name, value in scores.items() if isinstance(value, float)} | {
        name: scores[name] for name in names if name in scores
    }
    # What has no name here, such as the scores of a user's own recipe, goes under the one it was given.
    order = [*(name for name in names if name in numbers), *(name for name in numbers if name not in names)]
    rows = [[names.get(name, name.replace("_", " ")), f"{numbers[name]:.4g}"] for name in order]
    rows.append(["signature", scores["signature"]])
    classes = [[name, f"{value:.1f}"] for name, value in scores.get("by_class", {}).items()]
    told = f"\n\nby class, %\n{table(classes)}" if classes else ""
    samples = []
    for one in scores["samples"]:
        right = "" if one["output"] == one["reference"] else f"(reference: {one['reference']})"
        samples.append([one["source"].strip(), one["output"], right])
    shown = f"\n\nsome outputs\n{table(samples)}" if samples else ""
    return f"{title}\n{table(rows)}{told}{shown}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns lined up, two spaces apart; a very wide cell sticks out and widens nothing."""
    rows = [[cell.replace("\n", "\\n") for cell in row] for row in rows]  # a line is a row
    columns = list(zip(*rows, strict=True))
    widths = [max((len(cell) for cell in column if len(cell) <= _WIDE), default=0) for column in columns]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(f"  {line.rstrip()}" for line in lines)
