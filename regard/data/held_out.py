"""Validation data that is held out of the training data if none is given: one rule for all recipes.

items       (pairs, texts, sentences, images, clouds, vectors): a random sample, drawn with the seed
            of the run. Items that belong together are on one side: equal source texts, segments of
            a sound file. An item whose label would be missing in training is not held out.
a sequence  (the text of a language model, the frames of a recording): the last part, since
            neighbors overlap.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from regard.errors import UserError

LABEL_HINT = "choose another column of labels with --data.label-column if these are texts, or "
"""Advice about labels that are read from a column."""


class HeldOut(NamedTuple):
    """Indices of the items for training and for validation, each in their order."""

    train: list[int]
    val: list[int]
    notice: str
    """Line that tells how many items are held out."""


def hold_out(
    count: int,
    share: float,
    *,
    seed: int,
    origin: str,
    noun: str,
    groups: Sequence[Hashable] | None = None,
    labels: Sequence[Iterable[Hashable]] | None = None,
    hint: str = "",
) -> HeldOut:
    """Draw `share` of the items for validation, at least one, at random.

    Args:
        origin: name of the data, for messages.
        noun: what the items are, for messages.
        groups: group of each item; items of one group are on one side.
        labels: labels of each item; each label remains in training.
        hint: advice, for the message about too many labels.

    Raises:  UserError if nothing can be held out so that training data remains.
    """
    group_of = range(count) if groups is None else groups
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(group_of):
        members.setdefault(group, []).append(index)
    parts = list(members.values())
    remaining = Counter(label for item in labels or () for label in set(item))
    target, val = max(1, round(count * share)), set[int]()
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(parts))[::-1].tolist()
    # Large groups come last, the smallest of them first: a group is held out as a whole.
    order.sort(key=lambda number: max(len(parts[number]), target))
    for number in order:
        part = parts[number]
        if (
            len(val) >= target
            or len(val) + len(part) >= count
            or (val and len(val) + len(part) > 2 * target)
        ):
            continue
        own = (
            Counter(label for index in part for label in set(labels[index]))
            if labels is not None
            else Counter()
        )
        if any(remaining[label] == number for label, number in own.items()):
            continue
        remaining -= own
        val.update(part)
    if not val and len(remaining) > count / 2:
        raise UserError(
            f"{origin}: with {len(remaining):,} different labels for {count:,} {noun}, none can be "
            f"held out for "
            f"validation so that each label remains in training: {hint}give validation data with "
            f"--data.val."
        )
    if not val:
        raise UserError(_too_few(count, share, origin, noun, distinct=len(parts)))
    train = [index for index in range(count) if index not in val]
    return HeldOut(
        train, sorted(val), describe_held_out(len(val), count, share, origin=origin, noun=noun)
    )


def last_part(count: int, share: float, *, origin: str, noun: str) -> int:
    """Return the index at which the last `share` of a sequence begins, at least one item.

    Raises:  UserError if no training data remains.
    """
    cut = count - max(1, round(count * share))
    if cut < 1:
        raise UserError(_too_few(count, share, origin, noun))
    return cut


def describe_held_out(held_out: int, count: int, share: float, *, origin: str, noun: str) -> str:
    """Return the line that tells how many items of the training data are held out."""
    more = (
        ", more than that since equal ones stay together"
        if held_out > 2 * max(1, round(count * share))
        else ""
    )
    return (
        f"{origin}: {held_out:,} of {count:,} {noun} are held out for validation (data.val_share "
        f"{share:g}{more}); "
        "--data.val names other data."
    )


def _too_few(
    count: int, share: float, origin: str, noun: str, *, distinct: int | None = None
) -> str:
    among = f"{distinct:,} distinct among " if distinct not in (None, count) else ""
    return (
        f"{origin}: {among}{count:,} {noun} are too few to hold out a share of {share:g} for "
        f"validation: "
        "give validation data with --data.val."
    )
