"""`regard predict` and `look` on files of training, structured answers, and bad inputs."""

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from regard.cli.main import main
from regard.recipes.load import load

WORDS = ["stop", "live", "pots"]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working folder with the same texts in every format."""
    monkeypatch.chdir(tmp_path)
    pairs = [(word, word[::-1]) for word in WORDS]
    contents = {
        "pairs.tsv": "".join(f"{a}\t{b}\n" for a, b in pairs),
        "headed.csv": "target,source\n" + "".join(f"{b},{a}\n" for a, b in pairs),
        "sources.tsv": "".join(f"{a}\n" for a in WORDS),
        "wide.csv": "n,source,more\n" + "".join(f"1,{a},x\n" for a in WORDS),
        "pairs.jsonl": "".join(json.dumps({"source": a, "target": b}) + "\n" for a, b in pairs),
        "pairs.json": json.dumps([{"source": a, "target": b} for a, b in pairs]),
        "sources.jsonl": "".join(json.dumps({"source": a}) + "\n" for a in WORDS),
        "lines.txt": "\n".join(WORDS),
    }
    for name in ("folder", "12"):
        (tmp_path / name).mkdir()
    for name, content in contents.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    (tmp_path / "pairs.tsv.gz").write_bytes(gzip.compress(contents["pairs.tsv"].encode()))
    return tmp_path


def predict(run: Path, *words: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert main(["predict", str(run), *words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    "name",
    [
        "pairs.tsv",
        "headed.csv",
        "sources.tsv",
        "wide.csv",
        "pairs.jsonl",
        "pairs.json",
        "sources.jsonl",
        "pairs.tsv.gz",
    ],
)
def test_rows_of_a_table_are_the_texts_of_its_source_column(
    name: str, run: Path, files: Path, capsys
) -> None:
    expected = load(run).predict(WORDS)
    assert predict(run, name, capsys=capsys) == expected
    rows = [json.loads(line) for line in predict(run, name, "--json", capsys=capsys)]
    assert [row["source"] for row in rows] == WORDS
    assert {row["file"] for row in rows} == {name}
    assert [row["outputs"][0]["text"] for row in rows] == expected


def test_options_of_data_choose_how_inputs_are_read(run: Path, files: Path, capsys) -> None:
    (files / "named.csv").write_text(
        "id,de,en\n" + "".join(f"1,x,{w}\n" for w in WORDS), encoding="utf-8"
    )
    shutil.copy(files / "named.csv", files / "named.txt")
    expected = load(run).predict(WORDS)
    chosen = ["--data.source-column", "en"]
    assert predict(run, "named.csv", *chosen, capsys=capsys) == expected
    assert predict(run, "named.txt", *chosen, "--data.format", "csv", capsys=capsys) == expected
    assert main(["look", str(run), "named.csv", *chosen, "--out", "a.html"]) == 0
    assert capsys.readouterr().out.count(" -> ") == 3
    assert main(["predict", str(run), "named.csv", "--data.source-column", "fr"]) == 2
    assert "no column 'fr'; the columns are 'id', 'de', 'en'" in capsys.readouterr().err


def test_lines_of_several_text_files_begin_with_the_name(run: Path, files: Path, capsys) -> None:
    (files / "more.txt").write_text("live\n", encoding="utf-8")
    alone = predict(run, "lines.txt", capsys=capsys)
    named = [f"lines.txt\t{line}" for line in alone] + [f"more.txt\t{alone[1]}"]
    assert predict(run, "lines.txt", "more.txt", capsys=capsys) == named
    assert predict(run, "more.txt", "lines.txt", capsys=capsys)[0] == named[-1]


@pytest.mark.filterwarnings("ignore:never seen in training")
def test_lines_of_standard_input_among_files_are_named(
    run: Path, files: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    def predict_all(*words: str) -> list[str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"live\n-\n")))
        return predict(run, "lines.txt", "-", "stop it", *words, capsys=capsys)

    names = ["lines.txt"] * 3 + ["-"] * 2
    assert [line.partition("\t")[0] for line in predict_all()] == [*names, ""]
    answers = [json.loads(line) for line in predict_all("--json")]
    assert [answer.get("file") for answer in answers] == [*names, None]
    assert [answer["source"] for answer in answers] == [*WORDS, "live", "-", "stop it"]
    assert [answer.get("line") for answer in answers] == [1, 2, 3, 1, 2, None]
    assert predict_all("--out", "out.txt") == []
    assert Path("out.txt").read_text(encoding="utf-8").splitlines() == predict_all()


def test_standard_input_is_a_table_if_its_format_is_given(run: Path, capsys) -> None:
    reader, writer = os.pipe()
    os.write(writer, "".join(f"{word}\tx\n" for word in WORDS).encode())
    os.close(writer)
    before = os.dup(0)
    try:
        os.dup2(reader, 0)
        assert predict(run, "-", "--data.format", "tsv", capsys=capsys) == load(run).predict(WORDS)
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(reader)


def test_outputs_have_the_scores_of_the_search(run: Path, capsys) -> None:
    (line,) = predict(
        run, "stop", "--json", "--decode.beam", "3", "--decode.n-best", "3", capsys=capsys
    )
    row = json.loads(line)
    assert row.keys() == {"input", "source", "outputs"}
    for output in row["outputs"]:
        assert output.keys() == {"text", "score", "log_prob", "finished"}
        length = len(output["text"]) + output["finished"]
        assert output["score"] == pytest.approx(output["log_prob"] / max(length, 1), rel=1e-6)


def test_more_outputs_than_beams_are_refused_and_the_beam_stays(run: Path, capsys) -> None:
    assert main(["predict", str(run), "stop", "--decode.n-best", "8"]) == 2
    assert (
        "--decode.n-best must be at most beam (2), got 8; a wider beam may change the best output"
        in capsys.readouterr().err
    )
    trained = load(run)
    with pytest.raises(ValueError, match="n_best must be at most beam"):
        trained.predict(["stop"], n_best=8)
    ((best, _),) = trained.predict(["stop"], n_best=2)
    assert [best.text] == trained.predict(["stop"])


def test_bad_rows_of_a_table_are_skipped_in_their_place(run: Path, files: Path, capsys) -> None:
    (files / "bad.tsv").write_bytes(b"stop\tpots\nl\xefve\tx\nevil\tlive\n")
    assert main(["predict", str(run), "bad.tsv"]) == 2
    out, err = capsys.readouterr()
    assert "bad.tsv, line 2: not UTF-8" in err
    assert main(["predict", str(run), "bad.tsv", "--on-bad", "skip"]) == 0
    out, err = capsys.readouterr()
    first, last = load(run).predict(["stop", "evil"])
    assert out.splitlines() == [first, "", last]
    assert "skipped 1 of 3 inputs" in err
    assert main(["look", str(run), "bad.tsv", "--out", "a.html"]) == 2
    assert "bad.tsv, line 2: not UTF-8" in capsys.readouterr().err


def test_bad_inputs_are_skipped_in_their_place_or_truncated(run: Path, files: Path, capsys) -> None:
    long = "stop" * 10
    (files / "bad.txt").write_bytes(f"stop\n{long}\n".encode() + b"l\xefve\npots\n")
    assert main(["predict", str(run), "bad.txt", "--out", "-"]) == 2
    out, err = capsys.readouterr()
    assert out.splitlines() == load(run).predict(["stop"])
    assert "regard: bad.txt, line 2: input 2 is too long" in err
    (files / "bad.tsv").write_bytes(b"stop\tpots\nl\xefve\tevil\n")
    assert main(["predict", str(run), "bad.tsv"]) == 2
    assert capsys.readouterr().out.splitlines() == load(run).predict(["stop"])
    assert main(["predict", str(run), "bad.txt", "--on-bad", "skip"]) == 0
    out, err = capsys.readouterr()
    first, last = load(run).predict(["stop", "pots"])
    assert out.splitlines() == [first, "", "", last]
    assert "bad.txt, line 2: input 2 is too long" in err
    assert "bad.txt, line 3: not UTF-8" in err
    assert "skipped 2 of 4 inputs" in err
    ranked = ["--decode.n-best", "2", "--decode.beam", "2", "--on-bad", "skip"]
    rows = [line.split("\t") for line in predict(run, "bad.txt", *ranked, capsys=capsys)]
    assert [row[:2] for row in rows] == [
        ["1", "1"],
        ["1", "2"],
        ["2", ""],
        ["3", ""],
        ["4", "1"],
        ["4", "2"],
    ]
    assert [row[2:] for row in rows[2:4]] == [["", ""]] * 2
    assert main(["predict", str(run), "bad.txt", "--on-bad", "truncate", "--json"]) == 0
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["input"] for row in rows] == [1, 2, 3, 4]
    limit = load(run).recipe.settings.input_limit
    assert rows[1]["source"] == long[:limit]
    assert "not UTF-8" in rows[2]["error"]
    assert rows[3]["outputs"][0]["text"] == last
    assert "truncated: input 2" in err


def test_out_is_written_whole_and_never_over_another_file(run: Path, files: Path, capsys) -> None:
    assert predict(run, "lines.txt", "--out", "answers.txt", capsys=capsys) == []
    assert Path("answers.txt").read_text().splitlines() == load(run).predict(WORDS)
    assert main(["predict", str(run), "lines.txt", "--out", "answers.txt"]) == 2
    assert "answers.txt exists; it is replaced only with --force" in capsys.readouterr().err
    assert predict(run, "stop", "--out", "answers.txt", "--force", capsys=capsys) == []
    assert len(Path("answers.txt").read_text().splitlines()) == 1
    (files / "bad.txt").write_bytes(b"stop\n" + b"stop" * 100)
    assert main(["predict", str(run), "bad.txt", "--out", "none.txt"]) == 2
    assert not Path("none.txt").exists()


SMALL = (
    "--model.core.layers 1 --model.core.width 8 --model.core.heads 2 --model.core.feedforward 8 "
    "--train.steps 2 --train.precision float32 --train.tensorboard false --train.warmup 1"
)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with images of two classes, and a run that was trained on them."""
    folder = tmp_path_factory.mktemp("photos")
    for label, shade in {"dark": 20, "light": 220}.items():
        (folder / "train" / label).mkdir(parents=True)
        for i in range(4):
            Image.new("L", (8, 8), shade + i).save(folder / "train" / label / f"{i}.png")
    data = f"--data.train {folder / 'train'} --data.val {folder / 'train'} --patch 4"
    assert (
        main(f"train images --run {folder / 'run'} {data} {SMALL} --model.pool-heads 2".split())
        == 0
    )
    return folder


