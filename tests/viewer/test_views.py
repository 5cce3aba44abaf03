"""Views of the page in a browser, for small models: their numbers equal those of the capture."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Page

from regard.look.capture import Capture
from regard.look.maps import AttentionMap
from regard.look.sample import Axis, DetectedBox, DetectedEvent, MarkedText, Sound
from regard.look.sample import Image as Picture
from tests.look.maps import capture_of, map_of, sample_maps_of
from tests.look.pictures import SVG
from tests.viewer.conftest import point_at, present, press, save_svg, tip_of

# Name of the run, view, and kind of the read.
VIEWS = [
    ("transformer", "alignment", "cross"),
    ("transformer", "links", "decoder self"),
    ("transformer", "steps", "cross"),
    ("recurrent", "alignment", "recurrent"),
    ("chain", "chain", "chain"),
    ("image", "image", "encoder self"),
    ("boxes", "image", "cross"),
    ("tracks", "plane", "encoder self"),
    ("events", "sound", "cross"),
]
MORE_VIEWS = [
    ("points", "image", "cross"),
    ("transformer", "alignment", "encoder self"),
    ("transformer", "links", "cross"),
    ("recurrent", "steps", "recurrent"),
    ("image", "image", "pooling"),
    ("points", "image", "encoder self"),
]


def first(capture: Capture, kind: str, measure: str = "weight") -> AttentionMap:
    return capture[0].find(kind, measure=measure)[0]


def fragment(attention_map: AttentionMap, view: str, head: int = 0) -> str:
    measure = attention_map.measure.replace(" ", "%20")
    return f"#sample=0&read={attention_map.name}&measure={measure}&head={head}&view={view}"


@pytest.fixture
def open_view(capture_run, open_page):
    """Return open_view(run, kind, view, head, width=...): the page, and the map that it shows."""

    def open_run(run: str, kind: str, view: str, head: int = 0, *, measure="weight", **options):
        capture, path = capture_run(run)
        attention_map = first(capture, kind, measure)
        return open_page(path, fragment(attention_map, view, head), **options), attention_map

    return open_run


@pytest.fixture(scope="module")
def both(capture_run, tmp_path_factory):
    """Return the captures of two models, and the page with both."""
    left, right = (capture_run(run)[0] for run in ("transformer", "recurrent"))
    folder = tmp_path_factory.mktemp("both")
    return left, right, left.save(folder / "both.html", compare=right)


def three_digits(number: float) -> str:
    """Format a number as the page does, without exponent; the start of very small ones."""
    text = f"{number:.3g}"
    return text.split("e", maxsplit=1)[0] if "e" in text else text


def check(tip: dict, weights: np.ndarray) -> None:
    """Check that the number of the tooltip is exactly the computed one."""
    number = weights[int(tip["query"]), int(tip["key"])]
    assert np.float32(tip["number"]) == np.float32(number), tip


@pytest.mark.parametrize(
    ("run", "view", "kind"),
    [*VIEWS, *(pytest.param(*view, marks=pytest.mark.slow) for view in MORE_VIEWS)],
)
def test_the_tooltip_has_the_weight_of_the_capture(run, view, kind, capture_run, open_view):
    head = len(first(capture_run(run)[0], kind).heads) - 1
    page, attention_map = open_view(run, kind, view, head)
    weights = attention_map.head(head).float().numpy()
    shown = page.evaluate("window.regard.shown()")
    assert (shown["view"], shown["read"], shown["head"]) == (view, attention_map.name, head)
    count = 0
    queries = {0, weights.shape[0] // 2, weights.shape[0] - 1}
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


@pytest.mark.parametrize(
    "run", ["transformer", "recurrent", "chain", "image", "boxes", "points", "tracks", "events"]
)
def test_every_view_of_every_read_opens(run, capture_run, open_page):
    """No error is written to the console, and something is drawn.

    The first measure of a kind is opened in all views, and another in every second one.
    """
    capture, path = capture_run(run)
    page = open_page(path)
    maps = {(own.kind, own.measure): own for own in capture[0].maps}
    kinds = set()
    for number, (kind_and_measure, own) in enumerate(maps.items()):
        views = page.evaluate("window.regard.shown()")["views"]
        for view in views[number % 2 :: 2] if own.kind in kinds else views:
            page.evaluate("hash => { location.hash = hash }", fragment(own, view))
            page.evaluate("window.regard.ready")
            shown = page.evaluate("window.regard.shown()")
            assert (shown["kind"], shown["measure"]) == kind_and_measure
            drawn = page.locator("main canvas, main table, main svg, main button")
            assert drawn.count() > 0
        kinds.add(own.kind)


def test_clicking_a_head_opens_it(open_view):
    page, attention_map = open_view("transformer", "cross", "heads", -1)
    canvas = page.locator("main canvas").first
    box = canvas.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 4, box["y"] + box["height"] / 2)
    page.evaluate("window.regard.ready")
    shown = page.evaluate("window.regard.shown()")
    assert (shown["view"], shown["head"], shown["read"]) == ("alignment", 0, attention_map.name)


def test_decoding_steps_are_shown(capture_run, open_view):
    capture = capture_run("transformer")[0]
    sample_maps = capture[0]
    page, _ = open_view("transformer", "cross", "steps", -1)
    for number, step in enumerate(sample_maps.sample.steps[:4]):
        if number:
            press(page, "ArrowRight")
            assert page.evaluate("window.regard.shown()")["query"] == number
        text = page.locator("main").inner_text()
        for alternative in step.alternatives[:3]:
            assert three_digits(alternative.probability) in text
        for beam in step.beams:
            assert three_digits(beam.score) in text


def test_gradients_and_rollout_are_measures(open_view):
    page, own = open_view("transformer", "cross", "alignment", measure="weight x gradient")
    weights = own.head(0).numpy()
    assert weights.min() < 0
    for query, key in ((0, 0), np.unravel_index(np.abs(weights).argmax(), weights.shape)):
        assert point_at(page, int(query), int(key))
        check(tip_of(page), weights)
    assert "rollout" in page.locator("select").nth(0).inner_text()


def test_two_captures_are_compared(both, open_page):
    _, recurrent, path = both
    page = open_page(path)  # both at once
    left, right = (page.evaluate("i => window.regard.shown(i)", i) for i in (0, 1))
    assert (left["capture"], right["capture"]) == (0, 1)
    weights = first(recurrent, "recurrent").head(0).numpy()
    place = page.evaluate("window.regard.place(0, 1, 1)")
    page.mouse.move(place["x"], place["y"])
    check(tip_of(page), weights)


def test_a_comparison_begins_with_the_same_read_and_head(capture_run, open_page, tmp_path):
    capture = capture_run("transformer")[0]
    path = capture.save(tmp_path / "both.html", compare=capture)
    page = open_page(path, fragment(first(capture, "encoder self"), "links", 1))
    press(page, "c")
    left, right = (page.evaluate("i => window.regard.shown(i)", i) for i in (0, 1))
    assert (left["capture"], right["capture"]) == (0, 1)
    assert [right[name] for name in ("read", "head", "view")] == [
        left[name] for name in ("read", "head", "view")
    ]


def write_weights(path: Path, weights: torch.Tensor, *, kind: str = "token") -> Path:
    """Write the page of one read, (head, query, key)."""
    _, queries, keys = weights.shape
    axes = {
        "output": Axis(labels=tuple(f"query {i + 1}" for i in range(queries)), kind=kind),
        "source": Axis(labels=tuple(f"key {i + 1}" for i in range(keys)), kind=kind),
    }
    return capture_of(sample_maps_of("title", axes, map_of(weights))).save(path)


@pytest.mark.parametrize("shape", [(8, 100), (100, 8)])
def test_the_strongest_link_is_on_the_first_screen(shape, open_page, tmp_path):
    weights = torch.full((1, *shape), 0.001)
    query, key = (size * 5 // 8 for size in shape)
    weights[0, query, key] = 0.9
    page = open_page(write_weights(tmp_path / "page.html", weights), "#view=links")
    window = page.locator(".sheet").bounding_box()
    for pair in ([query, None], [None, key]):
        place = page.evaluate("pair => window.regard.place(...pair)", pair)
        assert window["y"] < place["y"] < window["y"] + window["height"]


def test_headings_of_links_are_whole(open_page, tmp_path):
    """Short words: the headings are wider than their columns."""
    weights = torch.full((1, 40, 40), 1 / 40)
    path = write_weights(tmp_path / "page.html", weights, kind="observation")
    page = open_page(path, "#view=links", width=640)
    width = page.locator(".sheet").bounding_box()["width"]
    root, texts = save_svg(page)
    for heading in ("queries: output observations", "keys: source observations"):
        element = list(root.iter(f"{SVG}text"))[texts.index(heading)]
        x = float(element.get("x"))
        room = x if heading.startswith("queries") else width - x
        assert room >= 6 * len(heading)  # of 12 pixels


@pytest.mark.parametrize("heads", [2, pytest.param(4, marks=pytest.mark.slow), 6])
def test_presenting_enlarges_the_heads_of_one_layer(heads, open_page, tmp_path):
    path = write_weights(tmp_path / "page.html", torch.randn(heads, 6, 12).softmax(-1))
    page = open_page(path, "#view=heads", width=1920, height=1080)
    present(page)
    drawn = page.locator(".grid canvas").first.bounding_box()
    room = page.locator(".host").bounding_box()
    assert drawn["height"] <= room["height"] + 1
    assert drawn["width"] <= room["width"] + 1
    assert drawn["width"] * drawn["height"] > 0.6 * room["width"] * room["height"]
    # A click opens the head that it is on.
    page.keyboard.press("]")
    press(page, "]")
    place = page.evaluate("window.regard.place(null, null)")
    page.mouse.click(place["x"], place["y"])
    page.evaluate("window.regard.ready")
    shown = page.evaluate("window.regard.shown()")
    assert (shown["view"], shown["head"]) == ("alignment", 1)


def test_presenting_keeps_the_names_of_compared_runs(both, open_page):
    *captures, path = both
    page = open_page(path)
    present(page)
    names = page.locator(".model")
    assert [name.inner_text() for name in names.all() if name.is_visible()] == [
        each.title for each in captures
    ]
    page.keyboard.press("c")
    assert not names.first.is_visible()


def test_theme_and_presenting_do_not_change_a_comparison(both, open_page):
    """One side has several heads, and shows their mean; the other has one."""
    page = open_page(both[2])

    def state() -> list:
        page.evaluate("window.regard.ready")
        return [page.url, *(page.evaluate("i => window.regard.shown(i)", i) for i in (0, 1))]

    before = state()
    assert before[1]["head"] == -1
    for key in "tftf":
        page.keyboard.press(key)
        page.wait_for_timeout(100)
        assert state() == before
    page.locator("nav button", has_text="Theme").click()
    assert state() == before
    # The side with one head has no head for the other to follow.
    page.locator(".pane").nth(1).get_by_role("tab", name="links").click()
    left_state, right_state = state()[1:]
    assert (left_state["view"], right_state["view"]) == ("links", "links")
    assert left_state["head"] == -1


def test_the_address_has_the_state_of_the_page(open_view):
    page, _ = open_view("transformer", "cross", "links", 1)
    point_at(page, 2, None, click=True)
    before = page.evaluate("window.regard.shown()")
    assert before["query"] == 2
    page.reload()
    page.wait_for_function("window.regard")
    page.evaluate("window.regard.ready")
    assert page.evaluate("window.regard.shown()") == before


def test_keyboard_shortcuts_work(capture_run, open_page):
    page = open_page(capture_run("transformer")[1])

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
def test_two_panes_are_side_by_side_or_stacked(width, capture_run, open_page):
    page = open_page(capture_run("transformer")[1], width=width)
    press(page, "c")
    first, second = (pane.bounding_box() for pane in page.locator(".pane").all())
    if width > 1000:
        assert first["x"] + first["width"] <= second["x"] + 1
        tops = [host.bounding_box()["y"] for host in page.locator(".pane .host").all()]
        assert tops[0] == tops[1]
    else:
        assert first["y"] + first["height"] <= second["y"] + 1


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("light", 420),
        ("dark", 1280),
        pytest.param("light", 1280, marks=pytest.mark.slow),
        pytest.param("dark", 420, marks=pytest.mark.slow),
    ],
)
def test_views_fit_the_width_of_the_page(scheme, width, capture_run, open_page):
    page = open_page(capture_run("transformer")[1], width=width, color_scheme=scheme)
    for view in page.evaluate("window.regard.shown()")["views"]:
        page.evaluate("view => { location.hash = `#view=${view}` }", view)
        page.evaluate("window.regard.ready")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    is_dark = sum(map(int, color.removeprefix("rgb(").removesuffix(")").split(","))) < 200
    assert is_dark == (scheme == "dark")


def test_notebooks_show_the_page_in_a_sandboxed_frame(capture_run, open_page, tmp_path):
    outer = tmp_path / "notebook.html"
    frame = capture_run("transformer")[0]._repr_html_()
    outer.write_text(f"<!doctype html><meta charset=utf-8><body>{frame}", "utf-8")
    page = open_page(outer)
    page.frame_locator("iframe").locator("main canvas").first.wait_for()


def test_masked_cells_are_hatched_and_others_are_not(open_view):
    page, attention_map = open_view("transformer", "decoder self", "alignment")
    weights = attention_map.head(0)
    assert np.signbit(weights.numpy()[0, 1:]).all()
    assert not np.signbit(weights.numpy()[np.tril_indices(len(weights))]).any()
    assert page.locator(".legend .omitted").all_inner_texts() == [
        "empty cell: weight below 0.0005",
        "masked: exactly 0",
    ]
    dark = """([query, key]) => {
      const {x, y} = window.regard.place(query, key);
      const canvas = document.querySelector(".stage canvas");
      const box = canvas.getBoundingClientRect(), ratio = canvas.width / box.width;
      const side = 10, left = (x - box.left - side) * ratio, top = (y - box.top - side) * ratio;
      const context = canvas.getContext("2d"), width = 2 * side * ratio;
      const {data} = context.getImageData(left, top, width, width);
      return new Set(new Uint32Array(data.buffer)).size;
    }"""
    page.evaluate("location.hash += '&scale=one'")
    page.evaluate("window.regard.ready")
    assert page.evaluate(dark, [0, len(weights) - 1]) > 2  # lines on the ground
    other, _ = open_view("transformer", "encoder self", "alignment")
    assert other.locator(".legend", has_text="masked").count() == 0
    assert other.locator(".legend", has_text="empty cell").count() == 1


def test_presenting_enlarges_cells_and_keeps_the_pointer_on_them(open_view):
    page, attention_map = open_view("transformer", "cross", "alignment", width=1920, height=1080)
    weights = attention_map.head(0).float().numpy()
    size = """() => {
      const [a, b] = [window.regard.place(0, 0), window.regard.place(1, 1)];
      return [b.x - a.x, b.y - a.y]
    }"""
    before = page.evaluate(size)
    present(page)
    after = page.evaluate(size)
    assert float(page.evaluate("document.documentElement.style.zoom")) > 1.5
    assert after[0] * after[1] > before[0] * before[1]
    for query, key in ((0, 0), (1, 2)):
        assert point_at(page, query, key)
        tip = tip_of(page)
        assert (int(tip["query"]), int(tip["key"])) == (query, key)
        check(tip, weights)
    page.keyboard.press("f")
    page.wait_for_function("!document.documentElement.classList.contains('presenting')")
    page.evaluate("window.regard.ready")
    assert page.evaluate(size) == pytest.approx(before)


@pytest.mark.parametrize(
    ("form", "view"),
    [
        *(("SVG", view) for view in ("alignment", "links", "heads", "steps")),
        ("PNG", "alignment"),
        ("PNG", "steps"),
        *(pytest.param("PNG", view, marks=pytest.mark.slow) for view in ("links", "heads")),
    ],
)
def test_views_are_saved_as_pictures(view, form, open_view, tmp_path):
    page, attention_map = open_view("transformer", "cross", view)
    page.keyboard.press("s")
    with page.expect_download() as download:
        page.get_by_role("button", name=form).click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert file.suffix == f".{form.lower()}"
    if form == "PNG":
        with Image.open(file) as picture:
            assert min(picture.size) > 300
            assert len(picture.convert("RGB").getcolors(1 << 24)) > 20
        return
    root = ElementTree.parse(file).getroot()
    texts = [element.text for element in root.iter(f"{SVG}text")]
    shapes = [*root.iter(f"{SVG}rect"), *root.iter(f"{SVG}path")]
    assert sum(len(shape.get("d", "M" * 10)) for shape in shapes) > 300
    if view == "alignment":
        assert "keys: source tokens" in texts
        weights = attention_map.head(0).float().numpy()
        assert {f"{number:.3f}" for number in weights.flatten() if number >= 0.001} <= set(texts)
    # The page itself is as before.
    page.evaluate("window.regard.ready")
    assert page.evaluate("window.regard.shown()")["view"] == view


def test_frequencies_are_on_the_axis_of_a_sound(capture_run, open_page):
    capture, path = capture_run("events")
    assert capture[0].sample.pictures["sound"].hertz == 4000
    _, texts = save_svg(open_page(path, "#view=sound"))
    assert {"1 kHz", "250 Hz"} <= set(texts)


@pytest.mark.parametrize(
    ("run", "view", "kind"), [("image", "image", "pooling"), ("transformer", "steps", "cross")]
)
def test_saved_pictures_have_no_controls(run, view, kind, open_view):
    page, _ = open_view(run, kind, view)
    controls = page.locator(".tools button, .slider").all_inner_texts()
    assert len(controls) >= 3
    _, texts = save_svg(page)
    assert not {word for control in controls for word in control.split()} & set(texts)
    assert page.locator(".tools button, .slider").first.is_visible()


def test_saved_pictures_name_the_attention_and_mark_the_uniform_weight(open_view):
    page, attention_map = open_view("transformer", "cross", "alignment", 1)
    root, texts = save_svg(page)
    read = "Cross-attention (output tokens to source tokens)"
    caption = f"{read} \u00b7 layer {attention_map.layer} \u00b7 head 2"
    assert caption in texts
    assert "uniform" in texts
    pin = "rgb(213, 94, 0)"
    marks = [rect for rect in root.iter(f"{SVG}rect") if rect.get("fill") == pin]
    assert [mark.get("width") for mark in marks] == ["2"]


def test_both_sides_are_saved(both, open_page):
    *captures, path = both
    _, texts = save_svg(open_page(path))
    for capture in captures:
        assert any(text.startswith(f"{capture.title} \u00b7 ") for text in texts), texts


def test_saving_again_writes_no_warning(open_page, open_view):
    """open_page fails if the console has one: canvases that are kept were read again."""
    page, _ = open_view("transformer", "cross", "alignment")
    for _ in range(3):
        save_svg(page)


def test_the_uniform_weight_of_masked_rows_is_that_of_the_row_under_the_pointer(
    capture_run, open_view
):
    page, _ = open_view("transformer", "decoder self", "alignment")
    capture = capture_run("transformer")[0]
    mark = page.locator(".below .uniform-text")
    assert not mark.is_visible()
    for query in (1, 3):
        assert point_at(page, query, 0)
        assert mark.inner_text() == f"uniform {three_digits(1 / (query + 1))}"
    assert point_at(page, 2, 0, click=True)
    page.mouse.move(0, 0)
    assert mark.inner_text() == "uniform 0.333"
    keys = first(capture, "cross").head(0).shape[1]
    other, _ = open_view("transformer", "cross", "alignment")
    assert other.locator(".below .uniform-text").inner_text() == f"uniform {three_digits(1 / keys)}"


def test_presenting_fits_a_chain_to_the_window(open_view):
    page, attention_map = open_view("chain", "chain", "chain", width=1920, height=1080)
    present(page)
    last = attention_map.head(0).shape[0] - 1
    place = page.evaluate("i => window.regard.place(i, i)", last)
    assert 0.85 * 1920 < place["x"] < 1920
    assert (
        place["y"]
        < page.locator(".host").bounding_box()["y"] + page.locator(".host").bounding_box()["height"]
    )


def test_presenting_enlarges_the_summary(capture_run, open_page):
    page = open_page(capture_run("transformer")[1], "#view=summary", width=1920, height=1080)
    height = "() => document.querySelector('.summaries td button').getBoundingClientRect().height"
    before = page.evaluate(height)
    present(page)
    zoom = float(page.evaluate("document.documentElement.style.zoom"))
    assert page.evaluate(height) > 1.15 * zoom * before
    assert page.evaluate(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )


def test_buttons_and_legend_wrap_on_a_phone(open_view):
    page, _ = open_view("transformer", "cross", "alignment", width=400)
    press(page, "c")
    for button in page.locator("nav button").all():
        box = button.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 400
    text = page.locator(".below .uniform-text").first.bounding_box()
    colors = page.locator(".below .picker").first.bounding_box()
    assert text["y"] + text["height"] <= colors["y"] or text["x"] + text["width"] <= colors["x"]


def test_steps_of_a_given_text_are_no_predictions(capture_run, open_page):
    capture, path = capture_run("chain")
    steps = capture[0].sample.steps
    page = open_page(path, "#view=steps")
    title = page.locator(".steps-body h3").first.inner_text()
    assert title.startswith("next token of the text: ")
    assert steps
    other = open_page(capture_run("transformer")[1], "#view=steps")
    assert other.locator(".steps-body h3").first.inner_text().startswith("prediction: ")


def test_lines_are_thicker_when_presenting(open_view):
    def thickest(page: Page) -> float:
        root, _ = save_svg(page)
        return max(float(line.get("stroke-width", 0)) for line in root.iter(f"{SVG}path"))

    page, _ = open_view("transformer", "cross", "links", 0)
    before = thickest(page)
    present(page)
    assert thickest(page) == pytest.approx(2 * before, rel=1e-3)


def test_the_legend_is_saved_alike_when_presenting(open_view):
    options = {"measure": "weight x gradient", "width": 1920, "height": 1080}
    page, _ = open_view("transformer", "cross", "alignment", -1, **options)

    def legend() -> dict[str, tuple[float, float]]:
        """Return the left edge and the size of each text of the legend."""
        root, texts = save_svg(page)
        elements = list(root.iter(f"{SVG}text"))[texts.index("weight", 2) :]
        left = float(elements[0].get("x"))
        return {
            each.text: (float(each.get("x")) - left, float(each.get("font-size")))
            for each in elements
        }

    before = legend()
    assert any(text.startswith("-") for text in before)
    present(page)
    after = legend()
    assert list(after) == list(before)
    assert np.array(list(after.values())) == pytest.approx(np.array(list(before.values())), abs=1.5)


def test_steps_of_a_chain_show_its_attention_and_follow_the_keys(capture_run, open_page):
    capture, path = capture_run("chain")
    weights = first(capture, "chain").head(0).float().numpy()
    page = open_page(path, "#view=steps")
    assert page.locator(".steps-body h3", has_text="attention at this step").is_visible()
    for step, key in ((1, "n"), (2, "n"), (1, "p")):
        press(page, key)
        assert page.locator(".count").inner_text().startswith(f"step {step + 1} of ")
    assert point_at(page, 1, int(weights[1].argmax()))
    check(tip_of(page), weights)


def test_a_chain_is_saved_whole(capture_run, open_view):
    page, attention_map = open_view("chain", "chain", "chain", height=400)
    capture = capture_run("chain")[0]
    canvas = page.locator(".sheet-canvas")
    before = canvas.bounding_box()
    _, texts = save_svg(page)
    count = len(attention_map.head(0))
    last = capture[0].keys(attention_map).labels[count - 1]
    assert len(texts) >= count * (count + 1) / 2
    assert last in {text.strip() for text in texts} or last.isspace()
    page.evaluate("window.regard.ready")
    assert canvas.bounding_box() == before


def test_marks_of_the_page_are_on_saved_pictures(open_view):
    page, _ = open_view("transformer", "cross", "steps", -1)
    accent = page.locator(".output-token[aria-pressed=true]").evaluate(
        "token => getComputedStyle(token).boxShadow.match(/rgb\\(.*?\\)/)[0]"
    )
    opacity = page.locator(".output-token.is-future").first.evaluate(
        "token => getComputedStyle(token).opacity"
    )
    root, texts = save_svg(page)
    assert "\u2713" in texts  # the token of the output among the candidates
    assert [rect.get("stroke") for rect in root.iter(f"{SVG}rect")].count(accent) == 1
    assert opacity in {text.get("opacity") for text in root.iter(f"{SVG}text")}


def capture_boxes(
    samples: list[list[DetectedBox]], count: int, labels: tuple[str, ...] = ()
) -> Capture:
    """Return a capture of images with these boxes, those of the first of `count` queries."""
    place = (0.0, 0.0, 1.0, 1.0)
    labels_of_queries, places = tuple(map(str, range(count))), (place,) * count
    queries = Axis(labels=labels_of_queries, kind="box", picture="image", places=places)
    source = Axis(labels=("1",), kind="patch", picture="image", places=(place,))
    axes = {"queries": queries, "source": source}
    maps = []
    for number, boxes in enumerate(samples):
        picture = Picture(pixels=np.zeros((60, 80, 3), np.uint8), boxes=tuple(boxes), labels=labels)
        read = map_of(torch.ones(1, count, 1), queries="queries")
        maps.append(sample_maps_of(f"image {number}", axes, read, image=picture))
    return capture_of(*maps)


def test_labels_of_many_boxes_do_not_overlap(open_page, tmp_path):
    places = [(0.02 * (i % 5) + 0.2, 0.015 * (i // 5) + 0.3, 0.2, 0.2) for i in range(25)]
    boxes = [
        DetectedBox(label="cell", score=1 - 0.01 * i, place=place, query=i)
        for i, place in enumerate(places)
    ]
    # Where the entries are patches, no box is selected.
    patches = map_of(torch.ones(1, 1, 1), "encoder self", "source", "source")
    maps = replace(capture_boxes([boxes], 25)[0], maps=(patches,))
    page = open_page(capture_of(maps).save(tmp_path / "page.html"))
    root, texts = save_svg(page)
    tags = [
        tuple(float(rect.get(name)) for name in ("x", "y", "width", "height"))
        for rect in root.iter(f"{SVG}rect")
        if rect.get("height") == "18" and rect.get("fill") != "none"
    ]
    assert 1 < len(tags) < 25
    assert "cell 1.00" in texts  # labels of larger scores come first
    for i, (x, y, width, height) in enumerate(tags):
        for left, top, wide, high in tags[:i]:
            is_beside = min(x + width, left + wide) <= max(x, left)
            assert is_beside or min(y + height, top + high) <= max(y, top)


def test_a_label_has_one_color_and_detections_are_apart_from_the_others(open_page, tmp_path):
    place = (0.2, 0.2, 0.3, 0.3)
    dog = DetectedBox(label="dog", score=0.6, place=place, query=3)
    cat = DetectedBox(label="cat", score=0.9, place=place, query=1)
    labels = ("cat", "cow", "dog")
    capture = capture_boxes([[dog], [dog, cat]], 5, labels)
    other = capture_boxes([[dog]], 5, ("cow", "dog"))
    path = capture.save(tmp_path / "page.html", compare=other)
    colors = set()
    for fragment in ("#capture=0&sample=0", "#capture=0&sample=1", "#capture=1&sample=0"):
        page = open_page(path, f"{fragment}&view=image")
        mark = page.locator(".found button", has_text="dog").locator(".mark")
        colors.add(mark.evaluate("mark => mark.style.backgroundColor"))
    assert colors == {"rgb(0, 158, 115)"}  # the third color: dog is the third label
    page = open_page(path, "#capture=0&sample=1&view=image")
    entries = "buttons => buttons.map((button) => Number(button.dataset.entry))"
    assert page.locator(".found [data-entry]").evaluate_all(entries) == [1, 3]
    assert page.locator(".side summary").inner_text() == "3 below the threshold"
    assert page.locator(".side details [data-entry]").evaluate_all(entries) == [0, 2, 4]
    # The detection with the largest score is shown first, then the others in their order.
    pressed = page.locator(".side [aria-pressed=true]")
    assert pressed.evaluate_all(entries) == [1]
    assert page.locator(".caption").inner_text() == "weights of query box 1 (cat)"
    press(page, "ArrowRight")
    assert pressed.evaluate_all(entries) == [3]


def test_the_heading_of_a_tagged_text_is_the_text_with_its_entities_in_color(open_page, tmp_path):
    text = "Anna <b> O'Neill saw Oslo."
    own = map_of(torch.ones(1, 1, 1), "encoder self", "source", "source")
    marked = MarkedText.from_spans(text, [(0, 16, "PER"), (21, 25, "LOC")], ("LOC", "PER"))
    maps = sample_maps_of(f"{text} -> Oslo (LOC)", {"source": Axis(labels=("a",))}, own)
    maps.sample.marked = marked
    saved = capture_of(maps).save(tmp_path / "x.safetensors")
    page = open_page(Capture.open(saved).save(tmp_path / "page.html"), width=400)
    heading = page.locator("h1")
    assert heading.inner_text() == "Anna <b> O'NeillPER saw OsloLOC."
    colors = "marks => marks.map((mark) => mark.style.getPropertyValue('--label'))"
    assert heading.locator("mark").evaluate_all(colors) == ["#d55e00", "#0072b2"]
    grounds = "marks => marks.map((mark) => getComputedStyle(mark).backgroundColor)"
    assert len(set(heading.locator("mark").evaluate_all(grounds))) == 2
    assert heading.evaluate("h1 => h1.scrollHeight <= h1.clientHeight")
    assert page.title() == f"{text} -> Oslo (LOC) - regard"


@pytest.mark.parametrize(("kind", "found"), [("event", 2), ("event", 0), ("chunk", 0)])
def test_events_below_the_threshold_are_apart(kind, found, open_page, tmp_path):
    events = tuple(
        DetectedEvent(label="dog", score=0.5 + 0.1 * i, onset=i, duration=1, query=i)
        for i in range(found)
    )
    places = ((0.0, 1.0), (1.0, 2.0), (2.0, 3.0))
    queries = Axis(labels=("a", "b", "c"), kind=kind, picture="sound", places=places)
    source = Axis(labels=("1",), kind="time", picture="sound", places=((0.0, 3.0),))
    axes = {"queries": queries, "source": source}
    picture = Sound(bands=np.eye(4, 30), seconds=3, events=events)
    read = map_of(torch.ones(1, 3, 1), queries="queries")
    capture = capture_of(sample_maps_of("sound", axes, read, sound=picture))
    page = open_page(capture.save(tmp_path / "page.html"), "#view=sound")
    entries = "buttons => buttons.map((button) => Number(button.dataset.entry))"
    groups = page.locator(".chips").all()
    chips = [group.locator("[data-entry]").evaluate_all(entries) for group in groups]
    if found:
        assert page.locator(".side h3").first.inner_text() == "detected events"
        assert page.locator(".side summary").inner_text() == "1 below the threshold"
        assert chips == [[1, 0], [2]]
    else:
        heading = "3 below the threshold" if kind == "event" else "chunks"
        assert page.locator(".side h3").first.inner_text() == heading
        assert chips == [[0, 1, 2]]


@pytest.mark.parametrize(("width", "height"), [(1366, 768), (1920, 1080)])
def test_presenting_enlarges_the_steps_to_the_window(width, height, capture_run, open_page):
    page = open_page(capture_run("transformer")[1], "#view=steps", width=width, height=height)
    size = "() => document.querySelector('.output-token').getBoundingClientRect().height"
    before = page.evaluate(size)
    present(page)
    zoom = float(page.evaluate("document.documentElement.style.zoom"))
    assert page.evaluate(size) > 1.2 * zoom * before
    host = "(host => host.scrollHeight - host.clientHeight)(document.querySelector('.host'))"
    for _ in range(3):
        assert page.evaluate(host) <= 0
        press(page, "ArrowRight")
