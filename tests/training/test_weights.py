import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

from regard.errors import UserError
from regard.training.tensors import load_weights, publish, save_weights, ties_of
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


def test_tensors_of_the_same_shape_are_not_tied() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    assert ties_of(model) == {}


def test_non_contiguous_weights_are_saved(tmp_path: Path) -> None:
    model = nn.Linear(3, 7)
    model.weight = nn.Parameter(torch.randn(3, 7).T)
    save_weights(tmp_path / "w.safetensors", model)
    other = nn.Linear(3, 7)
    load_weights(tmp_path / "w.safetensors", other)
    assert torch.equal(other.weight, model.weight)


def test_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    save_weights(tmp_path / "w.safetensors", nn.Linear(2, 3))
    assert (tmp_path / "w.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.safetensors: damaged or missing"):
        load_weights(tmp_path / "nothing.safetensors", nn.Linear(2, 3))


def test_cut_off_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_weights(path, nn.Linear(2, 3))
    os.truncate(path, path.stat().st_size - 5)
    with pytest.raises(UserError, match=r"w\.safetensors: damaged"):
        load_weights(path, nn.Linear(2, 3))


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


def test_published_file_replaces_another_and_stays_when_the_source_goes(tmp_path: Path) -> None:
    first, second, published = tmp_path / "1", tmp_path / "2", tmp_path / "published"
    first.write_text("one")
    second.write_text("two")
    for source in (first, second, second):
        publish(source, published)
        assert published.read_text() == source.read_text()
        assert not published.samefile(source)
    second.unlink()
    assert published.read_text() == "two"
    assert {path.name for path in tmp_path.iterdir()} == {"1", "published"}


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


def test_buffer_may_be_infinite(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    model.register_buffer("hidden", torch.tensor([0.0, float("-inf")]))
    save_weights(tmp_path / "w.safetensors", model)
    load_weights(tmp_path / "w.safetensors", model)


def test_weights_of_another_type_are_refused(tmp_path: Path) -> None:
    save_weights(tmp_path / "w.safetensors", nn.Linear(2, 3).double())
    with pytest.raises(UserError, match=r"torch\.float64, expected \(3, 2\) of torch\.float32"):
        load_weights(tmp_path / "w.safetensors", nn.Linear(2, 3))
