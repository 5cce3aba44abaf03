"""The view walk in a browser: its numbers equal the formulas computed from the model's weights."""

import numpy as np
import pytest
import torch
from playwright.sync_api import Locator

from regard.layers.multihead import MultiHead
from regard.look.page import page as page_module
from regard.look.record import record
from tests.look.toys import CORES, SOURCES, capture_sources, encoder_formulas, model_of
from tests.viewer.conftest import point_at, present, press

READ = "core.encoder.0.attention.read"
HEAD, QUERY = 1, 3


@pytest.fixture(scope="module")
def model():
    return model_of(CORES["transformer"])


@pytest.fixture(scope="module")
def page_path(model, tmp_path_factory):
    capture = capture_sources(model, SOURCES[:1], vectors=True)
    return capture.save(tmp_path_factory.mktemp("walk") / "page.html")


def parts_of(walk: Locator) -> list[str]:
    """Return the names of the matrices that a walk shows."""
    return [canvas.get_attribute("data-part") for canvas in walk.locator("canvas").all()]


def test_every_cell_and_its_formula_are_the_models(model, page_path, open_page):
    page = open_page(page_path, f"#view=walk&read={READ}&head={HEAD}&query={QUERY}", width=2200)
    formulas = encoder_formulas(model, HEAD)
    for name in ("out", "Q", "K", "V", "S", "A", "Z"):
        expected = formulas[name]
        box = page.locator(f"canvas[data-part={name}]").bounding_box()
        rows, columns = expected.shape
        row, column = (QUERY, columns - 1) if name in ("out", "Q", "S", "A", "Z") else (rows - 1, 0)
        page.mouse.move(
            box["x"] + (column + 0.5) * box["width"] / columns,
            box["y"] + (row + 0.5) * box["height"] / rows,
        )
        number = float(expected[row, column])
        formula = page.locator(".walk-formula")
        assert float(formula.get_attribute("data-number")) == pytest.approx(
            number, rel=1e-5, abs=1e-6
        ), name
        if name != "out":
            assert formula.inner_text().startswith(f"{name}[{row + 1}, {column + 1}] = ")
    terms = page.locator(".walk-formula").inner_text()
    largest = int((formulas["A"][QUERY] * formulas["V"][:, -1]).abs().argmax())
    first = float(
        terms.split("=")[-1].split("\u00d7")[0]
    )  # the first term of the sum is the largest
    assert first == pytest.approx(float(formulas["A"][QUERY, largest]), rel=5e-3)


def test_the_table_of_a_query_has_its_scores_and_weights(model, page_path, open_page):
    page = open_page(page_path, f"#view=walk&read={READ}&head={HEAD}&query={QUERY}")
    expected = encoder_formulas(model, HEAD)
    for key in range(expected["S"].shape[1]):
        cells = page.locator(f".walk-table tr[data-key='{key}'] td[data-number]")
        score, weight = (float(cell.get_attribute("data-number")) for cell in cells.all())
        assert np.array([score, weight]) == pytest.approx(
            np.array([expected["S"][QUERY, key], expected["A"][QUERY, key]]), rel=1e-5, abs=1e-6
        )
    # A click on a row of Q asks with its query.
    box = page.locator("canvas[data-part=Q]").bounding_box()
    page.mouse.click(box["x"] + 5, box["y"] + 5)
    page.evaluate("window.regard.ready")
    assert page.evaluate("window.regard.shown()")["query"] == 0
    heading = f"query 1 (t{SOURCES[0][0]}) and {len(SOURCES[0])} keys"
    assert page.locator(".walk-asked h3").inner_text() == heading


def test_masked_scores_are_shown_as_such(page_path, open_page):
    page = open_page(
        page_path, "#view=walk&read=core.decoder.0.attention.read&head=0&query=1", width=2200
    )
    cells = page.locator(".walk-table tr[data-key='2'] td[data-number]")
    assert [cell.get_attribute("data-number") for cell in cells.all()] == ["-\u221e", "0"]
    assert point_at(page, 1, 2)
    assert page.locator(".walk-formula").get_attribute("data-number") == "0"


