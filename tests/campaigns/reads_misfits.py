"""Misfits of a random read that must be refused, determined from the numbers alone."""

from tests.campaigns.reads_oracle import ReadCase


def sizes_that_do_not_fit(
    leading: tuple[int, ...], heads: int | None, kind: str, case: ReadCase, memory: str
) -> list[str]:
    """Return the misfits of leading axes, sizes and heads."""
    misfits = ["leading axes"] if case.leading is None else []
    if 0 in (case.query.shape[-1], case.keys.shape[-1]):
        misfits.append("dim")
    if heads is None:
        return misfits
    most, maps = len(leading), {"location": "q", "bare": ""}.get(kind, "qk")
    for array, name in ((case.query, "q"), (case.keys, "k")):
        size = array.shape[most - 1] if array.ndim - 2 == most else 1
        if name in maps and size not in (1, heads):
            misfits.append("heads")
    if memory != "pair" and case.keys.ndim - 2 < most:
        misfits.append("heads of a memory")
    return misfits
