"""The gallery: what trained runs read, a live page and a picture of each, and an index.

    python -m docs.gallery.make runs/dates runs/images ...

    docs/gallery/NAME.html, NAME.png     NAME: the recipe, with the core's name unless that is the recipe's own
    docs/gallery/README.md               what is to be seen, and the commands that made it
    docs/images/look-NAME.png            pictures for docs/look.md

All of it is committed, so a run must have been trained on data that comes with the package, embedded or made up.
Files of these names are replaced, no others. Pictures need Chromium: the system's, $CHROMIUM, or Playwright's own.
"""

import argparse
import io
import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from docs.gallery.browser import launched
from docs.gallery.plan import LOOKS, SHOWN, Look, Shown
from regard.errors import UserError
from regard.look.capture import Capture
from regard.look.map import Seen
from regard.look.names import KINDS, Kind
from regard.look.record import record
from regard.recipes.folder import Run, read_run
from regard.recipes.registry import RECIPES
from regard.recipes.settings import changed, differences, plain
from regard.recipes.task import Trained, load

__all__ = ["main"]

WIDTH, HEIGHT = 1280, 800
_MOST_BYTES = 120_000
"""Of a picture; a noisy one gets fewer colors."""

_HEAD = """# Gallery

What trained models read, a recipe each. The pages are alive: in a clone, open the .html in a browser, point, click,
choose another head or layer, press `?` for the keys. They need no network. All data is embedded or made up; the models
are small and were trained for minutes, on one core. Weights say what was read, not why the answer
was given.

`make gallery RUNS="..."` makes all of it from the runs that the commands below make.
"""
_TAIL = """## translate, and your own

The recipe [translate](../recipes/translate.md) has no data of its own, so it is not here. On your pairs:

    regard train translate --run runs/mine --data.train train.tsv --data.val val.tsv --data.test test.tsv
    regard look runs/mine --test 0 1 2 --out look.html

An autoencoder ([rebuild](../recipes/rebuild.md)) reads nothing by attention: there is nothing to look at.
"""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A run of the gallery."""

    name: str
    run: Run
    capture: Capture
    fragment: str
    """Of its page's address: what the picture shows."""
    score: str
    shown: Shown


def main(argv: list[str] | None = None) -> None:
    """Make the gallery of these runs. Raises SystemExit, with what is wrong, before a file is written."""
    parser = argparse.ArgumentParser(description="Pages and pictures of what trained runs read, for the docs.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run on embedded data")
    parser.add_argument("--docs", type=Path, default=Path(__file__).parents[1], help="where gallery/ and images/ are")
    options = parser.parse_args(argv)
    try:
        entries = _entries(options.runs)
    except UserError as error:
        raise SystemExit(f"gallery: {error}") from error
    gallery, images = options.docs / "gallery", options.docs / "images"
    for folder in (gallery, images):
        folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, TemporaryDirectory() as folder:
        browser = launched(playwright)
        for entry in entries.values():
            page = entry.capture.save(gallery / f"{entry.name}.html", overwrite=True)
            _picture(browser, page, entry.fragment, gallery / f"{entry.name}.png")
        for name, look in LOOKS.items():
            if look.page in entries and (look.beside is None or look.beside in entries):
                _look(browser, look, entries, images / f"look-{name}.png", Path(folder) / "page.html")
        browser.close()
    (gallery / "README.md").write_text(_index(entries), encoding="utf-8")


def _entries(folders: list[Path]) -> dict[str, Entry]:
    """The runs by the names of their pages, in the order of the plan."""
    runs: dict[str, Path] = {}
    for folder in folders:
        run = read_run(folder)
        name = _name(run)
        if name not in SHOWN:
            raise UserError(f"{folder}: the gallery shows no run of {name}; it shows {', '.join(SHOWN)}")
        own = [part for part in ("train", "val", "test") if getattr(run.config.data, part, None)]
        if own:
            raise UserError(
                f"{folder}: the gallery is committed, and this run's data ({own[0]}) is none of the package's"
            )
        if name in runs:
            raise UserError(f"{folder} and {runs[name]} are both {name}")
        runs[name] = folder
    return {name: _entry(name, runs[name], SHOWN[name]) for name in SHOWN if name in runs}


def _name(run: Run) -> str:
    one, usual = (getattr(config, "model", None) for config in (run.config, RECIPES[run.recipe].config()))
    return run.recipe if one is None or one.core.name == usual.core.name else f"{run.recipe}-{one.core.name}"


