"""`regard serve RUN [RUN ...]`: trained runs behind HTTP, with a page."""

import importlib
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from regard.cli.runs import DecodingOptions, load_trained
from regard.errors import DONE, UserError
from regard.recipes.run_folder import read_run
from regard.serve.config import LimitsConfig
from regard.settings.declare import settings
from regard.settings.help import show_help
from regard.settings.options import NoSettings, parse
from regard.settings.ranges import Range
from regard.settings.tree import collect_groups

USAGE = "regard serve RUN [RUN ...] [options]"
ABOUT = (
    "Answer requests over HTTP with trained runs: a page at /, POST /v1/predict, and what clients "
    "of LibreTranslate and OpenAI ask for. Prints its address when it listens. SIGTERM or Ctrl-C "
    "ends it after the requests that were accepted. Only this machine can ask by default. "
    "docs/serve.md describes requests, limits and deployment."
)


_BACKLOG = 2_048
"""Connections that wait to be accepted."""


@settings
class ServeOptions(DecodingOptions):
    """Options of `regard serve`."""

    host: str = "127.0.0.1"
    """Address to listen on. Others than that of this machine need --keys or --open."""
    port: Annotated[int, Range(0, 65_535)] = 8000
    """Port to listen on; 0: any free one."""
    host_names: tuple[str, ...] = ()
    """Further names under which clients know this machine (header Host), as behind a proxy."""
    keys: Path | None = None
    """File of the keys that clients send (Authorization: Bearer KEY): lines NAME:SHA256."""
    open: bool = False
    """Let everybody who reaches the address ask, without keys."""
    quiet_log: bool = False
    """Write no line per request to standard error."""
    limits: LimitsConfig = LimitsConfig()
    """Limits of requests."""


def run(argv: list[str]) -> int:
    """Parse the options, load the runs and serve them."""
    show_help(argv, USAGE, ABOUT, collect_groups(ServeOptions()))
    parsed = parse(argv, ServeOptions(), NoSettings(), allowed=(), max_positionals=64)
    if not parsed.positionals:
        raise UserError(f"RUN is missing: {USAGE}")
    options = parsed.own
    folders = _name_runs([Path(word) for word in parsed.positionals])
    records = {name: read_run(folder) for name, folder in folders.items()}
    guards = importlib.import_module("regard.serve.guard")
    guard = guards.make_guard(options.host, options.host_names, options.keys, is_open=options.open)
    listener = _bind(options.host, options.port)
    server, trained = importlib.import_module("regard.serve.server"), {}
    for name, folder in folders.items():
        trained[name] = load_trained(folder, options, records[name])
    server.serve(
        trained,
        listener,
        guard,
        options.limits,
        workers=options.workers,
        is_logging=not options.quiet_log,
    )
    return DONE


def _name_runs(folders: Sequence[Path]) -> dict[str, Path]:
    """Return folders by name. Raises: UserError if two have the same name."""
    named: dict[str, Path] = {}
    for folder in folders:
        name = folder.resolve().name
        if name in named:
            raise UserError(f"two runs are named {name}: {named[name]} and {folder}")
        named[name] = folder
    return named


def _bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises: UserError if the port is taken or not allowed."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UserError(f"{host}, port {port}: {error.strerror}") from error
    listener.listen(_BACKLOG)
    return listener
