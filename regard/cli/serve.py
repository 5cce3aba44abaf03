"""`regard serve RUN [RUN ...]`: trained runs behind HTTP, with a page."""

import importlib
import socket
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
    folders: dict[str, Path] = {}
    for folder in map(Path, parsed.positionals):
        name = folder.resolve().name
        if name in folders:
            raise UserError(f"two runs are named {name}: {folders[name]} and {folder}")
        folders[name] = folder
    records = {name: read_run(folder) for name, folder in folders.items()}
    guards = importlib.import_module("regard.serve.guard")
    guard = guards.make_guard(options.host, options.host_names, options.keys, is_open=options.open)
    address, is_ipv6 = (options.host, options.port), ":" in options.host
    try:
        listener = socket.create_server(
            address,
            family=socket.AF_INET6 if is_ipv6 else socket.AF_INET,
            backlog=_BACKLOG,
            dualstack_ipv6=is_ipv6 and socket.has_dualstack_ipv6(),
        )
    except OSError as error:  # taken or not allowed
        raise UserError(f"--host, --port: {error.strerror}") from error
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
