"""Requests by host, origin and key."""

import hashlib
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.serve.guard import Guard, is_loopback, make_guard, read_keys
from regard.serve.replies import RequestError

LOCAL = {"host": "127.0.0.1:8000"}


def status(guard: Guard, path: str, headers: dict[str, str]) -> int:
    try:
        guard.check(path, headers)
    except RequestError as error:
        return error.status
    return 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", 200),
        ("LOCALHOST:80", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("evil.example", 403),  # a name that another site points to this machine
        ("127.0.0.1.evil.example:8000", 403),
        ("10.0.0.7", 403),
        ("", 403),
    ],
)
def test_host_of_a_local_service(host: str, expected: int) -> None:
    assert status(Guard(), "/v1/runs", {"host": host}) == expected


def test_open_service_is_asked_by_address_or_by_a_given_name() -> None:
    guard = make_guard("0.0.0.0", ("Regard.example",), None, is_open=True)
    assert status(guard, "/", {"host": "10.0.0.7:8000"}) == 200
    assert status(guard, "/", {"host": "regard.example"}) == 200
    assert status(guard, "/", {"host": "evil.example"}) == 403


def test_other_machines_need_keys_or_an_open_service() -> None:
    with pytest.raises(UserError, match="--keys FILE, or --open"):
        make_guard("0.0.0.0", (), None, is_open=False)
    assert make_guard("127.0.0.1", (), None, is_open=False).keys is None
    assert is_loopback("localhost")


def test_pages_of_other_sites_may_not_ask() -> None:
    own = LOCAL | {"origin": "http://127.0.0.1:8000"}
    assert status(Guard(), "/v1/predict", own) == 200
    for origin in ("https://evil.example", "null", "http://127.0.0.1:9000"):
        assert status(Guard(), "/v1/predict", LOCAL | {"origin": origin}) == 403


def test_key_is_needed_where_answers_are(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"secret").hexdigest()
    (tmp_path / "keys").write_text(f"# keys\n\nann:{'0' * 64}\nbob:{digest}\n", encoding="utf-8")
    guard = Guard(keys=read_keys(tmp_path / "keys"))
    for path in ("/v1/predict", "/v1/runs", "/metrics", "/v1/completions", "/anything"):
        assert status(guard, path, LOCAL) == 401
        assert status(guard, path, LOCAL | {"authorization": "Bearer other"}) == 401
        assert status(guard, path, LOCAL | {"authorization": "Basic secret"}) == 401
        assert status(guard, path, LOCAL | {"authorization": "Bearer secret"}) == 200
    for path in ("/", "/docs", "/openapi.json", "/health/live", "/health/ready"):
        assert status(guard, path, LOCAL) == 200


@pytest.mark.parametrize("text", ["", "bob", "bob:123", f":{'0' * 64}", f"bob:{'G' * 64}"])
def test_wrong_file_of_keys_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="keys"):
        read_keys(tmp_path / "keys")
