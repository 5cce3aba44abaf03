"""The compiled loops on a simulated processor with fewer instructions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from regard.native.processor import LANES

FOLDER = Path(__file__).parent
NARROW = """
import sys
from llvmlite import binding

lanes, missing, *files = sys.argv[1:]
host_features = binding.get_host_cpu_features


def narrow():
    features = host_features()
    for name in [*features]:
        if name.startswith(tuple(missing.split(","))):
            features[name] = False
    return features


binding.get_host_cpu_features = narrow

import pytest

failed = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *files])
from regard.native import processor as target

assert target.LANES == int(lanes)
assert not target.HAS_BYTE_PRODUCTS and not target.HAS_PAIR_PRODUCTS
sys.exit(failed)
"""


@pytest.mark.parametrize(
    ("lanes", "missing"),
    [
        (8, "avx512,avxvnni"),
        pytest.param(LANES, "avx512bf16,avx512vnni,avxvnni", marks=pytest.mark.slow),
    ],
)
def test_products_and_loops_without_some_instructions(tmp_path, lanes, missing):
    files = [str(FOLDER / name) for name in ("test_simd.py", "test_matmul.py")]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-c", NARROW, str(lanes), missing, *files],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
