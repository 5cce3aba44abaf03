"""That the campaign of reads sees what it is there to see."""

from collections.abc import Iterator

import pytest
import torch

from regard.attention.kernels import additive
from regard.attention.kernels.problem import Problem
from regard.attention.scores_more import Cosine
from regard.attention.sparse import TopK
from tests.campaigns import reads


def bad(seed: int, numbers: range) -> Iterator[str]:
    """Outcomes that are not as they should be."""
    for number in numbers:
        outcome = reads.CAMPAIGN.run(seed, number)
        if outcome.kind not in reads.CAMPAIGN.fine:
            yield f"{number} of seed {seed}: {outcome.kind} {outcome.detail}; {outcome.case}"


def _from_the_right(problem: Problem, name: str, tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor[(None,) * (problem.num_axes - tensor.dim()) + (...,)]
    fits = all(n in (1, m) for n, m in zip(tensor.shape[:-2], problem.leading, strict=True))
    return tensor if fits else tensor.flatten(0, -3)[:1].reshape(*(1,) * len(problem.leading), *tensor.shape[-2:])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")
@pytest.mark.parametrize(
    ("mutant", "seed", "numbers"),
    [
        ("masks from the right", 5, range(10)),
        ("beta forgotten in biases", 3, range(60, 70)),
        ("cosine is dot", 6, range(10)),
        ("worst of all keys", 6, range(10)),
    ],
)
def test_campaign_sees_a_mutant(monkeypatch, mutant, seed, numbers):
    assert not [*bad(seed, numbers)]
    if mutant == "masks from the right":
        monkeypatch.setattr(Problem, "_lined_up", _from_the_right)
    elif mutant == "beta forgotten in biases":
        monkeypatch.setattr(additive, "_times", lambda bias, beta, allowed: bias)
    elif mutant == "cosine is dot":
        monkeypatch.setattr(Cosine, "map_keys", lambda self, keys: keys)
    else:
        whole = TopK.pick
        monkeypatch.setattr(TopK, "pick", lambda self, scores, allowed: whole(self, -scores, allowed))
    assert next(bad(seed, numbers), None)