def _entry(name: str, folder: Path, shown: Shown) -> Entry:
    trained: Trained = load(folder)
    inputs = [trained.test_input(number) for number in shown.inputs]
    if shown.beam is None:
        capture = trained.look(inputs)
    else:
        with record(trained) as capture:
            trained.predict(inputs, beam=shown.beam)
    if shown.kinds != KINDS:
        capture = _only(capture, shown.kinds)
    # The folder's name alone: a page that is committed tells nothing of the machine that it was made on.
    capture.title = folder.resolve().name if folder.name in ("", "..") else folder.name
    score = _score(folder, trained.task.metric)
    print(name, *(seen.scene.title.replace("\n", " ") for seen in capture), sep="\n  ")
    fragment = shown.view.fragment(capture.scenes)
    return Entry(name=name, run=trained.run, capture=capture, fragment=fragment, score=score, shown=shown)


def _only(capture: Capture, kinds: Collection[Kind]) -> Capture:
    """The same with reads of these kinds alone."""
    scenes = [Seen(scene=seen.scene, maps=tuple(one for one in seen.maps if one.kind in kinds)) for seen in capture]
    return Capture(lambda: scenes, title=capture.title, model=capture.model)


def _score(folder: Path, metric: str) -> str:
    report = folder / "report.json"
    if not report.exists():
        return ""
    told = json.loads(report.read_text(encoding="utf-8"))
    test, training = told.get("test") or {}, told["training"]
    found = f"{metric} {test[metric]:.4g} on {test['data']}; " if metric in test else ""
    return f"{found}{training['steps']:,} steps, {training['minutes']:.1f} minutes."


def _look(browser: Browser, look: Look, entries: Mapping[str, Entry], path: Path, page: Path) -> None:
    one = entries[look.page].capture
    other = entries[look.beside].capture if look.beside else None
    one.save(page, beside=other, overwrite=True)
    fragment = look.view.fragment(one.scenes)
    if other is not None and look.other is not None:
        fragment += "&b.capture=1&" + look.other.fragment(other.scenes, "b.")
    _picture(browser, page, fragment, path, is_dark=look.view.is_dark)


def _picture(browser: Browser, page: Path, fragment: str, path: Path, *, is_dark: bool = False) -> None:
    """A screenshot of the page as the address's fragment opens it, with few colors: a fraction of the bytes."""
    size: Any = {"width": WIDTH, "height": HEIGHT}
    tab = browser.new_page(viewport=size, color_scheme="dark" if is_dark else "light")
    tab.goto(f"{page.resolve().as_uri()}#{fragment}")
    tab.wait_for_function("window.regard || document.querySelector('[role=alert]')")
    if tab.locator("[role=alert]").count():
        raise RuntimeError(f"{page}: {tab.locator('[role=alert]').first.inner_text()}")
    tab.evaluate("window.regard.ready")
    shot = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
    tab.close()
    for colors in (256, 128, 64):
        few = shot.quantize(colors, method=Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE)
        few.save(path, optimize=True)
        if path.stat().st_size <= _MOST_BYTES:
            break


def _index(entries: Mapping[str, Entry]) -> str:
    parts = [_HEAD]
    for name, entry in entries.items():
        parts.append(
            f"## {name}\n\n{entry.shown.about}\n\n[![{name}: {entry.shown.view.name}]({name}.png)]({name}.html)\n\n"
            f"[{name}.html]({name}.html): test inputs {', '.join(map(str, entry.shown.inputs))}. {entry.score}\n\n"
            f"    {_command(entry)}\n"
        )
    return "\n".join([*parts, _TAIL])


def _command(entry: Entry) -> str:
    """The command that trains such a run: the settings that differ from the recipe's."""
    config, recipe = entry.run.config, entry.run.recipe
    core = {"model": {"core": {"name": config.model.core.name}}}
    usual = changed(RECIPES[recipe].config(), core, called=str)
    words = ["regard", "train", recipe, "--run", f"runs/{entry.capture.title}"]
    words += [] if entry.name == recipe else ["--model.core", config.model.core.name]
    words += ["--seed", str(entry.run.seed)] if entry.run.seed != 1 else []
    for name, (_, value) in differences(plain(usual), plain(config)).items():
        words += [f"--{name.replace('_', '-')}", *_written(value)]
    return shlex.join(words)


def _written(value: Any) -> list[str]:
    """A setting as the command line takes it."""
    match value:
        case None:
            return ["none"]
        case bool():
            return [str(value).lower()]
        case list():
            return [str(one) for one in value]
        case _:
            return [str(value)]


if __name__ == "__main__":
    main()