def test_images_of_folders_lists_and_several_files_are_named(
    photos: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(photos)
    run, paths = (
        photos / "run",
        sorted(str(path.relative_to(photos)) for path in (photos / "train").rglob("*.png")),
    )
    expected = load(run).predict(paths)
    assert predict(run, "train", capsys=capsys) == [
        f"{p}\t{label}" for p, label in zip(paths, expected, strict=True)
    ]
    assert predict(run, *paths[:2], capsys=capsys) == [
        f"{p}\t{label}" for p, label in zip(paths[:2], expected, strict=False)
    ]
    assert predict(run, paths[0], capsys=capsys) == expected[:1]
    (photos / "list.csv").write_text("file,label\n" + "".join(f"{p},dark\n" for p in paths))
    (photos / "names.txt").write_text("\n".join(paths))
    for name in ("list.csv", "names.txt"):
        rows = [json.loads(line) for line in predict(run, name, "--json", capsys=capsys)]
        assert [row["file"] for row in rows] == paths
        assert [row["label"] for row in rows] == expected
        for row in rows:
            assert row["labels"].keys() == {"dark", "light"}
            assert sum(row["labels"].values()) == pytest.approx(1, abs=1e-5)
            assert row["probability"] == max(row["labels"].values()) == row["labels"][row["label"]]
    assert main(["predict", str(run), "nothing.png"]) == 2
    assert "nothing.png: no such file" in capsys.readouterr().err


def test_a_damaged_image_is_skipped_by_name(photos: Path, tmp_path: Path, capsys) -> None:
    shutil.copytree(photos / "train" / "dark", tmp_path / "some")
    (tmp_path / "some" / "1.png").write_bytes(b"no image")
    assert main(["predict", str(photos / "run"), str(tmp_path / "some")]) == 2
    capsys.readouterr()
    assert main(["predict", str(photos / "run"), str(tmp_path / "some"), "--on-bad", "skip"]) == 0
    out, err = capsys.readouterr()
    assert [line.partition("\t")[0] for line in out.splitlines()] == sorted(
        map(str, (tmp_path / "some").iterdir())
    )
    assert out.splitlines()[1] == str(tmp_path / "some" / "1.png")
    assert "skipped 1 of 4 inputs" in err


def test_names_that_are_not_utf_8_are_printed_as_they_are_and_escaped_in_json(
    photos: Path, tmp_path: Path
) -> None:
    name = os.fsencode(tmp_path / "some") + b"/caf\xe9.png"
    (tmp_path / "some").mkdir()
    shutil.copy(photos / "train" / "dark" / "0.png", os.fsdecode(name))
    words = ["predict", str(photos / "run"), str(tmp_path / "some")]
    code = f"from regard.cli.main import main; main({words}); main({[*words, '--json']})"
    environment = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, env=environment
    )
    files, out = [], tmp_path / "out"
    for more, shown in ([], name + b"\t"), (["--json"], name.replace(b"\xe9", b"\\udce9")):
        assert main([*words, *more, "--out", str(out), "--force"]) == 0
        files.append(out.read_bytes())
        assert shown in files[-1]
    assert result.stdout == b"".join(files)
    assert os.fsencode(json.loads(files[-1])["file"]) == name


