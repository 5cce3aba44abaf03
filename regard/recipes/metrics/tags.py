"""Metrics of tags: token accuracy, and precision, recall and F1 of entities (B- and I- tags).

    tags       B-DAY O B-PLACE I-PLACE        entities  (0, 1, DAY), (2, 4, PLACE)
    precision  = 100 * correct entities / predicted entities       recall = 100 * correct entities / reference entities
    F1         = 2 * correct / (predicted + reference)

An entity is correct if its first token, last token and kind are. An I- tag without an entity of its kind begins one.

Source: tjong2003, section 2.3.
"""

from collections.abc import Sequence
from typing import Any

from regard.recipes.metrics.counts import label_scores_of_sets


def has_entities(tags: Sequence[str]) -> bool:
    """Return True if there are tags that begin an entity."""
    return any(tag.startswith("B-") for tag in tags)


def get_entities(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """Return (first token, token after the last, kind) of each entity of a sentence."""
    spans, first, kind = set(), 0, ""
    for i, tag in enumerate([*tags, "O"]):
        mark, _, name = tag.partition("-")
        inside = name if mark in ("B", "I") else ""
        if kind and (mark == "B" or inside != kind):
            spans.add((first, i, kind))
            kind = ""
        if inside and not kind:
            first, kind = i, inside
    return spans


def tag_scores(predicted: Sequence[Sequence[str]], reference: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return token accuracy; if there are B- tags, precision, recall and F1 of entities, also of each kind.

    Without B- tags, those of each tag.
    """
    pairs = [pair for a, b in zip(predicted, reference, strict=True) for pair in zip(a, b, strict=True)]
    scores: dict[str, Any] = {"accuracy": 100 * sum(a == b for a, b in pairs) / len(pairs)}
    if not has_entities([tag for tags in reference for tag in tags]):
        labels = ([a for a, b in pairs if a == b], [a for a, _ in pairs], [b for _, b in pairs])
        return scores | {"classes": label_scores_of_sets(*labels)}
    predicted_spans, reference_spans = ([get_entities(tags) for tags in rows] for rows in (predicted, reference))
    hits = sum(len(a & b) for a, b in zip(predicted_spans, reference_spans, strict=True))
    num_predicted, num_reference = sum(map(len, predicted_spans)), sum(map(len, reference_spans))
    return scores | {
        "entity_f1": 200 * hits / (num_predicted + num_reference),
        "entity_precision": 100 * hits / max(num_predicted, 1),
        "entity_recall": 100 * hits / num_reference,
        "classes": label_scores_of_sets(
            [kind for a, b in zip(predicted_spans, reference_spans, strict=True) for *_, kind in a & b],
            [kind for spans in predicted_spans for *_, kind in spans],
            [kind for spans in reference_spans for *_, kind in spans],
        ),
    }
