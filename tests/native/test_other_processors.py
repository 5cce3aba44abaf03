"""The compiled loops on a simulated processor with fewer instructions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from regard.native.decoder.compile import LANES

HERE = Path(__file__).parent
NARROW = """
import sys
from llvmlite import binding

lanes, lacks, *files = sys.argv[1:]
host_features = binding.get_host_cpu_features


def narrow():
    features = host_features()
    features.update({name: False for name in features if name.startswith(tuple(lacks.split(",")))})
    return features


binding.get_host_cpu_features = narrow

import pytest

failed = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *files])
from regard.engines.compiled import compiling

assert (int(lanes), False, False) == (compiling.LANES, compiling.HAS_BYTE_PRODUCTS, compiling.HAS_PAIR_PRODUCTS)
sys.exit(failed)
"""


@pytest.mark.parametrize(("lanes", "lacks"), [(8, "avx512,avxvnni"), (LANES, "avx512bf16,avx512vnni,avxvnni")])
def test_products_and_loops_without_some_instructions(tmp_path, lanes, lacks):
    files = [str(HERE / name) for name in ("test_simd.py", "test_products.py")]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-c", NARROW, str(lanes), lacks, *files],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