def test_the_view_is_there_only_for_reads_with_vectors(
    model, page_path, tmp_path, open_page, monkeypatch
):
    assert open_page(page_path).get_by_role("tab", name="walk").count() == 1
    path = capture_sources(model, SOURCES[:1]).save(tmp_path / "page.html")
    page = open_page(path, "#view=walk")
    assert page.get_by_role("tab", name="walk").count() == 0
    assert page.evaluate("window.regard.shown()")["view"] == "alignment"
    monkeypatch.setattr(page_module, "WALK_BUDGET", 3000)
    path = capture_sources(model, SOURCES[:1], vectors=True).save(tmp_path / "small.html")
    page = open_page(path, "#view=walk")
    assert "numbers of the view walk are left out" in page.locator("body").inner_text()
    assert page.get_by_role("tab", name="walk").count() == 0


def test_the_walk_selects_the_head_that_it_shows(page_path, open_page):
    """The mean over heads is selected again behind it, unless a head was chosen."""
    page = open_page(page_path, f"#view=alignment&read={READ}")
    select = page.locator("select[data-control=head]")

    def open_view(view: str) -> str:
        """Open a view and return the head that is selected then."""
        page.get_by_role("tab", name=view).click()
        page.evaluate("window.regard.ready")
        return select.locator("option:checked").inner_text()

    mean = select.locator("option:checked").inner_text()
    assert (mean[:9], open_view("walk")) == ("mean over", "head 1")
    assert mean not in select.locator("option").all_inner_texts()
    assert page.locator(".walk > .note").inner_text().startswith("head 1 of ")
    press(page, "[")  # from the first to the last
    assert select.input_value() == str(HEAD)
    assert open_view("alignment") == "head 2"
    select.select_option("-1")
    assert (open_view("walk"), open_view("links")) == ("head 1", mean)


@pytest.mark.parametrize("width", [900, 2600])
def test_a_saved_walk_has_the_layout_of_the_page(width, page_path, open_page):
    page = open_page(page_path, f"#view=walk&read={READ}&head={HEAD}", width=width)
    canvases = page.locator(".walk canvas").all()
    boxes = {canvas.get_attribute("data-part"): canvas.bounding_box() for canvas in canvases}
    labels = page.locator(".walk-rows span, .walk-columns span").all_inner_texts()
    assert list(boxes) == ["X", "Q", "K", "V", "S", "A", "Z", "out"]
    page.keyboard.press("s")
    with page.expect_download() as download:
        page.get_by_role("button", name="SVG").click()
    page.set_content(download.value.path().read_text(encoding="utf-8"))
    # The canvases are the groups of a figure that have no group inside, in the order of the page.
    places = page.evaluate("""() => {
      const groups = [...document.querySelectorAll("g")].filter((g) => !g.querySelector("g"));
      const boxes = groups.map((g) => g.getBoundingClientRect());
      return boxes.map(({x, y, width, height}) => ({x, y, width, height}));
    }""")
    texts = page.evaluate("[...document.querySelectorAll('text')].map((text) => text.textContent)")
    matrices = places[-len(boxes) :]
    for place, box in zip(matrices, boxes.values(), strict=True):
        assert place["x"] - matrices[0]["x"] == pytest.approx(box["x"] - boxes["X"]["x"], abs=2)
        assert place["y"] - matrices[0]["y"] == pytest.approx(box["y"] - boxes["X"]["y"], abs=2)
        for side in ("width", "height"):
            assert place[side] == pytest.approx(box[side], abs=2)
    assert all(texts.count(label) >= labels.count(label) for label in labels)


def test_rows_of_self_attention_of_a_decoder_are_named_by_its_input(page_path, open_page):
    page = open_page(page_path, "#view=walk&read=core.decoder.0.attention.read&head=0", width=2200)
    labels = set()
    for side in page.locator(".walk-columns, .walk-rows").all():
        labels.add(tuple(side.locator("span").all_inner_texts()))
    (columns,) = labels
    assert point_at(page, 1, 0)
    assert page.locator("#tip").inner_text().startswith(f"{columns[1]} \u2192 {columns[0]}")


