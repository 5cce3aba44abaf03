"""Without compiled code (REGARD_NATIVE=0) torch computes everything, and runs train and answer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from regard.cli.main import main
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
_OPTIONS = "-q", "-x", "-p", "no:cacheprovider", "-k", _CASES
_OPTIONS += "-W", "ignore::pytest.PytestAssertRewriteWarning"  # plugins are imported before
_OPTIONS += "-o", "addopts=--import-mode=importlib"  # shapes are checked with compiled code
_COMMANDS = """
import json
import sys
import pytest
from regard.cli.main import main

run, words, options = json.loads(sys.argv[1])
assert main(["train", *words]) == 0
assert main(["predict", run, "ada bob sees cleo"]) == 0
print("engine compiled:", main(["predict", run, "ada bob", "--engine", "compiled"]))
print("loaded:", sorted({"numba", "regard.native"} & {*sys.modules}))
print("contracts:", int(pytest.main(options)))
"""


def test_runs_train_and_answer_and_contracts_hold_only_without_compiled_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = toy_arguments(tmp_path, core="transformer", steps=3)
    given = json.dumps([str(tmp_path / "run"), words, [*_OPTIONS, *_CONTRACTS]])
    result = subprocess.run(
        [sys.executable, "-c", _COMMANDS, given],
        cwd=ROOT,
        env=os.environ | {"REGARD_NATIVE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "engine compiled: 2" in result.stdout, result.stderr
    assert "loaded: []" in result.stdout
    assert "contracts: 0" in result.stdout, result.stdout[-3000:]
    *slower, refused = [line for line in result.stderr.splitlines() if "engine" in line]
    assert len(slower) == 2, "once for each command"
    reason = (
        "engine 'torch' is used, which is slower: engine 'compiled' does not support this model"
    )
    assert all(f"{reason}: it needs" in line for line in slower)
    assert refused.endswith("needs compiled code, but REGARD_NATIVE is 0. Use engine 'torch'.")
    words[words.index("--train.steps") + 1] = "5"
    assert main(["train", *words]) != 0
    error = capsys.readouterr().err
    assert "belongs to a run with other settings: native was False, is True" in error
