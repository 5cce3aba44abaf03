"""Scores of text-to-image models by an independent classifier, compared with real canvases.

    prompt_accuracy                  percentage of drawings with exactly the items of the text, in
                                     the right arrangement
    item_recall                      percentage of the requested items that are recognized
    prompt_accuracy_real             prompt_accuracy of the real canvases of these texts
    prompt_accuracy_reconstructed    the same after the autoencoder; both are upper bounds

Cells are classified one by one; if a text states no arrangement, items may be in any cell.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.batches import EncodedPairs
from regard.data.embedded.scenes import NOTHING, CanvasDataset, DrawnScene, SceneDataset
from regard.data.embedded.sentences import describe_items
from regard.models.autoencoders.quantized import QuantizedAutoencoder
from regard.models.model import Model
from regard.recipes.base.scoring import loss_per_token
from regard.recipes.draw.stages import (
    CellClassifier,
    autoencoder_scores,
    encode_canvases,
    reconstruct,
)

_SAMPLES = 5


def loss_scores(
    model: Model,
    autoencoder: QuantizedAutoencoder,
    drawings: CanvasDataset,
    encoded: Callable[[CanvasDataset], EncodedPairs],
) -> dict[str, float]:
    """Return nll and perplexity of the codes given the texts, and scores of the autoencoder."""
    nll = loss_per_token(model, encoded(drawings))
    perplexity = math.exp(min(nll, 100.0))
    return {"nll": nll, "perplexity": perplexity, **autoencoder_scores(autoencoder, drawings)}


def drawing_scores(
    scenes: SceneDataset,
    classifier: CellClassifier,
    autoencoder: QuantizedAutoencoder,
    drawn: NDArray[np.uint8],
) -> dict[str, Any]:
    """Return the scores of drawings for the texts of scenes, by class too, and a few samples."""
    indices = list(scenes.epoch(0))
    references = [scenes.scene(i) for i in indices]
    real = np.stack([scenes.canvas(i) for i in indices])
    codes = torch.tensor(encode_canvases(autoencoder, scenes, indices))
    reconstructed = classifier.classify_cells(reconstruct(autoencoder, codes))
    found = classifier.classify_cells(drawn)
    recalls, all_requested, all_recognized = {}, 0, 0
    for number, (requested, recognized) in sorted(_count_by_class(references, found).items()):
        recalls[scenes.names[number]] = 100 * recognized / requested
        all_requested += requested
        all_recognized += recognized
    samples = []
    for scene, items in zip(references[:_SAMPLES], found, strict=False):
        # A correct drawing is described by its text.
        is_right = scene.matches(items)
        output = scene.text if is_right else describe_canvas(items, scenes.names)
        samples.append({"source": scene.text, "output": output, "reference": scene.text})
    return {
        "prompt_accuracy": _percent_correct(references, found),
        "item_recall": 100 * all_recognized / all_requested,
        "prompt_accuracy_real": _percent_correct(references, classifier.classify_cells(real)),
        "prompt_accuracy_reconstructed": _percent_correct(references, reconstructed),
        "classifier_accuracy": classifier.accuracy(scenes),
        "by_class": recalls,
        "samples": samples,
    }


def describe_canvas(items: Sequence[int], names: Sequence[str]) -> str:
    """Return a description of the classes of a canvas's cells."""
    present = [names[number] for number in items if number != NOTHING]
    return describe_items(present) if present else "nothing"


def _percent_correct(scenes: Sequence[DrawnScene], found: Sequence[tuple[int, ...]]) -> float:
    correct = [scene.matches(items) for scene, items in zip(scenes, found, strict=True)]
    return 100 * sum(correct) / len(correct)


def _count_by_class(
    references: Sequence[DrawnScene], recognized_items: Sequence[tuple[int, ...]]
) -> dict[int, tuple[int, int]]:
    """Return how many items of each class were requested, and recognized."""
    counts: dict[int, tuple[int, int]] = {}
    for scene, items in zip(references, recognized_items, strict=True):
        requested, recognized = Counter(scene.items), Counter(items)
        for number in requested.keys() - {NOTHING}:
            before, found = counts.get(number, (0, 0))
            right = min(requested[number], recognized[number])
            counts[number] = before + requested[number], found + right
    return counts
