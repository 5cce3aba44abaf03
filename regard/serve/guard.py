"""Who may ask: hosts, origins and keys."""

import hashlib
import hmac
import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.errors import UserError
from regard.serve.config import LOOPBACK
from regard.serve.replies import RequestError
from regard.system.files import read_bytes

OPEN = ("/", "/docs", "/openapi.json", "/health/live", "/health/ready", "/languages")
"""Paths that need no key: they hold no answers."""


@dataclass(frozen=True)
class Guard:
    """Rules for the headers of a request.

    hosts:    names in the header Host, without port, besides addresses of an open service.
    keys:     SHA-256 of each bearer key by its owner; without any, no key is needed.
    """

    hosts: Sequence[str] = LOOPBACK
    is_local: bool = True
    """True if the service listens on loopback alone."""
    keys: Mapping[str, str] | None = None

    def check(self, path: str, headers: Mapping[str, str]) -> None:
        """Raise RequestError for a request that is not allowed: 400, 401 or 403."""
        host = headers.get("host", "")
        # Without its port, and without the brackets of IPv6.
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        name = name.lower()
        # A name that another site lets point to this machine would get around the browser's rules.
        if name not in self.hosts and (self.is_local or not _is_address(name)):
            raise RequestError(403, f"the host {name!r} is not served: name it with --host-names")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise RequestError(403, f"pages of {origin} may not use this service")
        # A look is protected by its address, which cannot be guessed: a page of it sends no key.
        # A request to translate has its key in the body.
        if path not in OPEN and not path.startswith("/v1/looks/") and path != "/translate":
            self.check_key(headers.get("authorization", ""))

    def check_key(self, authorization: str) -> None:
        """Raise RequestError 401 unless the value of the header Authorization is a known key."""
        if self.keys is None:
            return
        scheme, _, key = authorization.partition(" ")
        digest = hashlib.sha256(key.strip().encode("latin-1", "replace")).hexdigest()
        # All keys are compared, each in constant time.
        found = [hmac.compare_digest(digest, known) for known in self.keys.values()]
        if scheme.lower() != "bearer" or not any(found):
            headers = {"WWW-Authenticate": "Bearer"}
            raise RequestError(
                401, "expected a valid key: Authorization: Bearer KEY", headers=headers
            )


def make_guard(host: str, names: tuple[str, ...], keys: Path | None, *, is_open: bool) -> Guard:
    """Return the rules for requests. Raises: UserError for an address that needs keys."""
    is_local = is_loopback(host)
    if not is_local and keys is None and not is_open:
        raise UserError(
            f"--host {host} lets other machines ask: give --keys FILE, or --open to let everybody"
        )
    hosts = (*LOOPBACK, host.lower(), *(name.lower() for name in names))
    return Guard(hosts, is_local, None if keys is None else read_keys(keys))


def read_keys(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each key by its owner, from a file of lines NAME:SHA256."""
    keys = {}
    lines = read_bytes(path).decode("utf-8", "replace").splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, digest = line.strip().partition(":")
        if not name or not re.fullmatch("[0-9a-f]{64}", digest):
            raise UserError(f"{path}, line {number}: expected NAME:SHA256 (64 digits 0-9a-f)")
        keys[name] = digest
    if not keys:
        raise UserError(f"{path} has no key")
    return keys


def is_loopback(host: str) -> bool:
    """Return True for an address or name of this machine that no other machine reaches."""
    try:
        found = socket.getaddrinfo(host, None)
    except OSError as error:
        raise UserError(f"--host {host}: {error.strerror}") from error
    return all(ipaddress.ip_address(entry[4][0]).is_loopback for entry in found)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
