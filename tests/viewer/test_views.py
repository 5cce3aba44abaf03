"""Views of the page in a browser, for trained models: their numbers equal those of the capture."""

import numpy as np
import pytest
from playwright.sync_api import Page

from regard.look.capture import Capture
from regard.look.maps import AttentionMap
from tests.viewer.conftest import tip_of

# Name of the run, view, and kind of the read.
VIEWS = [
    ("transformer", "alignment", "cross"),
    ("transformer", "alignment", "encoder self"),
    ("transformer", "links", "cross"),
    ("transformer", "links", "decoder self"),
    ("transformer", "steps", "cross"),
    ("recurrent", "alignment", "recurrent"),
    ("recurrent", "steps", "recurrent"),
    ("chain", "chain", "chain"),
    ("image", "image", "pooling"),
    ("image", "image", "encoder self"),
    ("boxes", "image", "cross"),
    ("points", "image", "cross"),
    ("points", "image", "encoder self"),
    ("tracks", "plane", "encoder self"),
    ("events", "sound", "cross"),
]


def first(capture: Capture, kind: str, measure: str = "weight") -> AttentionMap:
    return capture[0].find(kind, measure=measure)[0]


def fragment(attention_map: AttentionMap, view: str, head: int = 0) -> str:
    measure = attention_map.measure.replace(" ", "%20")
    return f"#sample=0&read={attention_map.name}&measure={measure}&head={head}&view={view}"


def point_at(page: Page, query: int | None, key: int | None, *, click: bool = False) -> bool:
    """Move the pointer to a pair, and return True if it is drawn."""
    position = page.evaluate("([q, k]) => window.regard.place(q, k)", [query, key])
    if position is None:
        return False
    (page.mouse.click if click else page.mouse.move)(position["x"], position["y"])
    page.evaluate("window.regard.ready")
    return True


def check(tip: dict, weights: np.ndarray) -> None:
    """Check that the number of the tooltip is exactly the computed one."""
    number = weights[int(tip["query"]), int(tip["key"])]
    assert np.float32(tip["number"]) == np.float32(number), tip


