"""Help of commands, completion in a shell, and switches that are turned off."""

import shutil
import subprocess

import pytest

from regard.cli.completion import complete
from regard.cli.main import main


def test_help_of_a_command_is_its_help_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "train", "reviews"]) == 0
    by_name = capsys.readouterr().out
    assert main(["train", "reviews", "--help"]) == 0
    assert by_name == capsys.readouterr().out
    assert "--data.text-column" in by_name


CASES = {
    "tr": ["train"],
    "train revi": ["reviews"],
    "train reviews --data.text": ["--data.text-column"],
    "train translate --preset bah": ["bahdanau"],
    "train images --preset bah": [],
    "train translate --train.schedule i": ["inverse_sqrt"],
    "train translate --model.core rec": ["recurrent"],
    "train translate --model.core=rec": ["--model.core=recurrent"],
    "train translate --model.core = rec": ["recurrent"],
    "train translate --model.core recurrent --model.core.dec": ["--model.core.decoder-layers"],
    "train translate --data.train tr": [],
    "predict run --engine com": ["compiled"],
    "predict run --ou": ["--out"],
    "look run --ou": ["--out"],
    "look run --view pos": ["positions"],
    "predict run --on": ["--on-bad"],
    "help eval": ["evaluate"],
    "predict run tex": [],
}


@pytest.mark.parametrize("words", CASES)
def test_words_are_completed(words: str) -> None:
    assert complete(words.split()) == CASES[words]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_script_of_bash_completes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    calls = (
        'regard() { [ "$1 $2 $3" = "completion bash train" ] && printf "images\\nlanguage\\n"; }'
    )
    words = "COMP_WORDS=(regard train la); COMP_CWORD=2; _regard; echo ${COMPREPLY[@]}"
    lines = f"{script}\n{calls}\n{words}"
    found = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "language"


def test_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "csh"]) == 2
    assert "bash, zsh, fish" in capsys.readouterr().err
