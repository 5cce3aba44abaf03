"""How long a page of very large maps takes to write and to open, and how smoothly it moves, in headless Chromium.

    python -m benchmarks.viewer --side 4096 --layers 16 --heads 16

Made-up weights: each query reads its neighborhood, some keys of its own, and everything else a little. The page is
measured as people meet it: from the navigation to the small pictures of all heads drawn, then frames a second while the
map of one head is panned and zoomed for two seconds each.
"""

import argparse
import statistics
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from playwright.sync_api import Page, sync_playwright
from torch import Tensor

from docs.gallery.browser import launched
from regard.look.capture import Capture
from regard.look.map import Map, Seen
from regard.look.scene import Axis, Scene

_FRAMES = """seconds => new Promise(done => {
  const times = [];
  const frame = now => {
    times.push(now);
    if (now - times[0] < 1000 * seconds) requestAnimationFrame(frame); else done(times);
  };
  requestAnimationFrame(frame);
})"""


def weights(side: int, layer: int, head: int) -> Tensor:
    """Of one head, the same each time."""
    draw = torch.Generator().manual_seed(1000 * layer + head)
    places = torch.arange(side)
    near = -(places[:, None] - places + head).abs().float() / (1 + 8 * layer)
    return (near + 3 * torch.randn(side, side, generator=draw)).softmax(-1)


def made(side: int, layers: int, heads: int) -> Capture:
    """A capture that makes its numbers when they are asked for."""
    names = tuple(f"head {number + 1}" for number in range(heads))
    maps = [
        Map(
            key=str(layer),
            name=f"core.encoder.{layer}.attention.read",
            kind="encoder self",
            layer=layer + 1,
            queries="source",
            keys="source",
            heads=names,
            load=lambda head, layer=layer: weights(side, layer, head),
        )
        for layer in range(layers)
    ]
    scene = Scene(title=f"{layers} layers, {heads} heads, {side} tokens", axes={"source": Axis.numbered(side, "token")})
    return Capture(lambda: [Seen(scene=scene, maps=tuple(maps))], title="made up", model="none")


def opening(page: Page, path: Path) -> float:
    """Seconds from the navigation to a complete drawing, as the page counts them."""
    page.goto(path.resolve().as_uri() + "#view=heads")
    page.wait_for_function("window.regard")
    page.evaluate("window.regard.ready")
    return page.evaluate("performance.now()") / 1000


def rate(page: Page, seconds: float, *, zoom: bool) -> tuple[float, float]:
    """Frames a second and the longest frame in milliseconds while the map moves."""
    page.evaluate("document.documentElement.dataset.moving = ''")
    box = page.locator("main canvas").first.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    for _ in range(6):
        page.mouse.wheel(0, -300)
    frames = page.evaluate_handle(f"window.frames_told = ({_FRAMES})({seconds})")
    del frames
    start, step = time.perf_counter(), 0
    if not zoom:
        page.mouse.down()
    while time.perf_counter() - start < seconds:
        step += 1
        if zoom:
            page.mouse.wheel(0, 120 if step // 12 % 2 else -120)
        else:
            page.mouse.move(x + 150 * ((step % 60) / 30 - 1), y + 100 * ((step % 40) / 20 - 1))
    if not zoom:
        page.mouse.up()
    times = page.evaluate("window.frames_told")
    gaps = [b - a for a, b in pairwise(times)]
    return 1000 * len(gaps) / (times[-1] - times[0]), max(gaps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        path, start = Path(folder) / "page.html", time.perf_counter()
        made(options.side, options.layers, options.heads).save(path)
        print(f"written in {time.perf_counter() - start:.1f} s, {path.stat().st_size / 1e6:.1f} MB")
        browser = launched(playwright)
        opened = []
        for _ in range(options.times):
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            opened.append(opening(page, path))
            page.close()
        print(f"heads drawn after {statistics.median(opened):.2f} s ({min(opened):.2f} to {max(opened):.2f})")
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(path.resolve().as_uri() + "#view=alignment&head=0")
        page.wait_for_function("window.regard")
        page.evaluate("window.regard.ready")
        for zoom in (False, True):
            each, worst = rate(page, 2.0, zoom=zoom)
            print(f"{'zoom' if zoom else 'pan'}: {each:.1f} frames a second, longest {worst:.0f} ms")
        browser.close()


if __name__ == "__main__":
    main()
