import pytest
import torch
from torch import nn

from regard.errors import UserError
from regard.models.size import TRAINED, fitting_memory


def test_model_that_fits_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_MAX_MEMORY_MIB", "1")
    with fitting_memory(copies=TRAINED):
        nn.Linear(255, 256)  # 65,536 numbers of 4 bytes, 4 times: 1 MiB
    message = r"4 times as training keeps them, need more than 1 MiB; there are 1 MiB"
    with pytest.raises(UserError, match=message), fitting_memory(copies=TRAINED):
        nn.Linear(256, 256)


def test_model_that_does_not_fit_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_MAX_MEMORY_MIB", "2")
    message = r"its parameters alone need more than 2.\d* MiB; there are 2 MiB"
    with pytest.raises(UserError, match=message), fitting_memory():
        nn.Sequential(*(nn.Linear(256, 256) for _ in range(64)))
    nn.Linear(1024, 1024)  # the count ends with the block


def test_tied_parameters_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_MAX_MEMORY_MIB", "1")
    with fitting_memory():
        table = nn.Embedding(512, 256)
        for _ in range(8):
            nn.Linear(1, 1).weight = table.weight


def test_failed_allocation_is_said_in_words() -> None:
    message = r"the model does not fit into memory: .*then an allocation failed"
    with pytest.raises(UserError, match=message), fitting_memory():
        torch.empty(2**50, dtype=torch.float64)


def test_another_error_is_left_alone() -> None:
    with pytest.raises(RuntimeError, match="shape"), fitting_memory():
        torch.zeros(3).reshape(2)
