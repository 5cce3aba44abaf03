"""The page "Serve a run over HTTP": its commands and code run, and its tables are complete."""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from yaml import safe_load

from regard.cli.serve import ServeOptions
from regard.recipes.base.trained import TrainedRun
from regard.recipes.registry import RECIPES
from regard.serve.config import LimitsConfig
from regard.serve.guard import Guard, read_keys
from regard.serve.requests import Query
from regard.serve.schemas import option_settings
from regard.serve.service import Service
from regard.settings.options import NoSettings, parse
from tests.serve.running import serving_here, untrained_run

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
FILES = ROOT / "docs" / "serve"
COMMANDS = [line.strip() for line in re.findall(r"^    \S.+$", TEXT, re.MULTILINE)]
OPENAPI = safe_load(
    (ROOT / "regard" / "serve" / "openapi" / "document.yaml").read_text(encoding="utf-8")
)
URL, DATE = "http://127.0.0.1:8000", "3 maart 2019"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, TrainedRun]]:
    """Address of a service, and its run."""
    run = untrained_run("dates", tmp_path_factory.mktemp("runs") / "demo")
    with serving_here({"demo": run}) as service:
        yield service.url, run


def table(head: str) -> list[list[str]]:
    """Return the rows of the table with this head."""
    lines = TEXT[TEXT.index(f"| {head} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names(text: str) -> list[str]:
    return re.findall("`([^`]+)`", text)


def test_limits_and_defaults_of_the_table() -> None:
    stated = {
        name.strip("`").removeprefix("--limits."): value for name, value, _ in table("option")
    }
    assert stated == {name: str(value) for name, value in vars(LimitsConfig()).items()}


def test_statuses_are_those_of_the_openapi_document() -> None:
    assert [f"Problem{status}" for status, *_ in table("status")] == [
        name for name in OPENAPI["components"]["responses"] if name.startswith("Problem")
    ]


def test_routes_are_those_of_the_openapi_document() -> None:
    routes = re.findall(r"/[/\w.]*", " ".join(name for row in table("route") for name in row[:1]))
    paths = {path.replace("{id}", "ID") for path in OPENAPI["paths"]}
    assert set(routes) <= paths
    assert paths - set(routes) <= {"/v1/models/{name}"}


def test_metrics_of_the_table() -> None:
    text = Service({}, LimitsConfig()).metrics.text().decode()
    found = set(re.findall(r"^# TYPE (regard_\w+) ", text, re.MULTILINE))
    stated = {name for row in table("metric") for name in names(row[0])}
    assert {name for name in found if not name.endswith("_created")} == {
        name for name in stated if name.startswith("regard_")
    }


def serve_commands() -> list[list[str]]:
    """Return the words of the commands that start a service, on the page and in its files."""
    lines = [line.partition("  #")[0] for line in COMMANDS if line.startswith("regard serve")]
    unit = (FILES / "regard@.service").read_text(encoding="utf-8").replace("%i", "8001")
    lines += re.findall(r"^ExecStart=/\S+/(regard serve .+)$", unit, re.MULTILINE)
    words = [shlex.split(line) for line in lines]
    docker = (FILES / "Dockerfile").read_text(encoding="utf-8")
    start, options = re.findall(r"^(?:ENTRYPOINT|CMD) (\[.+\])$", docker, re.MULTILINE)
    return [*words, json.loads(start) + json.loads(options)]


def test_options_of_the_commands_exist() -> None:
    for name, command, *rest in serve_commands():
        assert (name, command) == ("regard", "serve")
        parsed = parse(rest, ServeOptions(), NoSettings(), allowed=(), max_positionals=9)
        assert parsed.positionals
    assert len(serve_commands()) >= 4


def test_fields_of_the_requests_exist() -> None:
    fields = {row[0].strip("`") for row in table("field")} - {"all others"}
    assert fields == {field.name for field in msgspec.structs.fields(Query)} - {
        "options",
        "is_text",
    }
    known = set(fields)
    for entry in RECIPES.values():
        known |= option_settings(entry, entry.config(), {}).keys()
    used = re.findall(r"[?&](\w+)=| -F (\w+)=", TEXT)
    for body in re.findall(r"/v1/predict .*--json '(\{.+?\})'", TEXT):
        used += [(name, "") for name in json.loads(body)]
    assert len(used) > 10
    assert {first or second for first, second in used} <= known


def test_keys_are_made_by_the_commands(tmp_path: Path) -> None:
    lines = [line for line in COMMANDS if line.startswith(("umask", "KEY=", "echo "))]
    script = "\n".join([*lines, 'printf %s "$KEY" > key'])
    subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, check=True)
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o600
    key = (tmp_path / "key").read_text(encoding="utf-8")
    guard = Guard(keys=read_keys(tmp_path / "keys"))
    guard.check("/v1/runs", {"host": "localhost", "authorization": f"Bearer {key}"})


def curl_commands() -> list[str]:
    """Return the commands that ask the run of the page, with inputs of its own."""
    found = [line for line in COMMANDS if line.startswith(f"curl {URL}/v1/predict --json '")]
    return [line for line in found if '"run"' not in line]


@pytest.mark.parametrize("command", curl_commands())
def test_curl_commands_are_answered(command: str, served: tuple[str, TrainedRun]) -> None:
    address, run = served
    words = shlex.split(command.replace(URL, address))
    result = subprocess.run([*words, "-s"], capture_output=True, check=True)
    reply = json.loads(result.stdout)
    assert [reply["answers"][0]["outputs"][0]["text"]] == run.predict([DATE])
    assert ("look" in reply) == ('"look"' in command)


def test_python_code_runs(
    served: tuple[str, TrainedRun], capsys: pytest.CaptureFixture[str]
) -> None:
    block, _ = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    scope: dict[str, Any] = {}
    exec(block.replace(URL, served[0]), scope)
    assert capsys.readouterr().out.strip() == f"{scope['best']['text']} {scope['best']['score']}"
    assert scope["first"]["outputs"][0]["text"] == served[1].predict([DATE], beam=4)[0]


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node")
def test_javascript_code_runs(served: tuple[str, TrainedRun]) -> None:
    blocks = re.findall(r"^```js\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    outputs = []
    for block in blocks:
        command = ["node", "--input-type=module", "-e", block.replace(URL, served[0])]
        result = subprocess.run(command, capture_output=True, check=True, text=True, timeout=60)
        outputs.append(result.stdout)
    assert [outputs[0].rstrip("\n")] == served[1].predict([DATE], beam=4)
    events = [line.split()[0] for line in outputs[1].splitlines() if line[:1].isalpha()]
    assert events == [*["token"] * (len(events) - 2), "answer", "done"]
