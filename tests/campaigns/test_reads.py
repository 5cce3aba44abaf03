"""The campaign `reads` detects mutants of the package."""

from collections.abc import Iterator

import pytest
import torch

from regard.attention.choices import TopK
from regard.attention.inputs import AttentionInputs
from regard.attention.scores import Cosine
from tests.campaigns import reads


def unexpected_outcomes(seed: int, numbers: range) -> Iterator[str]:
    """Yield unexpected outcomes."""
    for number in numbers:
        outcome = reads.CAMPAIGN.run(seed, number)
        if outcome.kind not in reads.CAMPAIGN.fine:
            yield f"{number} of seed {seed}: {outcome.kind} {outcome.detail}; {outcome.case}"


def _from_the_right(inputs: AttentionInputs, name: str, tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor[(None,) * (inputs.num_axes - tensor.dim()) + (...,)]
    fits = all(n in (1, m) for n, m in zip(tensor.shape[:-2], inputs.leading, strict=True))
    return (
        tensor
        if fits
        else tensor.flatten(0, -3)[:1].reshape(*(1,) * len(inputs.leading), *tensor.shape[-2:])
    )


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")
@pytest.mark.parametrize(
    ("mutant", "seed", "numbers"),
    [
        ("masks from the right", 5, range(10)),
        ("biases are forgotten", 3, range(60, 70)),
        ("cosine is dot", 6, range(10)),
        ("worst of all keys", 6, range(10)),
    ],
)
def test_campaign_detects_a_mutant(monkeypatch, mutant, seed, numbers):
    assert not [*unexpected_outcomes(seed, numbers)]
    if mutant == "masks from the right":
        monkeypatch.setattr(AttentionInputs, "_align", _from_the_right)
    elif mutant == "biases are forgotten":
        monkeypatch.setattr(AttentionInputs, "bias_tensor", lambda self: None)
    elif mutant == "cosine is dot":
        monkeypatch.setattr(Cosine, "map_keys", lambda self, keys: keys)
    else:
        original = TopK.select_keys
        monkeypatch.setattr(
            TopK, "select_keys", lambda self, scores, allowed: original(self, -scores, allowed)
        )
    assert next(unexpected_outcomes(seed, numbers), None)
