"""`regard compare` on tiny runs of translation."""

import json
from pathlib import Path

import pytest

from regard.cli.main import main
from tests.cli.conftest import TOY


@pytest.fixture(scope="module")
def other(run: Path) -> Path:
    """Return a run of other settings on the same data."""
    folder = run.parent / "other"
    data = [f"--data.{name}={run.parent / name}.tsv" for name in ("train", "val", "test")]
    options = "--seed 2 --train.steps 2 --tokenizer.vocab-size 99 --data.max-length 9"
    small = f"{TOY} --model.core.heads 1 --train.tensorboard false --train.precision float32"
    words = [*options.split(), *small.split(), *data, "--run", str(folder)]
    assert main(["train", "translate", *words]) == 0
    return folder


def test_settings_metrics_and_answers_are_beside_each_other(run, other, capsys, tmp_path) -> None:
    words = ["compare", str(run), str(other), "--samples", "40", "--examples", "2"]
    assert main([*words, "--json", "--out", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["settings"]["seed"] == [1, 2]
    assert found["settings"]["model.core.heads"] == [2, 1]
    assert "model.core.width" not in found["settings"]
    assert main(["evaluate", str(other), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    for name in ("bleu", "chrf", "ter"):
        first, second = found["metrics"][name]
        assert second["score"] == pytest.approx(scores[name])
        assert second["low"] <= second["high"]
        assert first["p"] is None
        assert 0 < second["p"] <= 1
    assert found["metrics"]["nll"][1] == {"score": pytest.approx(scores["nll"])}
    assert len(found["differences"]) <= 2
    for entry in found["differences"]:
        assert entry["source"][::-1] == entry["reference"]
        assert entry["scores"][0] != entry["scores"][1]
    assert main(words) == 0
    table = capsys.readouterr().out
    assert "model.core.heads" in table
    assert "BLEU" in table
    assert "tokenizers may differ, and nll and perplexity are per token of each" in table
    assert main(["compare", str(run), str(run), "--samples", "40"]) == 0
    table = capsys.readouterr().out
    assert "tokenizers" not in table
    assert table.count(" p 1\n") == 3
    assert "40 samples: too narrow, of so few examples" in table
    (tmp_path / "test.tsv").write_text("stop\tpots\n")
    assert main([*words, "--data.test", str(tmp_path / "test.tsv"), "--json"]) == 0
    single = json.loads(capsys.readouterr().out)
    assert [one.keys() for one in single["metrics"]["bleu"]] == [{"score"}, {"score"}]
    assert main([*words, "--data.test", str(tmp_path / "test.tsv")]) == 0
    assert "1 examples; no intervals: they need several examples" in capsys.readouterr().out


def test_runs_that_do_not_compare_are_named(run, other, capsys, tmp_path) -> None:
    assert main(["compare", str(run)]) == 2
    content = json.loads((other / "run.json").read_text())
    (tmp_path / "dates").mkdir()
    dates = json.dumps(content | {"recipe": "dates"})
    (tmp_path / "dates" / "run.json").write_text(dates)
    assert main(["compare", str(run), str(tmp_path / "dates")]) == 2
    assert "test data" not in capsys.readouterr().err
    changed = tmp_path / "other"
    changed.mkdir()
    for path in other.iterdir():
        (changed / path.name).symlink_to(path)
    (changed / "run.json").unlink()
    (tmp_path / "test.tsv").write_text("stop\tpots\n")
    content["config"]["data"]["test"] = [str(tmp_path / "test.tsv")]
    (changed / "run.json").write_text(json.dumps(content))
    assert main(["compare", str(run), str(changed)]) == 2
    error = capsys.readouterr().err
    assert f"{run} and {changed} have other test data" in error
    assert "--data.test FILE evaluates all runs on the same data" in error
    tests = [str(run.parent / "test.tsv")]
    content["config"]["data"] |= {"test": tests, "source_column": 1, "target_column": 1}
    (changed / "run.json").write_text(json.dumps(content))
    assert main(["compare", str(run), str(changed)]) == 2
    assert "the inputs are equal, but not the references" in capsys.readouterr().err
    content["config"]["data"]["test"] = None
    (changed / "run.json").write_text(json.dumps(content))
    assert main(["compare", str(changed), str(changed), "--samples", "40"]) == 0
    assert f"validation data, {run.parent / 'val.tsv'}: " in capsys.readouterr().out
