"""Data of several files as one, and validation data that is held out of the training data if none
is given: one rule for all recipes.

items       (pairs, texts, sentences, images, clouds, vectors, sounds): a random sample, drawn with
            the seed of the run. Items that belong together, such as equal source texts, are on one
            side.
a sequence  (the text of a language model, the frames of a recording, a single sound): the last
            part, since neighbors overlap.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Any

import numpy as np

from regard.errors import UserError


def join_files(parts: Sequence[Any], **changed: Any) -> Any:
    """Return the data sets of several files as one: their lists, tuples and origins are joined.

    changed: values of other fields.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    values: dict[str, Any] = {"origin": ", ".join(part.origin for part in parts)}
    for field in fields(first):
        columns = [getattr(part, field.name) for part in parts]
        if field.name == "files":
            values["files"] = [part.origin for part in parts for _ in range(len(part))]
        elif isinstance(columns[0], list | tuple):
            values[field.name] = type(columns[0])(chain.from_iterable(columns))
    return replace(first, **(values | changed))


def hold_out(
    count: int,
    share: float,
    *,
    seed: int,
    origin: str,
    noun: str,
    groups: Sequence[Hashable] | None = None,
    labels: Sequence[Iterable[Hashable]] | None = None,
) -> tuple[list[int], list[int]]:
    """Draw `share` of the items for validation, at least one, at random.

    Returns the sorted indices of the items for training and for validation.

    groups: group of each item; items of one group are on one side.
    labels: labels of each item, none of which may occur in the validation data alone.
    """
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(range(count) if groups is None else groups):
        members.setdefault(group, []).append(index)
    parts = list(members.values())
    target, val = max(1, round(count * share)), set[int]()
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(parts))[::-1].tolist()
    # Large groups come last, the smallest of them first: a group is held out as a whole.
    order.sort(key=lambda number: max(len(parts[number]), target))
    for number in order:
        size = len(val) + len(parts[number])
        if len(val) < target and size < count and (not val or size <= 2 * target):
            val.update(parts[number])
    if not val:
        raise UserError(_too_few(count, share, origin, noun))
    train = [index for index in range(count) if index not in val]
    if labels is not None:
        known = {label for index in train for label in labels[index]}
        unknown = [label for i in sorted(val) for label in labels[i] if label not in known]
        if unknown:
            problem = f"the label {unknown[0]!r} occurs in none of the training {noun}"
            raise UserError(f"{origin}: {problem}: use --data.val, or another --seed.")
    return train, sorted(val)


def split_data(data: Any, share: float, noun: str, **options: Any) -> tuple[Any, Any]:
    """Return the training and validation data of a data set with `take`; options of `hold_out`."""
    count, origin = len(data), data.origin
    train, val = hold_out(count, share, origin=origin, noun=noun, **options)
    notice = describe_held_out(len(val), count, share, origin=origin, noun=noun)
    return data.take(train), replace(data.take(val), notices=(notice,))


def last_part(count: int, share: float, *, origin: str, noun: str) -> int:
    """Return the index at which the last `share` of a sequence begins, at least one item."""
    cut = count - max(1, round(count * share))
    if cut < 1:
        raise UserError(_too_few(count, share, origin, noun))
    return cut


def describe_held_out(held_out: int, count: int, share: float, *, origin: str, noun: str) -> str:
    """Return the line that tells how many items of the training data are held out."""
    return (
        f"{origin}: {held_out:,} of {count:,} {noun} are held out for validation (data.val_share "
        f"{share:g}); --data.val names other data."
    )


def _too_few(count: int, share: float, origin: str, noun: str) -> str:
    problem = f"{count:,} {noun} are too few (equal ones stay together)"
    return f"{origin}: {problem} to hold out {share:g} of them: use --data.val."
