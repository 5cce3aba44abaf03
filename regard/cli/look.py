"""`regard look RUN INPUT`: where the model looked, as a page to explore or a picture for a paper.

    a name of a file that exists   its lines, the first LINES of them; where a run reads images or sounds: the file
    anything else                  the text itself
    --test 3 7                     inputs of the run's test data, by number

`regard look FILE.safetensors` shows what was saved of another time, without the model.
"""

import importlib
import os
import re
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from regard.cli.exits import DONE
from regard.cli.help import page
from regard.cli.inputs import is_file, is_input_itself, lines_of, text_of
from regard.cli.notices import tell
from regard.cli.options import NoSettings, parse, wants_help
from regard.cli.use import UseOptions, one_run, opened
from regard.errors import UserError
from regard.look.files import SUFFIXES, check_path
from regard.ranges import Range, check_ranges
from regard.recipes.folder import Run
from regard.recipes.settings import groups
from regard.run_files import check_output, claim_folder

USAGE = "regard look RUN [INPUT ...] [--test NUMBER ...] [options]"
ABOUT = (
    "Where a trained model looked when it answered INPUT: a text, a file with a text a line, an image, a sound or a "
    "recording of tracks, as the run reads them. Writes one HTML page that needs no network and opens it if there is a "
    "browser: alignments, heads, links, chains, heat over images, events over sounds, tracks, and the decoding step by "
    "step. With --out FILE.png, .svg or .pdf a picture instead; with FILE.safetensors the numbers themselves, which "
    "`regard look FILE.safetensors` shows without the model."
)
LINES = 20
"""Lines of a file that are looked at, the first ones."""

_CAPTURE = ".safetensors"
_MOST = 100
_LONGEST = 40


@dataclass(frozen=True, kw_only=True)
class Options(UseOptions):
    """Options of the command."""

    out: Path | None = None
    """The file to write: .html, .png, .svg, .pdf or .safetensors; a page in the run's folder looks/ if not given."""
    test: tuple[Annotated[int, Range(0, 1_000_000_000)], ...] = ()
    """Inputs of the run's test data, by their numbers from 0, instead of INPUT or after it."""
    beside: Path | None = None
    """Another run, which is shown beside this one with the same inputs, or FILE.safetensors of a capture."""
    gradients: bool = False
    """Add to the page how much each weight mattered to the answer: weight times gradient."""
    open: bool = True
    """Open the page in a browser, if there is a screen."""
    view: Literal["alignment", "chain", "heat", "boxes", "events", "tracks"] | None = None
    """Of a picture: what is drawn; what fits if not given."""
    kind: Literal["encoder self", "decoder self", "cross", "recurrent", "chain", "pooling"] | None = None
    """Of a picture: the reads to draw; those nearest to the answer if not given."""
    layer: Annotated[int, Range(1, 1_000_000)] | None = None
    """Of a picture: which layer's heads to draw, from 1; the last if not given."""
    scene: Annotated[int, Range(0, 1_000_000_000)] = 0
    """Of a picture: which input's, from 0."""
    force: bool = False
    """Replace the file if it exists."""

    def __post_init__(self) -> None:
        check_ranges(self)
        UseOptions.__post_init__(self)


def run(argv: list[str]) -> int:
    """Read the options; look."""
    is_capture = bool(argv) and argv[0].endswith(_CAPTURE)
    folder, record = (Path(argv[0]), None) if is_capture else one_run(argv, USAGE)
    if wants_help(argv):
        print(page(USAGE, ABOUT, groups(Options())))
        return DONE
    what = f"a run folder and at most {_MOST} inputs"
    parsed = parse(argv, Options(), NoSettings(), most_positionals=1 if is_capture else 1 + _MOST, what=what)
    options, words = parsed.own, parsed.positionals[1:]
    if not words and not options.test and not is_capture:
        raise UserError(f"at which text or file? {USAGE}")
    _check(options, _folder_of_pages(folder), is_capture=is_capture)
    others = () if options.beside is None else (options.beside,)
    models = [None if path.suffix == _CAPTURE else opened(path, options) for path in (folder, *others)]
    inputs = _inputs(words, record)
    if models[0] is not None:
        inputs += [models[0].test_input(number) for number in options.test]
        if _is_picture(options.out) and hasattr(models[0], "draw"):
            models[0].draw(inputs[0], options.out, overwrite=options.force)
            print(options.out)
            return DONE
    captures = [_captured(*pair, inputs, options) for pair in zip(models, (folder, *others), strict=True)]
    for seen in captures[0]:
        print(seen.scene.title)
    out = options.out or _unused(folder, str(words[0]) if words else f"test {options.test[0]}" if options.test else "")
    try:
        _write(captures, out, options)
    except UserError:
        raise
    except ValueError as error:  # what was read cannot be drawn, as weights that are NaN
        raise UserError(f"{folder}: {error}") from error
    print(out)
    if out.suffix.lower() == ".html" and options.open and _has_screen():
        webbrowser.open(out.resolve().as_uri())
    return DONE


