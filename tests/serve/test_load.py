"""The service under load: a recipe of one's own whose answers take as long as the input says."""

import concurrent.futures
import hashlib
import importlib.util
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.cli.own_recipe import run_own
from regard.recipes.registry import RECIPES
from regard.serve.config import LimitsConfig
from tests.serve.running import Response, RunningService, serving, serving_here

TEMPLATE = Path(__file__).parents[2] / "regard" / "cli" / "recipe.py.txt"
FORWARD = """        seconds = sum(number for row in rows for number in row if number < 0)
        if any(math.isnan(number) for row in rows for number in row):
            raise ValueError("numbers must not hold NaN")
        time.sleep(-seconds)
"""
"""Inputs below 0 take so many seconds, and NaN is an error of the whole batch."""
TRAIN = "--train.steps 1 --train.average 0 --train.tensorboard false --threads 1"


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """File of the recipe, a module of this process, beside its run."""
    path = tmp_path_factory.mktemp("own") / "mine.py"
    text = TEMPLATE.read_text(encoding="utf-8").replace("NAME", "mine")
    begin = "        device = next(inference.model.parameters()).device\n"
    assert begin in text
    text = text.replace(begin, FORWARD + begin).replace(
        "import sys\n", "import math\nimport sys\nimport time\n", 1
    )
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("mine", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "mine", module)  # where the documents of its settings are found
        spec.loader.exec_module(module)
        words = f"train --run {path.parent / 'run'} {TRAIN}".split()
        assert run_own(module.ENTRY, argv=words) == 0
        yield path
    del RECIPES["mine"]


@pytest.fixture(scope="module")
def service(mine: Path) -> Iterator[RunningService]:
    run = regard.load(mine.parent / "run", recipe=RECIPES["mine"])
    limits = LimitsConfig(waiting=3, body=2000, memory=3500, upload=1)
    with serving_here({"run": run}, limits=limits) as running:
        yield running


def ask(service: RunningService, *inputs: str, **fields: Any) -> Response:
    return service.ask("/v1/predict", {"inputs": [*inputs], **fields})


def ask_at_once(service: RunningService, requests: Sequence[dict[str, Any]]) -> list[Response]:
    """Return the answers to requests that are sent within a few milliseconds, in order."""
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        sent = []
        for request in requests:
            sent.append(pool.submit(service.ask, "/v1/predict", request))
            time.sleep(0.05)
        return [future.result() for future in sent]


def test_recipe_of_ones_own_is_served(service: RunningService) -> None:
    (run,) = service.ask("/v1/runs").json["runs"]
    assert (run["recipe"], run["input"], run["streams"]) == ("mine", "text", False)
    (answer,) = ask(service, "3 9.5 7").json["answers"]
    assert answer.keys() == {"input", "value"}


def test_error_of_an_input_touches_no_other_request(service: RunningService) -> None:
    requests = [{"inputs": ["-0.3"]}, {"inputs": ["1"]}, {"inputs": ["nan"]}, {"inputs": ["2"]}]
    _, one, bad, two = ask_at_once(service, requests)  # the last three are one batch
    assert (bad.status, bad.json["at"]) == (422, "inputs[0]")
    assert "NaN" in bad.json["detail"]
    assert one.json["answers"] == ask(service, "1").json["answers"]
    assert two.json["answers"] == ask(service, "2").json["answers"]


def test_full_queue_refuses_before_the_body_is_read(service: RunningService) -> None:
    slow = [{"inputs": ["-0.5"]}] * 4  # one is computed, three wait
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(ask_at_once, service, slow)
        while metric(service, "regard_waiting") < 3 and not running.done():
            time.sleep(0.01)
        with socket.create_connection((service.host, service.port), timeout=10) as client:
            head = (
                f"POST /v1/predict HTTP/1.1\r\nHost: {service.host}\r\nContent-Length: 100\r\n\r\n"
            )
            begin = time.perf_counter()
            client.sendall(head.encode())  # and no body
            answer = client.recv(4096).decode()
            seconds = time.perf_counter() - begin
        accepted = running.result()
    assert answer.startswith("HTTP/1.1 429 ")
    assert "retry-after: " in answer.lower()
    assert "application/problem+json" in answer
    assert seconds < 0.3  # no answer of the queue takes less than 0.5
    assert [response.status for response in accepted] == [200] * 4
    assert ask(service, "1").status == 200


