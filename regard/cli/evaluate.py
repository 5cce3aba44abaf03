"""`regard evaluate RUN`: the task's metric on the run's test data, or on other pairs."""

import json
import sys
from dataclasses import dataclass, field
from typing import Any

from regard.cli.exits import DONE
from regard.cli.help import page
from regard.cli.options import parse, wants_help
from regard.cli.report import score_table
from regard.cli.use import UseOptions, one_run, opened
from regard.decode.config import DecodeConfig
from regard.recipes.config import OtherData
from regard.recipes.settings import groups

__all__ = ["Options", "Settings", "run"]

USAGE = "regard evaluate RUN [options]"
ABOUT = "Score a trained model on its run's own test data, or on other pairs of the same kind."


@dataclass(frozen=True, kw_only=True)
class Options(UseOptions):
    """Options of the command."""

    json: bool = False
    """Print one JSON object a test instead of tables."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is scored, and how its outputs are searched for."""

    data: OtherData = field(default_factory=OtherData)
    """Other pairs than the run's own test data."""
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    """How outputs are searched for; the defaults are the run's own."""


def run(argv: list[str]) -> int:
    """Read the options; score; print."""
    folder, record = one_run(argv, USAGE)
    settings = Settings(decode=record.config.decode) if record else Settings()
    if wants_help(argv):
        print(page(USAGE, ABOUT, [*groups(Options()), *groups(settings)]))
        return DONE
    parsed = parse(argv, Options(), settings, most_positionals=1, what="one run folder, and options")
    trained = opened(folder, parsed.own)
    data, decode = parsed.config.data, parsed.config.decode
    tests: list[dict[str, Any]] = [{}]
    if data.test:
        given = {name: getattr(data, name) for name in ("format", "source_column", "target_column", "on_bad")}
        targets = data.test_target or (None,) * len(data.test)
        pairs = zip(data.test, targets, strict=True)
        tests = [{"path": path, "target": target} | given for path, target in pairs]
    for number, test in enumerate(tests):
        scores = trained.evaluate(decode=decode, tell=_tell, **test)
        if parsed.own.json:
            print(json.dumps(scores, ensure_ascii=False))
        else:
            print("\n" * bool(number) + score_table(scores))
    return DONE


def _tell(text: str) -> None:
    print(text, file=sys.stderr)