def _check(options: Options, pages: Path, *, is_capture: bool) -> None:
    """Raise UserError for what cannot be written, or be done with a capture alone, before anything is loaded."""
    out = options.out
    if is_capture and (options.test or options.gradients):
        raise UserError("a capture holds what was read already: --test and --gradients need the run")
    if out is None:
        place = pages if pages.exists() else pages.parent
        if not os.access(place, os.W_OK):
            raise UserError(f"{pages}: the folder {place} allows no writing: name a file to write with --out FILE.html")
        return
    check_output(out)
    if out.exists() and not options.force:
        raise UserError(f"{out} exists; it is replaced only with --force")
    if options.beside is not None and out.suffix.lower() != ".html":
        raise UserError(f"--beside needs a page, FILE.html, but --out is {out}")
    check_path(out, options.force, (".html", _CAPTURE))


def _is_picture(out: Path | None) -> bool:
    return out is not None and out.suffix.lower() in SUFFIXES


def _captured(trained: Any, path: Path, inputs: Sequence[Any], options: Options) -> Any:
    """What a model read of the inputs, or what was saved of another time."""
    if trained is None:
        return importlib.import_module("regard.look.capture").Capture.open(path)
    return trained.look(inputs, **({"gradients": True} if options.gradients else {}))


def _write(captures: Sequence[Any], out: Path, options: Options) -> None:
    if _is_picture(out):
        chosen = {"scene": options.scene, "view": options.view, "kind": options.kind, "layer": options.layer}
        captures[0].plot(out, overwrite=options.force, **chosen)
    else:
        captures[0].save(out, beside=captures[1] if len(captures) > 1 else None, overwrite=options.force)


def _inputs(words: Sequence[str], record: Run | None) -> list[str]:
    """Texts and names of files, as the run reads them."""
    found = []
    for word in words:
        if is_file(word) and not is_input_itself(word, record):
            lines = [*islice((line for block in lines_of(word) for line in block if line.strip()), LINES + 1)]
            if len(lines) > LINES:
                tell(f"{word}: the first {LINES} lines")
            found += lines[:LINES]
        elif not word.strip():
            raise UserError("the text is empty: there is nothing to look at")
        else:
            found.append(word if is_file(word) else text_of(word))
    if words and not found:
        raise UserError(f"{', '.join(words)}: there is no line in it to look at")
    return found


def _unused(origin: Path, name: str) -> Path:
    """A page that is not there yet, named for the input: in the run's folder looks, or beside the capture."""
    folder, stem = _folder_of_pages(origin), origin.stem if origin.suffix == _CAPTURE else Path(name).name
    if origin.suffix != _CAPTURE:
        claim_folder(folder)
    folder.mkdir(exist_ok=True)
    stem = re.sub(r"[^\w]+", "-", stem).strip("-")[:_LONGEST] or "look"
    number, path = 1, folder / f"{stem}.html"
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}.html"
    return path


def _folder_of_pages(origin: Path) -> Path:
    """Where pages go if --out does not say."""
    return origin.parent if origin.suffix == _CAPTURE else origin / "looks"


def _has_screen() -> bool:
    """Whether somebody sits there who could see a browser."""
    if not sys.stdout.isatty():
        return False
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
