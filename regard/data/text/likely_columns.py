"""Likely columns of a table, to suggest them in messages."""

from collections.abc import Sequence


def likely_columns(
    names: Sequence[str], header: Sequence[str], below: Sequence[Sequence[str]], *, typical: Sequence[bool]
) -> list[int]:
    """Return the index of the column that each name may be: those of typical names, if they are as many, or the first.

    Of a text or file and its label, the label is the column with the fewest different values, but more than one, and
    the text the one with the longest cells, unless the header has a column of that name.
    """
    candidates = [index for index, is_typical in enumerate(typical) if is_typical]
    if len(candidates) != len(names):
        candidates = list(range(len(header)))
    if list(names[1:]) != ["label"] or len(candidates) < 2 or not below:
        return candidates[: len(names)]
    values = {index: [row[index] for row in below if index < len(row)] for index in candidates}
    expected = {header[index].strip().lower(): index for index in candidates}
    text = expected.get(names[0])
    counts = {index: len(set(cells)) for index, cells in values.items() if index != text}
    label = expected.get("label", min(counts, key=lambda index: (counts[index] < 2, counts[index], -index)))
    if text is None:
        lengths = {index: sum(map(len, cells)) for index, cells in values.items() if index != label}
        text = max(lengths, key=lengths.__getitem__)
    return [text, label]
