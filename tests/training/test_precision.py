import pytest
import torch

from regard.errors import UserError
from regard.training import precision
from regard.training.precision import resolve_precision

CPU = torch.device("cpu")


def test_given_precision_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_time_product", lambda _: pytest.fail("measured"))
    for setting in ("float32", "bfloat16"):
        assert resolve_precision(setting, CPU) == setting


@pytest.mark.parametrize(("ratio", "expected"), [(0.7, "bfloat16"), (0.9, "float32")])
def test_auto_is_the_faster_one_by_a_margin(
    ratio: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "has_native_bfloat16", lambda _: True)
    times = {"bfloat16": ratio, "float32": 1.0}
    monkeypatch.setattr(precision, "_time_product", times.__getitem__)
    assert resolve_precision("auto", CPU) == expected


def test_auto_is_float32_without_instructions_and_bfloat16_on_a_native_accelerator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(precision, "has_native_bfloat16", lambda _: False)
    assert resolve_precision("auto", CPU) == "float32"
    monkeypatch.setattr(precision, "has_native_bfloat16", lambda _: True)
    assert resolve_precision("auto", torch.device("cuda")) == "bfloat16"


def test_tf32_is_for_gpus() -> None:
    assert resolve_precision("tf32", torch.device("cuda")) == "tf32"
    with pytest.raises(UserError, match=r"precision tf32 needs a GPU, got device cpu"):
        resolve_precision("tf32", CPU)


def test_product_is_measured() -> None:
    state = torch.get_rng_state()
    with torch.no_grad():
        assert all(0 < precision._time_product(name) < 60 for name in precision.PRECISIONS)
    assert torch.equal(torch.get_rng_state(), state)
