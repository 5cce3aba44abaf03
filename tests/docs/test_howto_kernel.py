"""Examples of docs/howto/kernel.md: a kernel and a fused operation, added as it says."""

import importlib
import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

from regard.attention.attend import attend
from regard.attention.choices import Hard
from regard.attention.kernels.selection import KERNELS
from regard.attention.masks import causal
from regard.native import table
from regard.ops.dispatch import find, native
from tests.helpers import close

PAGE = Path(__file__).parents[2] / "docs/howto/kernel.md"
BLOCKS = dict(
    re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
)


@pytest.fixture
def add(tmp_path, monkeypatch):
    """Return a function that writes the file of a block and imports it as a module."""

    def import_block(name: str):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(BLOCKS[name], encoding="utf-8")
        module = name.removesuffix(".py").replace("/", ".")
        spec = importlib.util.spec_from_file_location(module, path)
        loaded = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, module, loaded)
        spec.loader.exec_module(loaded)
        return loaded

    return import_block


def test_kernel_is_one_file_and_one_line(add):
    exec(
        BLOCKS["regard/attention/kernels/selection.py"],
        {"KERNELS": KERNELS, "tiled": add("regard/attention/kernels/tiled.py")},
    )
    try:
        query = torch.randn(2, 3, 150, 8, dtype=torch.float64, requires_grad=True)
        memory = (
            torch.randn(2, 3, 150, 8, dtype=torch.float64),
            torch.randn(2, 3, 150, 5, dtype=torch.float64),
        )
        results = [
            attend(query, memory, mask=causal(), kernel=kernel) for kernel in ("tiled", "reference")
        ]
        close(*results)
        close(*(torch.autograd.grad(out.sin().sum(), query)[0] for out in results))
        with pytest.raises(
            ValueError, match=r"'tiled' does not support this read: choice Hard is not Soft\. Use "
        ):
            attend(query, memory, choice=Hard(), kernel="tiled")
    finally:
        del KERNELS["tiled"]


def test_fused_operation_is_two_files_and_one_line(add, monkeypatch):
    squared_relu = add("regard/ops/squared_relu.py").squared_relu
    add("regard/native/squared_relu.py")
    monkeypatch.setattr(table, "OPERATIONS", {**table.OPERATIONS})
    exec(BLOCKS["regard/native/table.py"], vars(table))
    find.cache_clear()
    before = torch.get_num_threads()
    try:
        for shape, threads, is_native in (
            ((7, 9), 1, False),
            ((300, 301), 1, True),
            ((300, 301), 3, True),
        ):
            x = torch.randn(shape, requires_grad=True)
            with torch.no_grad():
                x[0, 0] = float("nan") if is_native else 1.0
            torch.set_num_threads(threads)
            assert (native("squared_relu", x) is not None) == is_native
            out, expected = squared_relu(x), x.relu().square()
            assert torch.equal(out.nan_to_num(-1), expected.nan_to_num(-1))
            gradients = [torch.autograd.grad(y.sum(), x)[0] for y in (out, expected)]
            torch.testing.assert_close(*gradients, equal_nan=True)
    finally:
        torch.set_num_threads(before)
        find.cache_clear()
        del table._accepts_squared_relu