def test_tags_are_structured_with_entities(tmp_path: Path, capsys) -> None:
    (tmp_path / "a.conll").write_text(
        "we O\nmet O\non O\n5 B-DAY\nMarch I-DAY\n\nin O\nRome B-PLACE\n\n" * 3
    )
    file = tmp_path / "a.conll"
    data = f"--data.train {file} --data.val {file} --tokenizer.min-count 1"
    run = tmp_path / "run"
    steps = SMALL.replace(
        "--train.steps 2", "--train.steps 60 --train.lr 0.02 --train.validate-every 60"
    )
    assert main(f"train tags --run {run} {data} {steps}".split()) == 0
    (tmp_path / "tokens.conll").write_text("we\nmet\non\n5\nMarch\n\nin\nRome\n")
    (tmp_path / "tokens.jsonl").write_text(
        '{"tokens": ["we", "met", "on", "5", "March"]}\n{"tokens": ["in", "Rome"]}\n'
    )
    expected: list[dict[str, Any]] = [
        {"label": "DAY", "text": "5 March", "start": 10, "end": 17},
        {"label": "PLACE", "text": "Rome", "start": 3, "end": 7},
    ]
    expected[0] |= {"start_token": 3, "end_token": 5}
    expected[1] |= {"start_token": 1, "end_token": 2}
    for name in ("a.conll", "tokens.conll", "tokens.jsonl"):
        rows = [
            json.loads(line) for line in predict(run, str(tmp_path / name), "--json", capsys=capsys)
        ]
        assert [row["entities"] for row in rows[:2]] == [expected[:1], expected[1:]]
        assert rows[0]["tokens"] == rows[0]["source"].split() == ["we", "met", "on", "5", "March"]
        assert rows[0]["tags"] == ["O", "O", "O", "B-DAY", "I-DAY"]
    assert load(run).predict(["in Rome"]) == [["O", "B-PLACE"]]
