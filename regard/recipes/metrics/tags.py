"""Metrics of tags: token accuracy, and precision, recall and F1 of entities (B- and I- tags).

    tags       B-DAY O B-PLACE I-PLACE        entities  (0, 1, DAY), (2, 4, PLACE)
    precision  = 100 * correct entities / predicted entities       recall = 100 * correct entities / reference entities
    F1         = 2 * correct / (predicted + reference)

An entity is correct if its first token, last token and kind are. An I- tag without an entity of its kind begins one.

Source: tjong2003, section 2.3.
"""

from collections.abc import Sequence


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


def tag_scores(predicted: Sequence[Sequence[str]], reference: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return token accuracy, and precision, recall and F1 of entities if there are B- tags."""
    pairs = [pair for a, b in zip(predicted, reference, strict=True) for pair in zip(a, b, strict=True)]
    scores = {"accuracy": 100 * sum(a == b for a, b in pairs) / len(pairs)}
    if not has_entities([tag for tags in reference for tag in tags]):
        return scores
    predicted_spans, reference_spans = ([get_entities(tags) for tags in rows] for rows in (predicted, reference))
    hits = sum(len(a & b) for a, b in zip(predicted_spans, reference_spans, strict=True))
    num_predicted, num_reference = sum(map(len, predicted_spans)), sum(map(len, reference_spans))
    return scores | {
        "entity_f1": 200 * hits / (num_predicted + num_reference),
        "entity_precision": 100 * hits / max(num_predicted, 1),
        "entity_recall": 100 * hits / num_reference,
    }
