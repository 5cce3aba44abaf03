import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.training import precision
from regard.training.precision import Measurement, cache_folder, measure_products, resolve_precision

CPU = torch.device("cpu")


class Machine:
    """Processor with bfloat16 instructions and given times of products."""

    def __init__(self, **seconds: float):
        self.seconds, self.rounds, self.measured = seconds, 3, 0

    def measure(self) -> Measurement:
        self.measured += 1
        return Measurement(seconds=dict(self.seconds), rows=256, rounds=self.rounds)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Machine that is faster in bfloat16, with its own cache folder."""
    machine = Machine(float32=2.0, bfloat16=1.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(precision.sys, "platform", "linux")
    monkeypatch.setattr(precision, "has_native_bfloat16", lambda device: True)
    monkeypatch.setattr(precision, "measure_products", machine.measure)
    return machine


def resolve_auto() -> str:
    return resolve_precision("auto", CPU).name


def cached_files(folder: Path) -> list[Path]:
    return sorted((folder / "cache" / "regard").iterdir())


@pytest.mark.parametrize(
    ("bfloat16", "name"),
    [(0.5, "bfloat16"), (1.6, "bfloat16"), (1.7, "float32"), (2.0, "float32"), (4.0, "float32")],
)
def test_auto_is_bfloat16_if_its_products_are_clearly_faster(
    machine: Machine, bfloat16: float, name: str
) -> None:
    machine.seconds["bfloat16"] = bfloat16
    result = resolve_precision("auto", CPU)
    assert result.name == name
    assert f"takes {bfloat16 / 2:.2f} times as long" in result.reason


@pytest.mark.parametrize("setting", ["float32", "bfloat16"])
def test_explicit_precision_is_used_without_a_measurement(machine: Machine, setting: Any) -> None:
    assert resolve_precision(setting, CPU) == (setting, "")
    assert machine.measured == 0


def test_processor_without_instructions_for_bfloat16_computes_in_float32(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "has_native_bfloat16", lambda device: False)
    assert resolve_precision("auto", CPU) == (
        "float32",
        "the processor has no instructions for bfloat16",
    )
    assert machine.measured == 0


@pytest.mark.parametrize(("kind", "native"), [("cuda", True), ("cuda", False), ("mps", False)])
def test_accelerators_are_not_measured(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, kind: str, native: bool
) -> None:
    monkeypatch.setattr(precision, "has_native_bfloat16", lambda device: native)
    assert resolve_precision("auto", torch.device(kind)).name == (
        "bfloat16" if native else "float32"
    )
    assert machine.measured == 0


def test_measurement_is_cached(machine: Machine, tmp_path: Path) -> None:
    first = resolve_precision("auto", CPU)
    machine.seconds["bfloat16"] = 9.0
    cached = resolve_precision("auto", CPU)
    assert (first.name, cached.name, machine.measured) == ("bfloat16", "bfloat16", 1)
    [path] = cached_files(tmp_path)
    assert f"measured now, saved in {path}" in first.reason
    assert f"measured before, {path}" in cached.reason


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(torch.cpu, "get_capabilities", lambda: {"cpu_name": "another"}),
        lambda patch: patch.setattr(torch, "get_num_threads", lambda: 77),
        lambda patch: patch.setattr(torch, "__version__", "0.0"),
        lambda patch: patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another"),
        lambda patch: patch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2"),
    ],
    ids=["processor", "threads", "torch", "instructions", "environment"],
)
def test_another_machine_is_measured_again(
    machine: Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[pytest.MonkeyPatch], None],
) -> None:
    assert resolve_auto() == "bfloat16"
    machine.seconds["bfloat16"] = 9.0
    with monkeypatch.context() as patch:
        change(patch)
        assert resolve_auto() == "float32"
    assert resolve_auto() == "bfloat16"
    assert (machine.measured, len(cached_files(tmp_path))) == (2, 2)


def damaged_contents(content: str) -> list[str]:
    """Return contents of a cached file that must be rejected."""
    record = json.loads(content)
    altered = content.replace('"bfloat16": 1.0', '"bfloat16": 7.0')
    assert altered != content
    damaged = [
        {**record, "machine": {}},
        {**record, "seconds": {"float32": 2.0}},
        *(
            {**record, "seconds": {"float32": 2.0, "bfloat16": bad}}
            for bad in (0.0, -1.0, math.nan, "1", None, True)
        ),
    ]
    rest = [
        {name: value for name, value in entry.items() if name != "checksum"} for entry in damaged
    ]
    return [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        content[:-9],
        altered,
        *(json.dumps(precision.add_checksum(entry)) for entry in rest),
    ]


def test_damaged_file_is_measured_and_written_again(machine: Machine, tmp_path: Path) -> None:
    assert resolve_auto() == "bfloat16"
    [path] = cached_files(tmp_path)
    content = path.read_text()
    machine.seconds["bfloat16"] = 9.0
    for number, bad in enumerate(damaged_contents(content), start=2):
        path.write_text(bad)
        assert resolve_auto() == resolve_auto() == "float32"
        assert machine.measured == number
    assert [file.name for file in cached_files(tmp_path)] == [path.name]


def test_file_of_another_machine_under_the_same_name_is_rejected(
    machine: Machine, tmp_path: Path
) -> None:
    assert resolve_auto() == "bfloat16"
    [path] = cached_files(tmp_path)
    record = json.loads(path.read_text())
    other = {
        "machine": record["machine"] | {"threads": 77},
        "seconds": {"float32": 1.0, "bfloat16": 9.0},
    }
    path.write_text(json.dumps(precision.add_checksum(other)))
    assert resolve_auto() == "bfloat16"
    assert machine.measured == 2


@pytest.mark.parametrize("path_kind", ["file", "folder", "nowhere"])
def test_cache_that_cannot_be_written_is_not_an_error(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path_kind: str
) -> None:
    if path_kind == "file":  # where the cache folder should be
        (tmp_path / "cache").touch()
    elif path_kind == "folder":  # where the file should be
        assert resolve_auto() == "bfloat16"
        [path] = cached_files(tmp_path)
        path.unlink()
        path.mkdir()
        machine.measured = 0
    else:
        monkeypatch.setattr(precision, "cache_folder", lambda: None)
    for _ in range(2):
        result = resolve_precision("auto", CPU)
        assert result.name == "bfloat16"
        assert "measured now, not saved: " in result.reason
    assert machine.measured == 2


def test_measurement_of_a_busy_machine_is_rejected(machine: Machine, tmp_path: Path) -> None:
    machine.rounds = 2
    result = resolve_precision("auto", CPU)
    assert result == ("float32", "the machine is too busy to measure whether bfloat16 is faster")
    assert not (tmp_path / "cache").exists()
    machine.rounds = 3
    assert resolve_auto() == "bfloat16"


def test_cache_folder_follows_the_conventions_of_the_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(precision.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "regard"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "regard"
    monkeypatch.setattr(precision.os.path, "expanduser", lambda path: path)  # a user without a home
    assert cache_folder() is None


class Clock:
    """Products whose time is proportional to their rows, and longer at the first call."""

    def __init__(self, rates: dict[str, float], *, busy: float = 1.0):
        self.rates, self.busy, self.calls, self.spent = rates, busy, [], 0.0

    def time(self, name: str, rows: int) -> float:
        factor = 2 if (name, rows) not in self.calls else self.busy if len(self.calls) % 3 else 1.0
        self.calls.append((name, rows))
        seconds = factor * rows * self.rates[name]
        self.spent += seconds
        return seconds


@pytest.mark.parametrize("rates", [(1e-6, 5e-7), (1e-6, 4e-6), (2e-5, 1e-5), (1e-8, 1e-8)])
def test_products_alternate_and_the_fastest_counts(rates: tuple[float, float]) -> None:
    clock = Clock({"float32": rates[0], "bfloat16": rates[1]}, busy=1.5)
    result = measure_products(clock.time)
    assert [name for name, _ in clock.calls] == ["float32", "bfloat16"] * (len(clock.calls) // 2)
    assert result.rounds >= 3
    assert clock.calls[-1][1] == result.rows
    for name, rate in clock.rates.items():
        assert result.seconds[name] == pytest.approx(rate * result.rows)
    assert clock.spent < 0.2
    assert result.gflops["float32"] == pytest.approx(6 * 128 * 512 / rates[0] / 1e9)


def test_products_of_a_fast_machine_have_as_many_rows_as_a_batch() -> None:
    assert measure_products(Clock({"float32": 5e-7, "bfloat16": 5e-7}).time).rows == 4096
    assert measure_products(Clock({"float32": 1e-5, "bfloat16": 1e-5}).time).rows < 4096


def test_products_too_slow_to_repeat_end_the_measurement() -> None:
    clock = Clock({"float32": 1e-3, "bfloat16": 1e-3})
    assert measure_products(clock.time).rounds == 0
    assert len(clock.calls) == 2


def test_measurement_computes_in_each_type_and_draws_no_random_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state, types, real = torch.get_rng_state(), set(), precision.linear

    def linear(x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        types.add((real(x, *more).dtype, torch.is_grad_enabled()))
        return real(x, *more)

    monkeypatch.setattr(precision, "linear", linear)
    with torch.no_grad():
        assert all(value > 0 for value in measure_products().seconds.values())
    assert types == {(torch.float32, True), (torch.bfloat16, True)}
    assert torch.equal(torch.get_rng_state(), state)
