import pytest
import torch
from torch import nn

from regard.errors import UserError
from regard.system.model_size import COPIES_IN_TRAINING, check_model_fits


def test_model_that_fits_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_MAX_MEMORY_MIB", "1")
    with check_model_fits(copies=COPIES_IN_TRAINING):
        nn.Linear(255, 256)  # 65,536 numbers of 4 bytes, 4 times: 1 MiB
    message = r"4 times as training keeps them, need more than 1 MiB; there are 1 MiB"
    with pytest.raises(UserError, match=message), check_model_fits(copies=COPIES_IN_TRAINING):
        nn.Linear(256, 256)


def test_model_that_does_not_fit_raises_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_MAX_MEMORY_MIB", "2")
    message = r"its parameters alone need more than 2.\d* MiB; there are 2 MiB"
    with pytest.raises(UserError, match=message), check_model_fits():
        nn.Sequential(*(nn.Linear(256, 256) for _ in range(64)))
    nn.Linear(1024, 1024)  # the check ends with the block


def test_tied_parameters_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_MAX_MEMORY_MIB", "1")
    with check_model_fits():
        table = nn.Embedding(512, 256)
        for _ in range(8):
            nn.Linear(1, 1).weight = table.weight


def test_failed_allocation_raises_a_user_error() -> None:
    message = r"the model does not fit into memory: .*then an allocation failed"
    with pytest.raises(UserError, match=message), check_model_fits():
        torch.empty(2**50, dtype=torch.float64)


def test_other_errors_are_not_changed() -> None:
    with pytest.raises(RuntimeError, match="shape"), check_model_fits():
        torch.zeros(3).reshape(2)
