"""Scores of text-to-image models by an independent classifier, compared with real canvases.

    prompt_accuracy                  percentage of drawings with exactly the items of the text, in
                                     the right arrangement
    item_recall                      percentage of the requested items that are recognized
    prompt_accuracy_real             prompt_accuracy of the real canvases of these texts
    prompt_accuracy_reconstructed    the same after the autoencoder; both are upper bounds

Cells are classified one by one; if a text states no arrangement, items may be in any cell.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.embedded.scenes import NOTHING, DrawnScene, SceneDataset
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
    real = classifier.classify_cells(stack_canvases(scenes, indices), scenes)
    codes = encode_canvases(autoencoder, scenes, indices)
    reconstructed = classifier.classify_cells(reconstruct(autoencoder, codes), scenes)
    found = classifier.classify_cells(drawn, scenes)
    requested, recognized = count_by_class(references, found)
    recalls = {}
    for number in sorted(requested):
        recalls[scenes.names[number]] = 100 * recognized[number] / requested[number]
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
        "by_class": recalls,
        "samples": samples,
    }


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
