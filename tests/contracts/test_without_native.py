"""Without compiled code (REGARD_NATIVE=0) torch computes everything, and runs train and answer."""

import os
import subprocess
import sys
from pathlib import Path

from tests.recipes.toy import toy_arguments

ROOT = Path(__file__).parents[2]
_CONTRACTS = (
    "tests/contracts/test_read.py",
    "tests/contracts/test_cores.py",
    "tests/layers/test_residual.py",
    "tests/ops/test_token_loss.py",
)
_CASES = (
    "causal_queries_one_at_a_time_equal_all_at_once or (step_by_step_equals_all_at_once and "
    "(additive or gru)) "
    "or gradients_of_gradients_of_the_fused_pass or autocast_is_close"
)
_TRAIN = """
import sys
from regard.cli.main import main

run, *words = sys.argv[1:]
assert main(["train", *words]) == 0
assert main(["predict", run, "ada bob sees cleo"]) == 0
print("engine compiled:", main(["predict", run, "ada bob", "--engine", "compiled"]))
print("loaded:", sorted({"numba", "regard.native"} & {*sys.modules}))
"""


def run(*words: str, native: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=os.environ | {"REGARD_NATIVE": native},
        capture_output=True,
        text=True,
        check=False,
    )


def test_contracts_hold() -> None:
    options = ["-q", "-x", "-p", "no:cacheprovider", "-k", _CASES]
    options += ["-o", "addopts=--import-mode=importlib"]  # shapes are checked with compiled code
    result = run("-m", "pytest", *options, *_CONTRACTS, native="0")
    assert result.returncode == 0, result.stdout[-3000:]


def test_run_trains_and_answers_and_is_resumed_only_without_compiled_code(tmp_path: Path) -> None:
    words = toy_arguments(tmp_path, core="transformer", steps=3)
    result = run("-c", _TRAIN, str(tmp_path / "run"), *words, native="0")
    assert "engine compiled: 2" in result.stdout, result.stderr
    assert "loaded: []" in result.stdout
    *slower, refused = [line for line in result.stderr.splitlines() if "engine" in line]
    assert len(slower) == 2, "once for each command"
    reason = (
        "engine 'torch' is used, which is slower: engine 'compiled' does not support this model"
    )
    assert all(f"{reason}: it needs" in line for line in slower)
    assert refused.endswith("needs compiled code, but REGARD_NATIVE is 0. Use engine 'torch'.")
    words[words.index("--train.steps") + 1] = "5"
    other = run("-m", "regard", "train", *words, native="1")
    assert other.returncode != 0
    assert "belongs to a run with other settings: native was False, is True" in other.stderr
