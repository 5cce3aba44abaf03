"""`regard look RUN INPUT`: where the model looked, as a page to explore or a picture for a paper.

a name of a file that exists   its lines, the first LINES of them; where a run reads images or sounds: the file
anything else                  the text itself
--test 3 7                     inputs of the run's test data, by number
"""

import os
import re
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from regard.cli.exits import DONE
from regard.cli.help import page
from regard.cli.inputs import is_file, is_input_itself, lines_of
from regard.cli.options import NoSettings, parse, wants_help
from regard.cli.use import UseOptions, one_run, opened
from regard.errors import UserError
from regard.look.files import check_path
from regard.recipes.folder import Run
from regard.recipes.settings import groups

__all__ = ["LINES", "Options", "run"]

USAGE = "regard look RUN [INPUT ...] [--test NUMBER ...] [options]"
ABOUT = (
    "Where a trained model looked when it answered INPUT: a text, a file with a text a line, an image, a sound or a "
    "recording of tracks, as the run reads them. Writes one HTML page that needs no network and opens it if there is a "
    "browser: alignments, heads, links, chains, heat over images, events over sounds, tracks, and the decoding step by "
    "step. With --out FILE.png, .svg or .pdf a picture instead; with FILE.safetensors the numbers themselves."
)
LINES = 20
"""Lines of a file that are looked at, the first ones."""

_MOST = 100
_LONGEST = 40


@dataclass(frozen=True, kw_only=True)
class Options(UseOptions):
    """Options of the command."""

    out: Path | None = None
    """The file to write: .html, .png, .svg, .pdf or .safetensors; a page in the run's folder looks/ if not given."""
    test: tuple[int, ...] = ()
    """Inputs of the run's test data, by their numbers from 0, instead of INPUT or after it."""
    beside: Path | None = None
    """Another run, whose page is shown beside this one's, with the same inputs."""
    gradients: bool = False
    """Add to the page how much each weight mattered to the answer: weight times gradient."""
    open: bool = True
    """Open the page in a browser, if there is a screen."""
    view: Literal["alignment", "chain", "heat", "boxes", "events", "tracks"] | None = None
    """Of a picture: what is drawn; what fits if not given."""
    kind: Literal["encoder self", "decoder self", "cross", "recurrent", "chain", "pooling"] | None = None
    """Of a picture: the reads to draw; those nearest to the answer if not given."""
    layer: int | None = None
    """Of a picture: which layer's heads to draw, from 1; the last if not given."""
    scene: int = 0
    """Of a picture: which input's, from 0."""
    force: bool = False
    """Replace the file if it exists."""


def run(argv: list[str]) -> int:
    """Read the options; look."""
    folder, record = one_run(argv, USAGE)
    if wants_help(argv):
        print(page(USAGE, ABOUT, groups(Options())))
        return DONE
    what = f"a run folder and at most {_MOST} inputs"
    parsed = parse(argv, Options(), NoSettings(), most_positionals=1 + _MOST, what=what)
    options = parsed.own
    words = parsed.positionals[1:]
    if not words and not options.test:
        raise UserError(f"at which text or file? {USAGE}")
    out = options.out or _unused(folder / "looks", words[0] if words else f"test {options.test[0]}")
    if out.exists() and not options.force:
        raise UserError(f"{out} exists; it is replaced only with --force")
    is_page = out.suffix.lower() == ".html"
    if options.beside is not None and not is_page:
        raise UserError(f"--beside needs a page, FILE.html, but --out is {out}")
    check_path(out, options.force, (".html", ".safetensors"))
    trained = opened(folder, options)
    other = None if options.beside is None else opened(options.beside, options)
    inputs = [*_inputs(words, record), *(trained.test_input(number) for number in options.test)]
    if not is_page and hasattr(trained, "draw"):
        trained.draw(inputs[0], out, overwrite=options.force)
        print(out)
        return DONE
    how = {"gradients": True} if options.gradients else {}
    capture = trained.look(inputs, **how)
    for seen in capture:
        print(seen.scene.title)
    if is_page or out.suffix.lower() == ".safetensors":
        capture.save(out, beside=other and other.look(inputs, **how), overwrite=options.force)
    else:
        chosen = {"scene": options.scene, "view": options.view, "kind": options.kind, "layer": options.layer}
        capture.plot(out, overwrite=options.force, **chosen)
    print(out)
    if is_page and options.open and _has_screen():
        webbrowser.open(out.resolve().as_uri())
    return DONE


def _inputs(words: Sequence[str], record: Run | None) -> list[str]:
    """Texts and names of files, as the run reads them."""
    found = []
    for word in words:
        if is_file(word) and not is_input_itself(word, record):
            lines = [line for line in lines_of(word) if line.strip()]
            if len(lines) > LINES:
                print(f"{word}: the first {LINES} of {len(lines)} lines", file=sys.stderr)
            found += lines[:LINES]
        elif not word.strip():
            raise UserError("the text is empty: there is nothing to look at")
        else:
            found.append(word)
    if words and not found:
        raise UserError(f"{', '.join(words)}: there is no line in it to look at")
    return found


def _unused(folder: Path, name: str) -> Path:
    """A page in this folder, named for the input, that is not there yet."""
    folder.mkdir(exist_ok=True)
    stem = re.sub(r"[^\w]+", "-", Path(name).name).strip("-")[:_LONGEST] or "look"
    number, path = 1, folder / f"{stem}.html"
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}.html"
    return path


def _has_screen() -> bool:
    """Whether somebody sits there who could see a browser."""
    if not sys.stdout.isatty():
        return False
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