@pytest.mark.parametrize(("run", "view", "kind"), VIEWS)
def test_the_tooltip_has_the_weight_of_the_capture(run, view, kind, train_and_capture, open_page):
    capture, path = train_and_capture(run)
    attention_map = first(capture, kind)
    head = len(attention_map.heads) - 1
    weights = attention_map.head(head).float().numpy()
    page = open_page(path, fragment(attention_map, view, head))
    shown = page.evaluate("window.regard.shown()")
    assert (shown["view"], shown["read"], shown["head"]) == (view, attention_map.name, head)
    count = 0
    queries = range(0, weights.shape[0], max(1, weights.shape[0] // 3))
    for query in queries:
        # Views of pictures and lines show the weights of a pinned query.
        point_at(page, query, None, click=True)
        for key in {int(weights[query].argmax()), 0, weights.shape[1] - 1}:
            for pair in ((query, key), (None, key)):
                if point_at(page, *pair) and page.locator("#tip").is_visible():
                    tip = tip_of(page)
                    if tip["number"] and tip["query"] and tip["key"]:
                        check(tip, weights)
                        count += 1
    assert count >= min(2, len(queries)), "no tooltip has a number"


@pytest.mark.parametrize("run", ["transformer", "recurrent", "chain", "image", "boxes", "points", "tracks", "events"])
def test_every_view_of_every_read_opens(run, train_and_capture, open_page):
    """No error is written to the console, and something is drawn."""
    capture, path = train_and_capture(run)
    page = open_page(path)
    maps = {(attention_map.kind, attention_map.measure): attention_map for attention_map in capture[0].maps}
    for attention_map in maps.values():
        for view in page.evaluate("window.regard.shown()")["views"]:
            page.evaluate("hash => { location.hash = hash }", fragment(attention_map, view))
            page.evaluate("window.regard.ready")
            shown = page.evaluate("window.regard.shown()")
            assert (shown["kind"], shown["measure"]) == (attention_map.kind, attention_map.measure)
            drawn = page.locator("main canvas, main table, main svg, main button")
            assert drawn.count() > 0


def test_clicking_a_head_opens_it(train_and_capture, open_page):
    capture, path = train_and_capture("transformer")
    attention_map = first(capture, "cross")
    page = open_page(path, fragment(attention_map, "heads", -1))
    canvas = page.locator("main canvas").first
    box = canvas.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 4, box["y"] + box["height"] / 2)
    page.evaluate("window.regard.ready")
    shown = page.evaluate("window.regard.shown()")
    assert (shown["view"], shown["head"], shown["read"]) == ("alignment", 0, attention_map.name)


def test_decoding_steps_are_shown(train_and_capture, open_page):
    capture, path = train_and_capture("transformer")
    sample_maps = capture[0]
    page = open_page(path, fragment(first(capture, "cross"), "steps", -1))
    for number, step in enumerate(sample_maps.sample.steps[:4]):
        if number:
            page.keyboard.press("ArrowRight")
            page.evaluate("window.regard.ready")
        assert page.evaluate("window.regard.shown()")["query"] == (number if number else None) or number == 0
        text = page.locator("main").inner_text()
        for alternative in step.alternatives[:3]:
            assert f"{alternative.probability:.9g}"[:6] in text
        for beam in step.beams:
            assert f"{beam.score:.9g}"[:6] in text


def test_gradients_and_rollout_are_measures(train_and_capture, open_page):
    capture, path = train_and_capture("transformer")
    page = open_page(path, fragment(first(capture, "cross", "weight x gradient"), "alignment"))
    weights = first(capture, "cross", "weight x gradient").head(0).numpy()
    assert weights.min() < 0
    for query, key in ((0, 0), np.unravel_index(np.abs(weights).argmax(), weights.shape)):
        assert point_at(page, int(query), int(key))
        check(tip_of(page), weights)
    assert "rollout" in page.locator("select").nth(0).inner_text()


def test_two_captures_are_compared(train_and_capture, open_page, tmp_path):
    first_capture, second_capture = train_and_capture("transformer")[0], train_and_capture("recurrent")[0]
    path = first_capture.save(tmp_path / "both.html", compare=second_capture)
    page = open_page(path)
    page.keyboard.press("c")
    page.evaluate("window.regard.ready")
    left, right = (page.evaluate("i => window.regard.shown(i)", i) for i in (0, 1))
    assert (left["capture"], right["capture"]) == (0, 1)
    weights = first(second_capture, "recurrent").head(0).numpy()
    position = page.evaluate("window.regard.place(0, 1, 1)")
    page.mouse.move(position["x"], position["y"])
    check(tip_of(page), weights)


def test_the_address_has_the_state_of_the_page(train_and_capture, open_page):
    capture, path = train_and_capture("transformer")
    page = open_page(path, fragment(first(capture, "cross"), "links", 1))
    point_at(page, 2, None, click=True)
    before = page.evaluate("window.regard.shown()")
    assert before["query"] == 2
    page.reload()
    page.wait_for_function("window.regard")
    page.evaluate("window.regard.ready")
    assert page.evaluate("window.regard.shown()") == before


def test_keyboard_shortcuts_work(train_and_capture, open_page):
    page = open_page(train_and_capture("transformer")[1])

    def shown() -> dict:
        page.evaluate("window.regard.ready")
        return page.evaluate("window.regard.shown()")

    start = shown()
    page.keyboard.press("]")
    assert shown()["head"] != start["head"]
    page.keyboard.press("[")
    assert shown()["head"] == start["head"]
    page.keyboard.press("v")
    assert shown()["view"] == start["views"][1]
    page.keyboard.press("?")
    assert page.locator("dialog[open]").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0


@pytest.mark.parametrize("width", [420, 1280])
def test_two_panes_are_side_by_side_or_stacked(width, train_and_capture, open_page):
    page = open_page(train_and_capture("transformer")[1], width=width)
    page.keyboard.press("c")
    page.evaluate("window.regard.ready")
    first, second = (pane.bounding_box() for pane in page.locator(".pane").all())
    if width > 1000:
        assert first["x"] + first["width"] <= second["x"] + 1
        tops = [host.bounding_box()["y"] for host in page.locator(".pane .host").all()]
        assert tops[0] == tops[1]
    else:
        assert first["y"] + first["height"] <= second["y"] + 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 1280])
def test_views_fit_the_width_of_the_page(scheme, width, train_and_capture, open_page):
    page = open_page(train_and_capture("transformer")[1], width=width, color_scheme=scheme)
    for view in page.evaluate("window.regard.shown()")["views"]:
        page.evaluate("view => { location.hash = `#view=${view}` }", view)
        page.evaluate("window.regard.ready")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, dark.removeprefix("rgb(").removesuffix(")").split(","))) < 200) == (scheme == "dark")


def test_notebooks_show_the_page_in_a_sandboxed_frame(train_and_capture, open_page, tmp_path):
    outer = tmp_path / "notebook.html"
    outer.write_text(
        f"<!doctype html><meta charset=utf-8><body>{train_and_capture('transformer')[0]._repr_html_()}", "utf-8"
    )
    page = open_page(outer)
    page.frame_locator("iframe").locator("main canvas").first.wait_for()
