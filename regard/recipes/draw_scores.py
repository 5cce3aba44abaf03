"""How good a drawing model is: what an independent classifier sees in its drawings, beside real canvases.

    drawn        share of the drawings that show what the text asks for: those items and no others, and as they lie
    items        share of all items asked for that are seen
    of real      the same of the real canvases of these texts, as they are and through the autoencoder: the most that
                 can be expected of a judge that errs

Places are judged one by one; where a text names no order, items may be anywhere.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batches import Encoded
from regard.data.scenes import NOTHING, Drawings, Scene, Scenes
from regard.data.sentences import sentence
from regard.models.model import Model
from regard.models.quantized import QuantizedAutoencoder, usage
from regard.recipes.draw_stages import Judge, codes_of, rebuilt
from regard.recipes.scoring import loss_per_token

_SAMPLES = 5


def loss_scores(
    model: Model, autoencoder: QuantizedAutoencoder, drawings: Drawings, encoded: Callable[[Drawings], Encoded]
) -> dict[str, float]:
    """nll and perplexity of the codes given the texts; the autoencoder's error and how many codes it uses."""
    indices = list(drawings.epoch(0))
    codes = torch.tensor(codes_of(autoencoder, drawings, indices))
    pixels = np.stack([drawings.canvas(i) for i in indices])
    nll = loss_per_token(model, encoded(drawings))
    used, perplexity = usage(codes, len(autoencoder.codebook.uses))
    return {
        "nll": nll,
        "perplexity": math.exp(min(nll, 100.0)),
        "error": float(np.square((rebuilt(autoencoder, codes).astype(np.float64) - pixels) / 255).mean()),
        "codes_used": used,
        "code_perplexity": perplexity,
    }


def drawing_scores(
    scenes: Scenes, judge: Judge, autoencoder: QuantizedAutoencoder, drawn: NDArray[np.uint8]
) -> dict[str, Any]:
    """What the judge sees in drawings (count, channels, height, width) of the scenes' texts; a few of them."""
    indices = list(scenes.epoch(0))
    asked = [scenes.scene(i) for i in indices]
    real = np.stack([scenes.canvas(i) for i in indices])
    through: Tensor = torch.tensor(codes_of(autoencoder, scenes, indices))
    found = judge.sees(drawn)
    by_class = _by_class(asked, found)
    wanted, seen = (sum(counts[i] for counts in by_class.values()) for i in (0, 1))
    rows = list(zip(asked, found, strict=True))[:_SAMPLES]
    return {
        "drawn": _share(asked, found),
        "items": 100 * seen / wanted,
        "drawn_real": _share(asked, judge.sees(real)),
        "drawn_rebuilt": _share(asked, judge.sees(rebuilt(autoencoder, through))),
        "judge_accuracy": judge.accuracy(scenes),
        "by_class": {scenes.names[number]: 100 * seen / wanted for number, (wanted, seen) in sorted(by_class.items())},
        "samples": [_sample(one, items, scenes.names) for one, items in rows],
    }


def described(items: Sequence[int], names: Sequence[str]) -> str:
    """What is seen at the places of a canvas, in words."""
    there = [names[number] for number in items if number != NOTHING]
    return sentence(there) if there else "nothing"


def _share(asked: Sequence[Scene], found: Sequence[tuple[int, ...]]) -> float:
    return 100 * sum(one.is_shown_by(items) for one, items in zip(asked, found, strict=True)) / len(asked)


def _by_class(asked: Sequence[Scene], found: Sequence[tuple[int, ...]]) -> dict[int, tuple[int, int]]:
    """How many of each class were asked for, and seen."""
    counts: dict[int, tuple[int, int]] = {}
    for one, items in zip(asked, found, strict=True):
        wanted, seen = Counter(one.items), Counter(items)
        for number in wanted.keys() - {NOTHING}:
            before = counts.get(number, (0, 0))
            counts[number] = before[0] + wanted[number], before[1] + min(wanted[number], seen[number])
    return counts


def _sample(asked: Scene, found: tuple[int, ...], names: Sequence[str]) -> dict[str, str]:
    """A text, and what is seen in its drawing: the text itself if that is right."""
    said = asked.text if asked.is_shown_by(found) else described(found, names)
    return {"source": asked.text, "output": said, "reference": asked.text}
