"""Runs of all recipes behind HTTP answer as `predict` does."""

import base64
import io
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from regard.cli.main import main
from regard.recipes.base.trained import TrainedRun
from regard.recipes.registry import RECIPES
from regard.training.tensors import tensors_of, write_tensors
from tests.recipes.answer_checks import check_answers
from tests.recipes.tiny import folder
from tests.serve.document import validator
from tests.serve.running import RunningService, serving_here, untrained_run

FILES = {
    "images": "images/a/0.png",
    "boxes": "images/a/1.png",
    "caption": "images/a/2.png",
    "rebuild": "images/b/0.png",
    "events": "0.wav",
    "points": "0.npz",
    "tracks": "tracks.txt",
}
"""A file that is an input, by recipe; the others read texts."""
TYPES = {".png": "image/png", ".wav": "audio/wav", ".txt": "text/plain"}


class Served(NamedTuple):
    """Runs by recipe, and the service that has them all."""

    runs: dict[str, TrainedRun]
    service: RunningService


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("runs")
    runs = {recipe: untrained_run(recipe, root / recipe) for recipe in RECIPES}
    for recipe in ("dates", "translate", "language"):
        runs[recipe].compile("compiled")
    with serving_here(runs) as service:
        yield Served(runs, service)


def example(recipe: str) -> Any:
    """Return an input as `predict` takes it: a text, or the content of a file."""
    if recipe in FILES:
        return (folder() / FILES[recipe]).read_bytes()
    return "Bob sees a b" if recipe == "tags" else "a b c"


def to_json(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def same(own: Any, other: Any) -> bool:
    """Return True for equal answers; torch computes batches of other sizes to rounding."""
    if isinstance(own, float) and isinstance(other, float):
        return bool(np.isclose(own, other, rtol=1e-4, atol=1e-6))
    if isinstance(own, dict) and isinstance(other, dict):
        return own.keys() == other.keys() and all(same(own[key], other[key]) for key in own)
    if isinstance(own, list) and isinstance(other, list):
        return len(own) == len(other) and all(map(same, own, other))
    return bool(own == other)


@pytest.mark.parametrize("recipe", RECIPES)
def test_answer_is_that_of_predict(served: Served, recipe: str) -> None:
    run, value = served.runs[recipe], example(recipe)
    response = served.service.ask("/v1/predict", {"run": recipe, "inputs": [to_json(value)] * 2})
    assert response.status == 200, response.body
    answers = response.json["answers"]
    assert [answer.pop("input") for answer in answers] == [1, 2]
    expected = json.loads(json.dumps(run.answer([value] * 2)))
    assert same(answers, expected)
    check_answers(run, answers)


@pytest.mark.parametrize("recipe", FILES)
def test_file_is_the_body_or_in_a_form(served: Served, recipe: str) -> None:
    content, kind = example(recipe), TYPES.get(Path(FILES[recipe]).suffix)
    request = {"run": recipe, "inputs": [to_json(content)]}
    expected = served.service.ask("/v1/predict", request).json["answers"]
    query = urllib.parse.urlencode({"run": recipe})
    headers = {"Content-Type": kind or "application/octet-stream"}
    body = served.service.ask(f"/v1/predict?{query}", content, headers=headers)
    assert body.json["answers"] == expected
    head = '--x\r\nContent-Disposition: form-data; name="inputs"; filename="f"\r\n\r\n'
    form = head.encode() + content + b"\r\n--x--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    sent = served.service.ask(f"/v1/predict?{query}", form, headers=headers)
    assert sent.json["answers"] == expected


@pytest.mark.parametrize("recipe", RECIPES)
def test_bad_input_has_a_place_and_fails_alone(served: Served, recipe: str) -> None:
    value = to_json(example(recipe))
    bad: Any = to_json(b"not a file") if recipe in FILES else 5
    request = {"run": recipe, "inputs": [value, bad]}
    response = served.service.ask("/v1/predict", request)
    assert (response.status, response.json["at"]) == (422, "inputs[1]")
    assert response.headers["content-type"] == "application/problem+json"
    skipped = served.service.ask("/v1/predict", request | {"on_bad": "skip"}).json["answers"]
    alone = served.service.ask("/v1/predict", request | {"inputs": [value]}).json["answers"]
    assert skipped[:1] == alone
    assert skipped[1].keys() == {"input", "error"}
    assert response.json["detail"] == skipped[1]["error"]


def test_file_in_the_field_of_an_option_is_refused(served: Served) -> None:
    head = '--x\r\nContent-Disposition: form-data; name="beam"; filename="f"\r\n\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    response = served.service.ask("/v1/predict", f"{head}3\r\n--x--\r\n".encode(), headers=headers)
    assert (response.status, response.json["at"]) == (422, "beam")


def test_array_of_a_size_that_no_memory_holds(served: Served) -> None:
    array, archive = io.BytesIO(), io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**12, 3)}
    np.lib.format.write_array_header_1_0(array, header)
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("points.npy", array.getvalue() + b"x" * 100)
    request = {"run": "points", "inputs": [to_json(archive.getvalue())]}
    response = served.service.ask("/v1/predict", request)
    assert (response.status, response.json["at"]) == (422, "inputs[0]")


