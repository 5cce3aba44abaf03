"""Draw docs/images/masks.svg: examples of masks and of their combinations.

python -m docs.gallery.masks [FILE.svg]
"""

import argparse
from pathlib import Path

import torch

from regard.attention.masks import (
    Mask,
    causal,
    dense,
    documents,
    padding,
    prefix,
    random_blocks,
    window,
)
from regard.attention.picture import Picture, side_by_side

__all__ = ["draw_masks", "main"]

_SIZE = 18
"""Number of queries and of keys."""


def main(argv: list[str] | None = None) -> None:
    """Write the picture, and print its path; an existing file is replaced."""
    default = Path(__file__).parents[1] / "images" / "masks.svg"
    parser = argparse.ArgumentParser(description="Draw examples of masks, for the docs.")
    parser.add_argument("path", nargs="?", type=Path, default=default, metavar="FILE.svg")
    print(draw_masks().save(parser.parse_args(argv).path, overwrite=True))


def draw_masks() -> Picture:
    """Return the pictures of all examples, side by side."""
    packed = documents([0] * 5 + [1] * 7 + [2] * 6)
    blocks = random_blocks(3, 1, seed=2, length=_SIZE)
    stripes = dense(torch.arange(_SIZE).outer(torch.arange(_SIZE)) % 4 < 2)
    examples: dict[str, Mask] = {
        "causal()": causal(),
        "padding([11])": padding([11]),
        "window(5)": window(5),
        "window(7, ahead=3)": window(7, ahead=3),
        "prefix([6])": prefix([6]),
        "documents([0, 0, 0, 0, 0, 1, 1, ...])": packed,
        "random_blocks(3, 1, seed=2, length=18)": blocks,
        "dense(tensor)": stripes,
        "causal() & padding([11])": causal() & padding([11]),
        "causal() & documents(ids)": causal() & packed,
        "random_blocks(...) | window(5, ahead=2)": blocks | window(5, ahead=2),
        "causal() & ~window(5)": causal() & ~window(5),
    }
    return side_by_side([mask.picture(_SIZE, _SIZE, title=name) for name, mask in examples.items()])


if __name__ == "__main__":
    main()
