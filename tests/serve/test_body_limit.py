"""Bodies that are too large get an error of RFC 9457, whether or not they tell their size."""

import json
from typing import Any

import pytest

from regard.serve.app import make_app
from regard.serve.config import LimitsConfig
from regard.serve.guard import Guard
from regard.serve.service import Service
from tests.serve.running import run_apart

MOST = 1_000


async def post(application: Any, size: int, headers: list[tuple[bytes, bytes]]) -> tuple[int, Any]:
    """Send a text of this size; return the status and the body of the answer."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"a" * size, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"text/plain"), *headers]
    scope = {"type": "http", "method": "POST", "path": "/v1/predict", "query_string": b""}
    await application(scope | {"headers": headers, "http_version": "1.1"}, receive, send)
    assert sent[0]["status"] != 200
    assert (b"content-type", b"application/problem+json") in sent[0]["headers"]
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.mark.parametrize("tells_size", [True, False])
def test_body_that_is_too_large(tells_size: bool) -> None:
    service = Service({}, LimitsConfig(body=MOST))
    application = make_app(service, Guard())
    headers = [(b"content-length", str(MOST + 1).encode())] if tells_size else []
    status, problem = run_apart(post(application, MOST + 1, headers))
    assert status == problem["status"] == 413
