"""`regard look RUN TEXT --out FILE`: a picture of where the model looked."""

import importlib
from dataclasses import dataclass
from pathlib import Path

from regard.cli.exits import DONE
from regard.cli.help import page
from regard.cli.options import NoSettings, parse, wants_help
from regard.cli.use import UseOptions, one_run, opened
from regard.errors import UserError
from regard.recipes.settings import groups

__all__ = ["Options", "run"]

USAGE = "regard look RUN TEXT --out FILE.png [options]"
ABOUT = (
    "Draw where a trained model looked in TEXT for each piece of its output: one panel for a recurrent core, "
    "one for each head of a Transformer's cross-attention. Of a self-attentive core that reads texts (language, "
    "reviews): the words it went back to at each word. Of boxes, events, tracks, rebuild: what was found, over the "
    "image, the sound or the plane. Of a model that draws: some drawings of TEXT, and where in the first one each word "
    "was read."
)


@dataclass(frozen=True, kw_only=True)
class Options(UseOptions):
    """Options of the command."""

    out: Path | None = None
    """The picture to write: .png, .svg or .pdf."""
    layer: int | None = None
    """Which layer's heads to draw, from 1; the last if not given."""
    force: bool = False
    """Replace the file if it exists."""


def run(argv: list[str]) -> int:
    """Read the options; draw."""
    folder, _ = one_run(argv, USAGE)
    if wants_help(argv):
        print(page(USAGE, ABOUT, groups(Options())))
        return DONE
    parsed = parse(argv, Options(), NoSettings(), most_positionals=2, what="a run folder and a text")
    options = parsed.own
    if len(parsed.positionals) < 2:
        raise UserError(f"which text? {USAGE}")
    if options.out is None:
        raise UserError("where to? --out FILE.png, .svg or .pdf")
    if options.out.exists() and not options.force:
        raise UserError(f"{options.out} exists; it is replaced only with --force")
    trained = opened(folder, options)
    if hasattr(trained, "draw"):
        trained.draw(parsed.positionals[1], options.out, overwrite=options.force)
        print(options.out)
        return DONE
    found = trained.look(parsed.positionals[1])
    picture = importlib.import_module("regard.look.draw")
    picture.draw(found, options.out, layer=options.layer, overwrite=options.force)
    print(f"{found[0].title}\n{options.out}")
    return DONE
