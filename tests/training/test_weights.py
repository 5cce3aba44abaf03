from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

from regard.errors import UserError
from regard.training.tensors import load_weights
from tests.helpers import save_weights
from tests.training.toy import ToyModel


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path: Path) -> None:
    path, model = tmp_path / "model.safetensors", ToyModel(seed=1)
    save_weights(path, model)
    with safe_open(path, framework="pt") as file:
        names, notes = set(file.keys()), file.metadata()
    assert "embed.weight" in names
    assert "out.weight" not in names
    assert notes["ties"] == '{"out.weight": "embed.weight"}'
    other = ToyModel(seed=2)
    load_weights(path, other)
    assert other.out.weight is other.embed.weight
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)


def test_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    save_weights(tmp_path / "w.safetensors", nn.Linear(2, 3))
    assert (tmp_path / "w.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.safetensors: damaged or missing"):
        load_weights(tmp_path / "nothing.safetensors", nn.Linear(2, 3))


def test_weights_of_another_model_are_refused_with_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_weights(path, nn.Linear(2, 3, bias=False))
    with pytest.raises(
        UserError,
        match=r"w\.safetensors does not fit this model: weight is \(3, 2\) of torch\.float32, "
        r"expected \(3, 5\) of torch\.float32; bias is missing",
    ):
        load_weights(path, nn.Linear(5, 3))
    with pytest.raises(UserError, match=r"does not fit this model: .*weight is not in the model"):
        load_weights(path, nn.Sequential(nn.Linear(2, 3)))
    with pytest.raises(UserError, match=r"torch\.float32, expected \(3, 2\) of torch\.float64"):
        load_weights(path, nn.Linear(2, 3, bias=False).double())


@pytest.mark.parametrize(("value", "name"), [(float("nan"), "NaN"), (float("-inf"), "infinity")])
def test_weights_that_are_not_finite_are_refused_by_name(
    tmp_path: Path, value: float, name: str
) -> None:
    path, model = tmp_path / "w.safetensors", nn.Linear(2, 3)
    with torch.no_grad():
        model.bias[1] = value
    save_weights(path, model)
    with pytest.raises(UserError, match=rf"w\.safetensors cannot be used: bias holds {name}"):
        load_weights(path, nn.Linear(2, 3))


def test_buffer_may_be_infinite_and_weights_not_contiguous(tmp_path: Path) -> None:
    model, other = nn.Linear(3, 7), nn.Linear(3, 7)
    model.weight = nn.Parameter(torch.randn(3, 7).T)
    for module in (model, other):
        module.register_buffer("hidden", torch.tensor([0.0, float("-inf")]))
    save_weights(tmp_path / "w.safetensors", model)
    load_weights(tmp_path / "w.safetensors", other)
    assert torch.equal(other.weight, model.weight)