def test_name_of_a_file_is_not_opened(served: Served) -> None:
    for recipe, name in FILES.items():
        path = str(folder() / name)
        response = served.service.ask("/v1/predict", {"run": recipe, "inputs": [path]})
        assert response.status == 422, recipe


def test_options_are_those_of_answers(served: Served) -> None:
    request = {"run": "translate", "inputs": ["a b"], "beam": 3, "n_best": 2}
    outputs = served.service.ask("/v1/predict", request).json["answers"][0]["outputs"]
    assert outputs == served.runs["translate"].answer(["a b"], beam=3, n_best=2)[0]["outputs"]
    assert len(outputs) == 2
    for wrong in ({"beam": "3"}, {"beam": 17}, {"bem": 3}, {"batch_tokens": 1}, {"n_best": 5}):
        response = served.service.ask("/v1/predict", request | {"beam": 3} | wrong)
        assert response.status == 422, wrong
    query = "run=translate&beam=3&n_best=2"
    form = b'--x\r\nContent-Disposition: form-data; name="inputs"\r\n\r\na b\r\n--x--\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    sent = served.service.ask(f"/v1/predict?{query}", form, headers=headers)
    assert sent.json["answers"][0]["outputs"] == outputs


def test_streamed_tokens_are_those_of_the_answer(served: Served) -> None:
    for run, options in (("dates", {"beam": 1}), ("language", {}), ("translate", {"beam": 1})):
        request = {"run": run, "inputs": ["a b", "", "c"], **options}
        request["inputs"] = request["inputs"] if run != "language" else ["a b", "c"]
        expected = served.service.ask("/v1/predict", request).json
        response = served.service.ask("/v1/predict", request | {"stream": True})
        assert response.headers["content-type"].startswith("text/event-stream")
        texts, answers = [""] * len(request["inputs"]), []
        *events, end = response.body.decode().strip().split("\n\n")
        for event in events:
            name, data = event.removeprefix("event: ").split("\ndata: ")
            content = json.loads(data)
            if name == "token":
                texts[content["input"] - 1] += content["text"]
            else:
                answers.append(content)
        assert answers == expected["answers"]
        found = [
            answer["outputs"][0]["text"] if "outputs" in answer else answer["text"]
            for answer in answers
        ]
        assert texts == found
        assert end.startswith("event: done\n")


@pytest.mark.parametrize("recipe", RECIPES)
def test_look_is_that_of_the_answer(served: Served, recipe: str) -> None:
    value = to_json(example(recipe))
    request = {"run": recipe, "inputs": [value, value], "look": True}
    reply = served.service.ask("/v1/predict", request).json
    if recipe == "rebuild":
        assert "no attention" in reply["look"]["note"]
        return
    rows = reply["look"]["rows"]
    assert {row["sample"] for row in rows} >= {1, 2}
    if recipe in ("dates", "translate", "language", "caption"):
        texts = set[str]()
        for answer in reply["answers"]:
            texts.add(answer["outputs"][0]["text"] if "outputs" in answer else answer["text"])
        titles = {row["title"].partition(" -> ")[2].strip() for row in rows}
        assert titles == {text.strip() for text in texts}


@pytest.mark.parametrize(
    ("recipe", "options"),
    [("translate", {"beam": 2}), ("images", {}), ("dates", {"on_bad": "skip"})],
)
def test_what_does_not_stream_is_refused(served: Served, recipe: str, options: Any) -> None:
    request = {"run": recipe, "inputs": [to_json(example(recipe))], "stream": True, **options}
    assert served.service.ask("/v1/predict", request).status == 422


