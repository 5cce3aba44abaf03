"""Scores of text-to-image models: drawings classified by an independent classifier, compared with
real canvases.

    prompt_accuracy                  percentage of drawings with exactly the items of the text, in
    the right arrangement
    item_recall                      percentage of the requested items that are recognized
    prompt_accuracy_real             prompt_accuracy of the real canvases of these texts
    prompt_accuracy_reconstructed    the same after the autoencoder: upper bounds, given the errors
    of the classifier

Cells are classified one by one; if a text states no arrangement, items may be in any cell.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batches import EncodedPairs
from regard.data.embedded.scenes import NOTHING, CanvasDataset, DrawnScene, SceneDataset
from regard.data.embedded.sentences import describe_items
from regard.models.autoencoders.quantized import QuantizedAutoencoder, usage
from regard.models.model import Model
from regard.recipes.base.scoring import loss_per_token
from regard.recipes.draw.stages import CellClassifier, encode_canvases, reconstruct

_SAMPLES = 5


def loss_scores(
    model: Model,
    autoencoder: QuantizedAutoencoder,
    drawings: CanvasDataset,
    encoded: Callable[[CanvasDataset], EncodedPairs],
) -> dict[str, float]:
    """Return nll and perplexity of the codes given the texts, and the autoencoder's error and code
    usage."""
    indices = list(drawings.epoch(0))
    codes = torch.tensor(encode_canvases(autoencoder, drawings, indices))
    pixels = np.stack([drawings.canvas(i) for i in indices])
    nll = loss_per_token(model, encoded(drawings))
    used, perplexity = usage(codes, len(autoencoder.codebook.cluster_sizes))
    return {
        "nll": nll,
        "perplexity": math.exp(min(nll, 100.0)),
        "mse": float(
            np.square((reconstruct(autoencoder, codes).astype(np.float64) - pixels) / 255).mean()
        ),
        "codes_used": used,
        "code_perplexity": perplexity,
    }


def drawing_scores(
    scenes: SceneDataset,
    classifier: CellClassifier,
    autoencoder: QuantizedAutoencoder,
    drawn: NDArray[np.uint8],
) -> dict[str, Any]:
    """Return the scores of drawings (count, channels, height, width) for the scenes' texts, and a
    few samples."""
    indices = list(scenes.epoch(0))
    references = [scenes.scene(i) for i in indices]
    real = np.stack([scenes.canvas(i) for i in indices])
    codes: Tensor = torch.tensor(encode_canvases(autoencoder, scenes, indices))
    reconstructed = reconstruct(autoencoder, codes)
    recognized_items = classifier.classify_cells(drawn)
    by_class = _count_by_class(references, recognized_items)
    requested, recognized = (sum(counts[i] for counts in by_class.values()) for i in (0, 1))
    rows = list(zip(references, recognized_items, strict=True))[:_SAMPLES]
    return {
        "prompt_accuracy": _percent_correct(references, recognized_items),
        "item_recall": 100 * recognized / requested,
        "prompt_accuracy_real": _percent_correct(references, classifier.classify_cells(real)),
        "prompt_accuracy_reconstructed": _percent_correct(
            references, classifier.classify_cells(reconstructed)
        ),
        "classifier_accuracy": classifier.accuracy(scenes),
        "by_class": {
            scenes.names[number]: 100 * recognized / requested
            for number, (requested, recognized) in sorted(by_class.items())
        },
        "samples": [_sample(scene, items, scenes.names) for scene, items in rows],
    }


def describe_canvas(items: Sequence[int], names: Sequence[str]) -> str:
    """Return a description of the classes of a canvas's cells."""
    present = [names[number] for number in items if number != NOTHING]
    return describe_items(present) if present else "nothing"


def _percent_correct(
    references: Sequence[DrawnScene], recognized_items: Sequence[tuple[int, ...]]
) -> float:
    return (
        100
        * sum(
            scene.matches(items) for scene, items in zip(references, recognized_items, strict=True)
        )
        / len(references)
    )


def _count_by_class(
    references: Sequence[DrawnScene], recognized_items: Sequence[tuple[int, ...]]
) -> dict[int, tuple[int, int]]:
    """Return how many items of each class were requested, and recognized."""
    counts: dict[int, tuple[int, int]] = {}
    for scene, items in zip(references, recognized_items, strict=True):
        requested, recognized = Counter(scene.items), Counter(items)
        for number in requested.keys() - {NOTHING}:
            before = counts.get(number, (0, 0))
            counts[number] = (
                before[0] + requested[number],
                before[1] + min(requested[number], recognized[number]),
            )
    return counts


def _sample(reference: DrawnScene, items: tuple[int, ...], names: Sequence[str]) -> dict[str, str]:
    """Return a text and a description of its drawing, which is the text itself if the drawing is
    correct."""
    output = reference.text if reference.matches(items) else describe_canvas(items, names)
    return {"source": reference.text, "output": output, "reference": reference.text}
