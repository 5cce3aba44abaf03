"""Tables of scores and sample outputs."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from regard.system.terminal import table

_NAMES = {
    "exact_match": "exact match, %",
    "bleu": "BLEU",
    "chrf": "chrF",
    "ter": "TER (lower is better)",
    "accuracy": "accuracy, %",
    "coverage": "coverage (inputs that are answered), %",
    "answered_accuracy": "accuracy of the answered, %",
    "ece": "expected calibration error, 15 bins, %",
    "prompt_accuracy": "images that show the prompt, %",
    "item_recall": "items of the prompt that are recognized, %",
    "prompt_accuracy_real": "real images that show the prompt according to the classifier, %",
    "prompt_accuracy_reconstructed": "the same after reconstruction by the autoencoder, %",
    "classifier_accuracy": "accuracy of the classifier on real images, %",
    "frechet": "Frechet distance to real images, features of the classifier",
    "frechet_reconstructed": "the same of real images after the autoencoder",
    "mse": "mean squared error per pixel, in [0, 1], or number",
    "mse_pca": "the same for PCA with as many components",
    "codes_used": "codes in use",
    "code_perplexity": "perplexity of code usage",
    "ap": "AP, %",
    "ap50": "AP50, %",
    "ap75": "AP75, %",
    "ar": "AR, at most 100 boxes, %",
    **{f"ap_{size}": f"AP of {size} boxes, %" for size in ("small", "medium", "large")},
    **{f"ar_{size}": f"AR of {size} boxes, %" for size in ("small", "medium", "large")},
    "f1": "F1 of events, onset within 50 ms, %",
    "f1_200ms": "F1 of events, onset and offset within 200 ms, %",
    "f1_segments": "F1 of one-second segments, %",
    "onset_ms": "mean onset error, ms",
    "duration_ms": "mean duration error, ms",
    "ade": "ADE, m",
    "fde": "FDE, m",
    "min_ade": "minADE (best path of each), m",
    "min_fde": "minFDE (best path of each), m",
    "ade_constant_velocity": "ADE of the constant-velocity baseline, m",
    "fde_constant_velocity": "FDE of the constant-velocity baseline, m",
    "micro_f1": "micro F1, %",
    "macro_f1": "macro F1, %",
    "average_precision": "mean average precision, %",
    "entity_f1": "entity F1, %",
    "entity_precision": "entity precision, %",
    "entity_recall": "entity recall, %",
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
    "r2": "R^2",
    "bits_per_byte": "bits per byte",
    "bits_per_token": "bits per token",
    "unknown_tokens": "unknown tokens, %",
    "nll": "nll, nats per token",
    "perplexity": "perplexity per token",
}
MAX_CONFUSION, MAX_CLASSES = 12, 100
"""Largest number of classes in a printed confusion matrix, and of printed rows."""


def round_scores(scores: Any) -> Any:
    """Return scores with floats rounded to 12 significant digits."""
    if isinstance(scores, float):
        return float(f"{scores:.12g}")
    if isinstance(scores, Mapping):
        return {name: round_scores(value) for name, value in scores.items()}
    return [*map(round_scores, scores)] if isinstance(scores, list | tuple) else scores


def metric_names(scores: Iterable[str]) -> dict[str, str]:
    """Return the names of metrics in tables."""
    return _NAMES if "perplexity" in scores else _NAMES | {"nll": "nll, nats"}


def score_table(scores: Mapping[str, Any]) -> str:
    """Format the scores of a test set, their signature, and some sample outputs."""
    title = f"{scores['data']}: {scores['examples']:,} examples"
    if "beam" in scores:
        title += ", greedy search" if scores["beam"] == 1 else f", beam {scores['beam']}"
        if scores["beam"] > 1 and "length_penalty" in scores:
            title += f", length penalty {scores['length_penalty']:g}"
    names = metric_names(scores)
    # Other scores, such as those of a user's own recipe, keep their name.
    others = [name for name, value in scores.items() if isinstance(value, float)]
    rows = []
    for name in dict.fromkeys([*names, *others]):
        if name in scores and name != "length_penalty":
            rows.append([names.get(name, name.replace("_", " ")), f"{scores[name]:.4g}"])
    rows.append(["signature" if "bleu" in scores else "details", scores["signature"]])
    samples = []
    for sample in scores["samples"]:
        is_correct = sample["output"] == sample["reference"]
        reference = "" if is_correct else f"(reference: {sample['reference']})"
        samples.append([sample["source"].strip(), sample["output"], reference])
    parts = [f"{title}\n{table(rows)}"]
    columns = _NAMES | {"precision": "precision, %", "recall": "recall, %", "f1": "F1, %"}
    for kind in ("classes", "numbers"):
        given, cells = scores.get(kind, {}), []
        for label, row in islice(given.items(), MAX_CLASSES):
            cells = cells or [[kind, *(columns.get(name, name) for name in row)]]
            cells.append([label, *(f"{value:.4g}" for value in row.values())])
        rest = len(given) - MAX_CLASSES
        if cells:
            parts.append(table(cells) + (f"\n  ({rest} more: --json)" if rest > 0 else ""))
    confusion = scores.get("confusion", [])
    if 1 < len(confusion) <= MAX_CONFUSION:
        cells = [["", *scores["classes"]]]
        for name, row in zip(scores["classes"], confusion, strict=True):
            cells.append([name, *map(str, row)])
        parts.append(f"confusion matrix: rows are references, columns outputs\n{table(cells)}")
    if samples:
        parts.append(f"sample outputs\n{table(samples)}")
    return "\n\n".join(parts)
