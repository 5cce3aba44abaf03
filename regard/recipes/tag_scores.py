"""How good tags are: token by token, and by whole entities where tags say where one begins (B-) and goes on (I-).

    tags       B-DAY O B-PLACE I-PLACE        entities  (0, 1, DAY), (2, 4, PLACE)
    precision  = 100 * entities that are right / entities said       recall = 100 * the same / entities there are
    F1         = 2 * right / (said + there are)

An entity is right if its first token, its last one and its kind are. An I- behind no entity of its kind begins one.

Source: tjong2003, section 2.3.
"""

from collections.abc import Sequence


def has_entities(tags: Sequence[str]) -> bool:
    """Whether there are tags that begin an entity."""
    return any(tag.startswith("B-") for tag in tags)


def entities(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """(first token, token after the last, kind) of each entity of a sentence."""
    found, first, kind = set(), 0, ""
    for i, tag in enumerate([*tags, "O"]):
        mark, _, name = tag.partition("-")
        inside = name if mark in ("B", "I") else ""
        if kind and (mark == "B" or inside != kind):
            found.add((first, i, kind))
            kind = ""
        if inside and not kind:
            first, kind = i, inside
    return found


def tag_scores(said: Sequence[Sequence[str]], right: Sequence[Sequence[str]]) -> dict[str, float]:
    """Token accuracy of all sentences; precision, recall and F1 of their entities if there are tags B-."""
    pairs = [pair for one, other in zip(said, right, strict=True) for pair in zip(one, other, strict=True)]
    scores = {"accuracy": 100 * sum(a == b for a, b in pairs) / len(pairs)}
    if not has_entities([tag for tags in right for tag in tags]):
        return scores
    found, there = ([entities(tags) for tags in many] for many in (said, right))
    hits = sum(len(one & other) for one, other in zip(found, there, strict=True))
    num_found, num_there = sum(map(len, found)), sum(map(len, there))
    return scores | {
        "entity_f1": 200 * hits / (num_found + num_there),
        "entity_precision": 100 * hits / max(num_found, 1),
        "entity_recall": 100 * hits / num_there,
    }
