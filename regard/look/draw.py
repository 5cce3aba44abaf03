"""One picture of whatever a trained model's `look` found: alignments, or chains."""

from collections.abc import Sequence
from pathlib import Path

from regard.look.alignment import Alignment
from regard.look.chain import Chain
from regard.look.plot import plot_alignment
from regard.look.plot_chain import plot_chain

__all__ = ["draw"]


def draw(
    found: Sequence[Alignment] | Sequence[Chain],
    path: str | Path,
    *,
    layer: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Draw them as `plot_alignment` or `plot_chain` does, whose arguments and errors these are."""
    chains = [one for one in found if isinstance(one, Chain)]
    if chains:
        return plot_chain(chains, path, layer=layer, overwrite=overwrite)
    alignments = [one for one in found if isinstance(one, Alignment)]
    return plot_alignment(alignments, path, layer=layer, overwrite=overwrite)
