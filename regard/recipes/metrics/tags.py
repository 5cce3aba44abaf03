"""Metrics of tags: token accuracy, and precision, recall and F1 of entities.

    tags       B-DAY O B-PLACE I-PLACE        entities  (0, 1, DAY), (2, 4, PLACE)
    precision  = 100 * correct entities / predicted entities
    recall     = 100 * correct entities / reference entities
    F1         = 2 * correct / (predicted + reference)

A tag of an entity is a mark and a kind, such as B-PLACE; other tags, such as O, are outside. The
marks are B and I (in IOB1 files, B only after an entity of the same kind; in IO files, I alone), E
or L for the last token, S or U for the only one. One rule reads all schemes, as the conlleval
script and seqeval do: an entity begins at B, S and U, at another kind, after E, L, S and U, and
after a tag that is outside; it ends before the next one, and before a tag that is outside. An
entity is correct if its first token, last token and kind are.

Source: tjong2003, section 2.3.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from regard.recipes.metrics.counts import precision_recall_f1

_MARKS = "BILOUES"
"""All marks, in an order in which those of a scheme are its name: IO, BIO, BIOES, BILOU."""
_TAG = re.compile(r"([BIESLU])-(.+)", re.DOTALL)
_FIRST, _LAST = "BSU", "ELSU"
"""Marks of tokens that begin an entity, and that end one."""


def find_scheme(tags: Iterable[str]) -> str:
    """Return the scheme of a run's tags: BIO, BIOES, BILOU, IO; empty if not of entities.

    They are if one begins with B-, or if all except O are a mark and a kind.
    """
    names = set(tags) - {"O"}
    marks = {found[1] for found in map(_TAG.fullmatch, names) if found}
    if "B" not in marks and not (names and all(map(_TAG.fullmatch, names))):
        return ""
    return "".join(mark for mark in _MARKS if mark in {*marks, "I", "O"})


def get_entities(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """Return (first token, token after the last, kind) of each entity of a sentence."""
    spans, first, before, kind = set(), 0, "", ""
    for i, tag in enumerate([*tags, "O"]):
        found = _TAG.fullmatch(tag)
        mark, name = found.groups() if found else ("", "")
        if name != kind or mark in _FIRST or before in _LAST:
            if kind:
                spans.add((first, i, kind))
            first = i
        before, kind = mark, name
    return spans


def tag_scores(
    predicted: Sequence[Sequence[str]], reference: Sequence[Sequence[str]], *, has_entities: bool
) -> dict[str, Any]:
    """Return token accuracy, and precision, recall and F1 of entities, each kind, or else each tag.

    A quotient whose denominator is 0 is 0.
    """
    pairs: list[tuple[str, str]] = []
    for a, b in zip(predicted, reference, strict=True):
        pairs += zip(a, b, strict=True)
    scores: dict[str, Any] = {"accuracy": 100 * sum(a == b for a, b in pairs) / max(len(pairs), 1)}
    if not has_entities:
        labels = ([a for a, b in pairs if a == b], [a for a, _ in pairs], [b for _, b in pairs])
        return scores | {"classes": precision_recall_f1(*labels)}
    hits, found, present = [], [], []  # the kind of each entity
    for a, b in zip(map(get_entities, predicted), map(get_entities, reference), strict=True):
        hits += [kind for *_, kind in a & b]
        found += [kind for *_, kind in a]
        present += [kind for *_, kind in b]
    return scores | {
        "entity_f1": 200 * len(hits) / max(len(found) + len(present), 1),
        "entity_precision": 100 * len(hits) / max(len(found), 1),
        "entity_recall": 100 * len(hits) / max(len(present), 1),
        "classes": precision_recall_f1(hits, found, present),
    }
