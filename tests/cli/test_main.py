"""The command line as a whole: commands, exit codes, messages."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.cli.main import main
from regard.look.capture import Capture
from regard.recipes.load import load
from tests.look.pages import page_of

ROOT = Path(__file__).parents[2]
TOY = "--model.core.width 16 --model.core.layers 1 --model.core.heads 2 --model.core.feedforward 24"


def type_in(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--version", "-V"):
        assert main([option]) == 0
        assert capsys.readouterr().out == f"regard {regard.__version__}\n"


def test_recipes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    out = capsys.readouterr().out
    assert "dates" in out
    assert "translate" in out


BAD = {
    "trian": "unknown command 'trian'; the commands are train, evaluate",
    "--versions": "unknown command '--versions'",
    "train": "RECIPE is missing: .*the recipes are dates, translate",
    "train dats": "unknown recipe 'dats'; the recipes are dates, translate",
    "train dates extra": "'extra' is an unexpected argument",
    "train dates --model.core.layrs 2": "did you mean --model.core.layers?",
    "train dates --model.core.norm-order psot": "--model.core.norm-order must be pre, post or none",
    "train dates --seed -1": "--seed must be from 0 to .*, got -1",
    "train dates --config nowhere.yaml": "nowhere.yaml: No such file",
    "train dates --model.tie all": "model.tie must be target or none",
    "predict": "RUN is missing",
    "predict nowhere text": "nowhere is not a run folder: it has no run.json",
    "predict {run} text --threshold 0.1": "unknown option --threshold; --help lists all",
    "predict {run} text -n 2": "unknown option -n; as an argument, put it after --",
    "predict {run} nowhere.txt": "nowhere.txt: no such file",
    "predict {run} stop --decode.beam 0": "--decode.beam must be from 1 to 1,000, got 0",
    "predict {run} stop --device warp": "--device must be auto, cpu, .* got 'warp'",
    "predict {run} too_long_for_it": "input 1 is too long: 15 tokens; the limit is 9 tokens",
    "evaluate tests": "tests is not a run folder: it has no run.json",
    "evaluate {run} a.tsv": "'a.tsv' is an unexpected argument",
    "evaluate {run} --data.test nowhere.tsv": "nowhere.tsv",
    "look {run}": "INPUT is missing",
    "look {run} stop --out {run}/../a.jpg": "must end in one of .html, .safetensors, .png, .svg",
    "look {run} stop --out {run}/../a.svg --compare {run}": "--compare needs a page, FILE.html",
    "look {run} --test 5000 --out {run}/../a.html": "no input 5000",
    "look {run} --test x --out {run}/../a.html": "--test must be a whole number, got 'x'",
}


@pytest.mark.parametrize("line", BAD)
def test_error_is_reported_in_one_line(
    line: str, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(line.format(run=run).split()) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("regard: ")
    assert err.count("\n") == 1
    assert re.search(BAD[line].format(run=run).replace("?", r"\?"), err), err


def test_empty_text_has_an_empty_output(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(run), "ada sees", " ", "bob sees", ""]) == 0
    out, err = capsys.readouterr()
    assert [bool(line) for line in out.split("\n")] == [True, False, True, False, False]
    assert "input 2 is empty, and so is its output" in err
    assert "input 4 is empty, and so is its output" in err


def test_evaluate_prints_a_table_or_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run)]) == 0
    table = capsys.readouterr().out
    assert "test.tsv: 8 examples, beam 2" in table
    assert "tok:13a" in table
    other = str(run.parent / "val.tsv")
    assert main(["evaluate", str(run), "--json", "--decode.beam", "1", "--data.test", other]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert (scores["data"], scores["beam"]) == (other, 1)


@pytest.mark.parametrize("source", ["text", "file", "dash", "nothing"])
def test_predict_takes_its_input_from_anywhere(
    source: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = ["stop"] if source == "text" else ["stop", "live", "pots"]
    content = "\n".join(lines).encode()
    if source == "file":
        (tmp_path / "lines.txt").write_bytes(content)
    else:
        type_in(monkeypatch, content)
    words = {"text": ["stop"], "file": [str(tmp_path / "lines.txt")], "dash": ["-"], "nothing": []}[
        source
    ]
    assert main(["predict", str(run), *words]) == 0
    assert capsys.readouterr().out.splitlines() == load(run).predict(lines)


@pytest.mark.filterwarnings("default")
def test_predict_prints_one_line_per_input_line_and_warns(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, "stop\r\n\n\nl\u0436ve\n".encode())
    assert main(["predict", str(run)]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 4
    assert out.splitlines()[1:3] == ["", ""]
    assert sorted(err.splitlines()) == [
        "input 4: never seen in training, so read as unknown: '\u0436'",
        "skipped 2 of 4 inputs, whose outputs are empty",
        "skipped: -, line 2: input 2 is empty",
        "skipped: -, line 3: input 3 is empty",
    ]


def test_predict_names_the_line_that_is_not_utf8(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, b"stop\nl\xefve\n")
    assert main(["predict", str(run)]) == 2
    out, err = capsys.readouterr()
    assert "standard input, line 2: not UTF-8" in err
    assert out.splitlines() == load(run).predict(["stop"])
    type_in(monkeypatch, "stop\n".encode("utf-16"))
    assert main(["predict", str(run)]) == 2
    assert "standard input: is UTF-16, expected UTF-8" in capsys.readouterr().err


def test_n_best_outputs_are_rows_of_input_rank_score_text(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("stop\nlive\n", encoding="utf-8")
    beam = ["--decode.beam", "3"]
    assert main(["predict", str(run), str(file), "--decode.n-best", "3", *beam]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[:2] for row in rows] == [[str(i), str(rank)] for i in (1, 2) for rank in (1, 2, 3)]
    assert main(["predict", str(run), str(file), "--decode.n-best=3", "--json", *beam]) == 0
    objects = [
        output
        for line in capsys.readouterr().out.splitlines()
        for output in json.loads(line)["outputs"]
    ]
    assert [f"{entry['score']:.4f}" for entry in objects] == [row[2] for row in rows]
    assert [entry["text"] for entry in objects] == [row[3] for row in rows]


def test_look_writes_a_picture_and_never_over_another(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.png", "a.svg"):
        look = ["look", str(run), "stop", "--out", str(tmp_path / name)]
        assert main(look) == 0
        before = (tmp_path / name).read_bytes()
        assert main(look) == 2
        assert main([*look, "--force", "--layer", "1"]) == 0
        assert (tmp_path / name).read_bytes() == before
    assert "stop -> " in capsys.readouterr().out
    capsys.readouterr()
    for options, message in {
        ("--layer", "3"): "layer must be one of 1, got 3",
        ("--sample", "1"): "sample must be between 0 and 0, got 1",
        ("--kind", "chain"): "no reads of kind chain",
        (
            "--view",
            "tracks",
        ): "this sample has no plane",
    }.items():
        assert main(["look", str(run), "stop", "--out", str(tmp_path / "b.svg"), *options]) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "b.svg").exists()


@pytest.mark.parametrize("option", ["view heat", "kind cross", "layer 1", "head 1", "sample 0"])
def test_options_of_figures_need_a_figure(
    run: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    words = f"--{option}".split()
    for out in ([], ["--out", "a.html"], ["--out", "a.safetensors"]):
        assert main(["look", str(run), "stop", *words, *out]) == 2
        assert f"{words[0]} needs a figure, --out FILE" in capsys.readouterr().err


def test_look_writes_a_page_beside_the_run_and_never_over_another(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for expected in ("stop.html", "stop-2.html"):
        assert main(["look", str(run), "stop"]) == 0
        title, path = capsys.readouterr().out.splitlines()
        assert title.startswith("stop -> ")
        assert Path(path) == run / "looks" / expected
        content, _ = page_of(Path(path))
        assert [scene["title"] for scene in content["captures"][0]["samples"]] == [title]


@pytest.mark.parametrize(
    ("screen", "asks_for", "is_opened"),
    [(":0", "true", True), ("", "true", False), (":0", "false", False)],
)
def test_look_opens_the_page_where_there_is_a_screen(
    run, tmp_path, monkeypatch, *, screen, asks_for, is_opened
):
    urls: list[str] = []
    monkeypatch.setattr("webbrowser.open", urls.append)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", screen)
    out = tmp_path / "a.html"
    assert main(["look", str(run), "stop", "--out", str(out), "--open", asks_for]) == 0
    assert urls == ([out.as_uri()] if is_opened else [])


def test_look_takes_texts_files_and_test_inputs_together(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, out = tmp_path / "lines.txt", tmp_path / "a.html"
    lines.write_text("\n".join(["", *["stop"] * 7]), encoding="utf-8")
    assert (
        main(
            [
                "look",
                str(run),
                "live",
                str(lines),
                "--test",
                "1",
                "0",
                "--limit",
                "4",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    printed = capsys.readouterr()
    assert f"{lines}: only the first 4 inputs are shown" in printed.err
    content, _ = page_of(out)
    titles = [scene["title"] for scene in content["captures"][0]["samples"]]
    assert titles == printed.out.splitlines()[:-1]
    assert [title.partition(" -> ")[0] for title in titles[:5]] == ["live", *["stop"] * 4]
    trained = load(run)
    assert [title.partition(" -> ")[0] for title in titles[5:]] == [
        trained.test_input(i).strip() for i in (1, 0)
    ]


def test_look_shows_gradients_and_compares_another_run(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.html"
    assert (
        main(["look", str(run), "stop", "--gradients", "--compare", str(run), "--out", str(out)])
        == 0
    )
    content, _ = page_of(out)
    for capture in content["captures"]:
        measures = {read["measure"] for read in capture["samples"][0]["reads"]}
        assert {"weight", "weight x gradient"} <= measures


def test_look_writes_numbers_that_open_without_the_model(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.safetensors"
    assert main(["look", str(run), "stop", "--out", str(out)]) == 0
    (loaded,) = Capture.open(out)
    (expected,) = load(run).look(["stop"])
    assert loaded.sample.title == expected.sample.title
    assert [attention_map.name for attention_map in loaded.maps] == [
        attention_map.name for attention_map in expected.maps
    ]
    for name in ("a.html", "a-2.html"):
        assert main(["look", str(out)]) == 0
        content, _ = page_of(tmp_path / name)
        assert content["captures"][0]["samples"][0]["title"] == expected.sample.title
    assert main(["look", str(out), "--out", str(tmp_path / "a.svg")]) == 0
    assert (
        main(["look", str(run), "live", "--compare", str(out), "--out", str(tmp_path / "b.html")])
        == 0
    )
    content, _ = page_of(tmp_path / "b.html")
    assert [
        capture["samples"][0]["title"].partition(" ->")[0] for capture in content["captures"]
    ] == ["live", "stop"]


def test_damaged_capture_and_options_that_need_the_run_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"12345678")
    for words, message in {
        (str(bad),): "bad.safetensors is damaged or not a capture",
        ("nowhere.safetensors",): "nowhere.safetensors: no such file",
        (str(bad), "text"): "'text' is an unexpected argument",
        (str(bad), "--gradients"): "need a RUN, not a saved capture",
    }.items():
        assert main(["look", *words]) == 2
        assert message in capsys.readouterr().err


def command(*argv: str, **options: Any) -> subprocess.Popen[str]:
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    words = [sys.executable, "-m", "regard", *argv]
    return subprocess.Popen(words, text=True, cwd=ROOT, **streams, **options)


def test_predict_answers_each_line_before_the_next_and_handles_a_closed_pipe(run: Path) -> None:
    with command("predict", str(run), "-") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for text in ("stop", "live"):
            process.stdin.write(text + "\n")
            process.stdin.flush()
            assert process.stdout.readline().strip() == load(run).predict([text])[0].strip()
        process.stdout.close()
        process.stdin.write("pots\n")
        process.stdin.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_help_does_not_import_torch() -> None:
    # Check that slow imports are left out, because timings would fail on a busy machine.
    heavy = ["torch", "numpy", "sacrebleu", "tokenizers", "babel", "rich", "matplotlib"]
    code = (
        "import sys; from regard.cli.main import main; code = main(['train', 'dates', '--help']); "
        f"sys.exit(code or [name for name in {heavy} if name in sys.modules] or 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("usage: regard train dates")
