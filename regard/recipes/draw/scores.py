"""Scores of text-to-image models by an independent classifier, compared with real canvases.

    prompt_accuracy                  percentage of drawings with exactly the items of the text, in
                                     the right arrangement
    item_recall                      percentage of the requested items that are recognized
    prompt_accuracy_real             prompt_accuracy of the real canvases of these texts
    prompt_accuracy_reconstructed    the same after the autoencoder; both are upper bounds

    frechet                          Frechet distance of the cells of drawings to those of the real
                                     canvases: variety counts, too
    frechet_reconstructed            the same of the real canvases after the autoencoder, a bound

Cells are classified one by one; if a text states no arrangement, items may be in any cell. Accuracy
rewards typical images: drawings that are all alike can have 100 %. The Frechet distance compares
the means m and covariances C of features,

    |m - m'|^2 + trace(C + C' - 2 (C C')^(1/2))

here of the recipe's own classifier (ConvolutionalClassifier.features), so that it can only be
compared between runs with the same classifier, and not with published values of FID.

Source: heusel2017 (Frechet distance, of features of another network).
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.embedded.scenes import NOTHING, DrawnScene, SceneDataset, split_cells
from regard.data.embedded.sentences import describe_items
from regard.models.autoencoders.quantized import QuantizedAutoencoder
from regard.recipes.draw.classifier import ConvolutionalClassifier
from regard.recipes.draw.stages import encode_canvases, reconstruct, stack_canvases


def drawing_scores(
    scenes: SceneDataset,
    classifier: ConvolutionalClassifier,
    autoencoder: QuantizedAutoencoder,
    drawn: NDArray[np.uint8],
) -> dict[str, Any]:
    """Return the scores of drawings for the texts of scenes, by class too, and a few samples."""
    indices = list(scenes.epoch(0))
    references = [scenes.scene(i) for i in indices]
    canvases = stack_canvases(scenes, indices)
    real = classifier.classify_cells(canvases, scenes)
    again = reconstruct(autoencoder, encode_canvases(autoencoder, scenes, indices))
    reconstructed = classifier.classify_cells(again, scenes)
    rows, columns = scenes.config.rows, scenes.config.columns
    target, *features = (
        classifier.features(split_cells(part, rows, columns)) for part in (canvases, drawn, again)
    )
    frechet, frechet_reconstructed = (frechet_distance(part, target) for part in features)
    found = classifier.classify_cells(drawn, scenes)
    requested, recognized = count_by_class(references, found)
    recalls = {}
    for number in sorted(requested):
        recalls[scenes.names[number]] = {"recall": 100 * recognized[number] / requested[number]}
    samples = []
    for scene, items in zip(references[:5], found, strict=False):
        # A correct drawing is described by its text.
        output = scene.text if scene.matches(items) else describe_canvas(items, scenes.names)
        samples.append({"source": scene.text, "output": output, "reference": scene.text})
    return {
        "prompt_accuracy": _percent_correct(references, found),
        "item_recall": 100 * recognized.total() / requested.total(),
        "prompt_accuracy_real": _percent_correct(references, real),
        "prompt_accuracy_reconstructed": _percent_correct(references, reconstructed),
        "classifier_accuracy": classifier.accuracy(scenes),
        "frechet": frechet,
        "frechet_reconstructed": frechet_reconstructed,
        "classes": recalls,
        "samples": samples,
    }


def frechet_distance(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return the Frechet distance of two sets of features (items, size), as normal distributions.

    The eigenvalues of a product of covariances are at least 0, but for rounding.
    """
    mean = first.mean(0) - second.mean(0)
    before, after = (
        np.atleast_2d(np.cov(part, rowvar=False, bias=True)) for part in (first, second)
    )
    root = np.sqrt(np.linalg.eigvals(before @ after).real.clip(min=0)).sum()
    return float(mean @ mean + np.trace(before) + np.trace(after) - 2 * root)


def describe_canvas(items: Sequence[int], names: Sequence[str]) -> str:
    """Return a description of the classes of a canvas's cells."""
    present = [names[number] for number in items if number != NOTHING]
    return describe_items(present) if present else "nothing"


def _percent_correct(scenes: Sequence[DrawnScene], found: Sequence[Sequence[int]]) -> float:
    correct = [scene.matches(items) for scene, items in zip(scenes, found, strict=True)]
    return 100 * sum(correct) / len(correct)


def count_by_class(
    references: Sequence[DrawnScene], found: Sequence[Sequence[int]]
) -> tuple[Counter[int], Counter[int]]:
    """Return how many items of each class were requested, and recognized."""
    requested: Counter[int] = Counter()
    recognized: Counter[int] = Counter()
    for scene, items in zip(references, found, strict=True):
        own = Counter(item for item in scene.items if item != NOTHING)
        requested += own
        recognized += own & Counter(items)
    return requested, recognized