@pytest.mark.parametrize(("width", "height"), [(1366, 768), (1920, 1080)])
def test_presenting_shows_step_by_step_as_large_as_the_window(width, height, tmp_path, open_page):
    """Nothing is scrolled, and the matrices of a step use the window; the formula is in sight."""
    layer = MultiHead(32, num_heads=2).eval()
    with record(layer, vectors=True) as capture:
        layer(torch.randn(1, 11, 32), layer.memory(torch.randn(1, 16, 32)))
    attention_map = capture[0].maps[0]
    page = open_page(
        capture.save(tmp_path / "page.html"), "#view=walk&head=1", width=width, height=height
    )
    present(page)
    shown = []
    while True:
        parts = parts_of(page.locator(".walk"))
        assert page.evaluate("""[".walk", ".walk-steps", ".host"].every((name) => {
          const part = document.querySelector(name);
          const fits = part.scrollWidth <= part.clientWidth;
          return fits && part.scrollHeight <= part.clientHeight;
        })"""), parts
        window = page.locator(".walk-steps").bounding_box()
        used = page.locator(".walk-steps > *").bounding_box()
        assert used["width"] > 0.85 * window["width"] or used["height"] > 0.85 * window["height"]
        if parts:
            assert used["width"] > 0.85 * window["width"]
            assert used["height"] > 0.85 * window["height"]
        shown.append(parts)
        if page.get_by_role("button", name="next").is_disabled():
            break
        press(page, "PageDown")
    # Q, K and V side by side would have no room for their numbers; the last step is the table.
    assert shown == [["X'", "X"], ["Q"], ["K"], ["V"], ["S"], ["A"], ["Z"], ["out"], []]
    assert page.locator(".walk-table tbody tr").count() == 16 + 1
    for _ in range(3):
        press(page, "ArrowLeft")
    page.get_by_role("button", name="previous").click()
    page.evaluate("window.regard.ready")
    assert page.locator(".walk canvas").get_attribute("data-part") == "S"
    page.get_by_role("button", name="next").click()
    page.evaluate("window.regard.ready")
    # The pointer is on the cell that it is drawn over.
    assert point_at(page, 2, 1)
    formula = page.locator(".walk-formula")
    expected = float(attention_map.weights[1, 2, 1])
    assert float(formula.get_attribute("data-number")) == pytest.approx(expected, rel=1e-5)
    box, window = formula.bounding_box(), page.locator(".walk").bounding_box()
    assert box["y"] + box["height"] <= window["y"] + window["height"] + 1


def test_small_matrices_of_a_step_are_side_by_side_when_presenting(page_path, open_page):
    page = open_page(
        page_path, f"#view=walk&read={READ}&head={HEAD}&query={QUERY}", width=1366, height=768
    )
    before = page.locator("canvas[data-part=Q]").bounding_box()
    present(page)
    press(page, "ArrowRight")
    boxes = [canvas.bounding_box() for canvas in page.locator(".walk canvas").all()]
    assert len(boxes) == 3
    assert len({round(box["y"]) for box in boxes}) == 1
    assert boxes[0]["width"] > 1.5 * before["width"]
    assert boxes[0]["height"] > 1.5 * before["height"]


def test_keys_move_both_linked_sides_to_the_same_matrix(open_page, tmp_path):
    """Sides may have different steps: Q, K and V side by side, or one by one."""
    captures = []
    for width in (4, 32):
        layer = MultiHead(width, num_heads=1).eval()
        with record(layer, vectors=True) as capture:
            layer(torch.randn(1, 9, width), layer.memory(torch.randn(1, 9, width)))
        captures.append(capture)
    page = open_page(
        captures[0].save(tmp_path / "both.html", compare=captures[1]), "", width=1900, height=600
    )
    page.get_by_role("tab", name="walk").first.click()
    page.evaluate("window.regard.ready")
    top = page.evaluate("scrollY")
    page.keyboard.press("ArrowDown")
    page.wait_for_function("top => scrollY > top", arg=top)
    present(page)
    seen = []
    for _ in range(7):
        page.evaluate("window.regard.ready")
        seen.append([parts_of(walk) for walk in page.locator(".walk").all()])
        page.keyboard.press("PageDown")
    assert seen[1][0][0] == "Q"
    assert all(set(left[:1]) <= set(right) for left, right in seen)
    assert seen[-1] == [[], []]  # the table of a query


def test_matrices_name_their_scale(page_path, open_page):
    page = open_page(page_path, f"#view=walk&read={READ}&head={HEAD}&query={QUERY}")
    for caption in page.locator(".walk figcaption").all_inner_texts():
        assert ("up to \u00b1" in caption) == (caption.split()[0] != "A")