def test_missed_deadline_frees_the_place(service: RunningService) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        slow = pool.submit(ask, service, "-0.6")
        time.sleep(0.15)
        late = ask(service, "1", "2", "3", deadline=0.1)
        after = ask(service, "4")
        assert (slow.result().status, late.status, after.status) == (200, 504, 200)
    assert late.json["title"] == "Gateway Timeout"


def test_client_that_leaves_frees_its_place(service: RunningService) -> None:
    before = metric(service, "regard_cancelled_total")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(ask, service, "-0.6")
        time.sleep(0.15)
        with socket.create_connection((service.host, service.port), timeout=10) as client:
            body = b'{"inputs": ["1", "2", "3"]}'
            head = f"POST /v1/predict HTTP/1.1\r\nHost: {service.host}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            time.sleep(0.15)
            assert metric(service, "regard_waiting") == 3
        time.sleep(0.15)
        assert metric(service, "regard_waiting") == 0
        assert running.result().status == 200
    assert metric(service, "regard_cancelled_total") == before + 1


def metric(service: RunningService, name: str) -> float:
    text = service.ask("/metrics").body.decode()
    (value,) = [line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(value)


@pytest.fixture(scope="module")
def private(mine: Path) -> Iterator[RunningService]:
    """Service that needs a key; its log is beside the recipe."""
    digest = hashlib.sha256(b"secret").hexdigest()
    keys = mine.parent / "keys"
    keys.write_text(f"ann:{digest}\n", encoding="utf-8")
    with (
        (mine.parent / "log").open("w", encoding="utf-8") as log,
        serving(
            [mine.parent / "run"], "--keys", str(keys), program=(str(mine),), log=log
        ) as running,
    ):
        yield running


KEY = {"Authorization": "Bearer secret"}


def test_key_is_needed_and_not_logged(private: RunningService, mine: Path) -> None:
    request = {"inputs": ["5.4321"]}
    assert private.ask("/v1/predict", request).status == 401
    assert private.ask("/v1/predict", request, headers=KEY).status == 200
    assert private.ask("/health/ready").json == {"state": "ready"}
    assert private.ask("/5.4321", headers=KEY).status == 404
    metrics = private.ask("/metrics", headers=KEY).body.decode()
    log = (mine.parent / "log").read_text(encoding="utf-8")
    assert 'regard_requests_total{code="200",route="/v1/predict"} 1.0' in metrics
    assert '"route": "/v1/predict", "status": 200' in log
    for secret in ("5.4321", "secret"):
        assert secret not in metrics
        assert secret not in log


def test_sigterm_finishes_what_was_accepted(private: RunningService) -> None:
    request = {"inputs": ["-0.4"]}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        accepted = []
        for _ in range(2):
            accepted.append(pool.submit(private.ask, "/v1/predict", request, headers=KEY))
        time.sleep(0.2)
        assert private.process is not None
        private.process.send_signal(signal.SIGTERM)
        assert [future.result().status for future in accepted] == [200, 200]
        assert private.process.wait(timeout=30) == 0


def send_head(service: RunningService, length: int) -> socket.socket:
    """Return a connection that has sent the head of a request, and waits with the body."""
    client = socket.create_connection((service.host, service.port), timeout=10)
    head = f"POST /v1/predict HTTP/1.1\r\nHost: {service.host}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    client.sendall(head.encode())
    return client


def test_body_that_is_late_is_refused(service: RunningService) -> None:
    with send_head(service, 20) as client:
        client.sendall(b'{"inputs"')
        answer = client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"application/problem+json" in answer


def test_bodies_in_progress_are_bounded(service: RunningService) -> None:
    with send_head(service, 1500), send_head(service, 1500):
        time.sleep(0.4)
        assert ask(service, "1 " * 300).status == 429
    time.sleep(0.4)
    assert ask(service, "1").status == 200