def test_runs_are_listed_with_their_limits(served: Served) -> None:
    found = {run["name"]: run for run in served.service.ask("/v1/runs").json["runs"]}
    assert [*found] == [*RECIPES]
    assert found["images"]["labels"] == ["a", "b"]
    assert found["translate"]["options"]["beam"]["default"] == 2
    assert found["translate"]["engine"] == "compiled float32"
    assert {name for name, run in found.items() if run["streams"]} == {
        "dates",
        "translate",
        "language",
    }
    for name, run in found.items():
        assert run["input"] == served.runs[name].input
        assert run["parameters"] == served.runs[name].num_parameters


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere is not a run folder"),
        (["RUN", "--host", "0.0.0.0"], "--keys FILE, or --open"),
        (["RUN", "RUN"], "two runs are named dates"),
        (["RUN", "--port", "TAKEN"], "Address already in use"),
        ([], "RUN is missing"),
    ],
)
def test_wrong_command_is_one_line(
    served: Served, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {"RUN": str(served.runs["dates"].folder), "TAKEN": str(served.service.port)}
    assert main(["serve", *(known.get(word, word) for word in words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_missing_package_is_named(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("regard.serve.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, "starlette.responses", None)
    assert main(["serve", str(served.runs["dates"].folder)]) == 2
    message = 'regard: regard serve needs starlette: pip install -e ".[serve]"\n'
    assert capsys.readouterr().err == message


_WITHOUT_EXTRAS = """
import json, sys
from regard.system.extras import EXTRAS
sys.modules.update({name: None for name, extra in EXTRAS.items() if extra != "serve"})
from regard.cli.main import main
for words in json.loads(sys.argv[1]):
    assert main(words) == 0, words
run, out = json.loads(sys.argv[1])[0][1], sys.argv[2]
for words in (["train", "dates", "--run", out], ["look", run, "a", "--out", out + ".png"]):
    assert main(words) == 2, words
del sys.modules["babel"]
import regard.serve.server
"""
"""Program that runs commands as if no extra but `serve` were installed."""


def test_runs_answer_without_the_packages_of_training(served: Served, tmp_path: Path) -> None:
    commands, expected = [], []
    for recipe, run in served.runs.items():
        shutil.copytree(run.folder, tmp_path / recipe)
        write_tensors(tmp_path / recipe / "model.safetensors", tensors_of(run.model))
        value = str(folder() / FILES[recipe]) if recipe in FILES else example(recipe)
        commands.append(["predict", str(tmp_path / recipe), value, "--json"])
        expected += json.loads(json.dumps(run.answer([example(recipe)])))
    words = [json.dumps(commands), str(tmp_path / "new")]
    program = [sys.executable, "-c", _WITHOUT_EXTRAS, *words]
    result = subprocess.run(program, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for wanted, line in zip(expected, result.stdout.splitlines(), strict=False):  # then look prints
        answer = json.loads(line)
        for image in [*wanted.get("images", ()), *answer.get("images", ())]:
            for name in image.keys() & {"pixels", "file"}:  # of the command
                del image[name]
        assert same({name: answer[name] for name in wanted}, wanted), line
    train, look = result.stderr.splitlines()[-2:]
    assert train == 'regard: regard train needs rich: pip install -e ".[train]"'
    assert look == 'regard: a figure needs matplotlib: pip install -e ".[train]"'
    assert not (tmp_path / "new").exists()


def test_examples_of_the_document_are_answered(served: Served) -> None:
    document = served.service.ask("/openapi.json").json
    predict = document["paths"]["/v1/predict"]["post"]
    sent = predict["requestBody"]["content"]["application/json"]["examples"]
    replied = predict["responses"]["200"]["content"]["application/json"]["examples"]
    assert [*sent] == [*replied] == [*RECIPES]
    replies = validator(document, "Reply")
    for recipe, request in sent.items():
        response = served.service.ask("/v1/predict", request["value"])
        assert response.status == 200, response.body
        replies.validate(response.json)
        assert same(response.json["answers"], replied[recipe]["value"]["answers"])


def test_random_requests_have_answers_as_documented(served: Served, tmp_path: Path) -> None:
    """Some 200 requests of schemathesis: valid ones, and ones with a mistake.

    More by hand: `SCHEMATHESIS_HOOKS=tests/serve/schemathesis_hooks.py schemathesis --config-file
    tests/serve/schemathesis.toml run URL/openapi.json`.
    """
    words = ["run", f"{served.service.url}/openapi.json", "--phases", "examples,fuzzing"]
    words += ["--max-examples", "40", "--seed", "1", "--warnings", "off"]
    program, folder = Path(sys.executable).with_name("schemathesis"), Path(__file__).parent
    done = subprocess.run(
        [str(program), "--config-file", str(folder / "schemathesis.toml"), *words],
        cwd=tmp_path,
        env=os.environ | {"SCHEMATHESIS_HOOKS": str(folder / "schemathesis_hooks.py")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.search(r"(\d+) generated", done.stdout)
    assert counts
    assert int(counts[1]) >= 200
