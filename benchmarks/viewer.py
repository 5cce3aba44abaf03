"""Time to write and open a page of very large maps, and its frame rate, in headless Chromium.

    python -m benchmarks.viewer --side 4096 --layers 16 --heads 16

Synthetic weights: each query attends to its neighborhood, to some random keys, and to everything
else a little. Measured are the time from the navigation until the thumbnails of all heads are
drawn, and the frames per second while the map of one head is panned and zoomed for two seconds
each.
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

from docs.gallery.browser import launch_browser
from regard.look.capture import Capture
from regard.look.maps import AttentionMap, SampleMaps
from regard.look.sample import Axis, Sample

_FRAMES = """seconds => new Promise(done => {
  const times = [];
  const frame = now => {
    times.push(now);
    if (now - times[0] < 1000 * seconds) requestAnimationFrame(frame); else done(times);
  };
  requestAnimationFrame(frame);
})"""


def weights(side: int, layer: int, head: int) -> Tensor:
    """Return the weights of one head, the same each time."""
    draw = torch.Generator().manual_seed(1000 * layer + head)
    positions = torch.arange(side)
    near = -(positions[:, None] - positions + head).abs().float() / (1 + 8 * layer)
    return (near + 3 * torch.randn(side, side, generator=draw)).softmax(-1)


def make_capture(side: int, layers: int, heads: int) -> Capture:
    """Return a capture that generates its weights on demand."""
    names = tuple(f"head {number + 1}" for number in range(heads))
    maps = [
        AttentionMap(
            key=str(layer),
            name=f"core.encoder.{layer}.attention.read",
            kind="encoder self",
            layer=layer + 1,
            queries="source",
            keys="source",
            heads=names,
            head=lambda head, layer=layer: weights(side, layer, head),
        )
        for layer in range(layers)
    ]
    title = f"{layers} layers, {heads} heads, {side} tokens"
    sample = Sample(title=title, axes={"source": Axis.from_count(side, "token")})
    return Capture(
        lambda: [SampleMaps(sample=sample, maps=tuple(maps))], title="synthetic", model="none"
    )


def opening(page: Page, path: Path) -> float:
    """Return the seconds from the navigation to a complete drawing, as measured by the page."""
    page.goto(path.resolve().as_uri() + "#view=heads")
    page.wait_for_function("window.regard")
    page.evaluate("window.regard.ready")
    return page.evaluate("performance.now()") / 1000


def rate(page: Page, seconds: float, *, zoom: bool) -> tuple[float, float]:
    """Return the frames per second and the longest frame in milliseconds while the map moves."""
    page.evaluate("document.documentElement.dataset.moving = ''")
    box = page.locator("main canvas").first.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    for _ in range(6):
        page.mouse.wheel(0, -300)
    frames = page.evaluate_handle(f"window.frame_times = ({_FRAMES})({seconds})")
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
    times = page.evaluate("window.frame_times")
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
        make_capture(options.side, options.layers, options.heads).save(path)
        print(f"written in {time.perf_counter() - start:.1f} s, {path.stat().st_size / 1e6:.1f} MB")
        browser = launch_browser(playwright)
        pages = []
        for _ in range(options.times):
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            pages.append(opening(page, path))
            page.close()
        print(
            f"heads drawn after {statistics.median(pages):.2f} s ({min(pages):.2f} to "
            f"{max(pages):.2f})"
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(path.resolve().as_uri() + "#view=alignment&head=0")
        page.wait_for_function("window.regard")
        page.evaluate("window.regard.ready")
        for zoom in (False, True):
            frames_per_second, worst = rate(page, 2.0, zoom=zoom)
            print(
                f"{'zoom' if zoom else 'pan'}: {frames_per_second:.1f} frames per second, longest "
                f"{worst:.0f} ms"
            )
        browser.close()


if __name__ == "__main__":
    main()
