"""Command `regard lab`: the list, wrong names and seeds, one claim."""

import json
from contextlib import nullcontext

from regard.cli.main import main
from regard.lab import protocol, session
from regard.lab.registry import CLAIMS, known_verdicts


def test_list_has_every_claim_with_its_verdict(capsys):
    assert main(["lab"]) == 0
    text = capsys.readouterr().out
    for name, verdict in known_verdicts().items():
        assert f"{name} ({verdict})" in text
    assert set(known_verdicts()) <= set(CLAIMS)
    assert main(["lab", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == known_verdicts()


def test_unknown_claim_names_the_nearest(capsys):
    assert main(["lab", "influense"]) == 2
    assert "unknown claim 'influense'; the nearest are influence" in capsys.readouterr().err


def test_all_beside_a_name_is_every_claim_once(tmp_path, capsys, monkeypatch):
    ran = []
    monkeypatch.setattr(protocol, "workers", lambda _: nullcontext())
    monkeypatch.setattr(
        session, "run_claim", lambda name, **options: (ran.append(name), ("", ""))[1]
    )
    assert main(["lab", "variance", "all", "--out", str(tmp_path)]) == 0
    assert ran == list(CLAIMS)
    assert main(["lab", "all", "influense"]) == 2
    assert "unknown claim 'influense'" in capsys.readouterr().err


def test_seeds_must_be_different_numbers(capsys):
    assert main(["lab", "variance", "--seeds", "1", "1"]) == 2
    assert "seeds must be one or more different numbers" in capsys.readouterr().err


def test_claim_is_run_with_its_files(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)  # one process
    words = ["lab", "vanishing-gradient", "--out", str(tmp_path), "--seeds", "1"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "Verdict: none**, nothing can be decided by a quick run, or by one seed." in text
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".md", ".svg"}
    assert main([*words[:-1], "2"]) == 2
    assert "vanishing-gradient.json is of other seeds" in capsys.readouterr().err
    assert main([*words, "--json"]) == 0  # kept, as --force is not given
    assert json.loads(capsys.readouterr().out)["seeds"] == [1]
