"""Tooltips, keys and linked sides of the page, for captures without a model."""

from dataclasses import replace

import pytest
import torch
from playwright.sync_api import Page

from regard.look.capture import Capture
from regard.look.sample import Alternative, Axis, DecodingStep
from tests.look.maps import capture_of, map_of, sample_maps_of
from tests.viewer.conftest import point_at, press


def capture_outputs(*outputs: str) -> Capture:
    """Return a capture of one sample per output, random weights on five source tokens."""
    samples = []
    for output in outputs:
        generator = torch.Generator().manual_seed(0)
        weights = torch.rand(2, 2, len(output), 5, generator=generator).softmax(-1)
        axes = {"output": Axis(labels=tuple(output)), "source": Axis(labels=tuple("abcde"))}
        maps = []
        for layer in (1, 2):
            own = map_of(weights[layer - 1], layer=layer)
            maps.append(replace(own, key=f"{output} {layer}"))
        shown = sample_maps_of(output, axes, *maps)
        steps = []
        for token in output:
            likely = Alternative(token=token, probability=0.5)
            steps.append(DecodingStep(token=token, probability=0.5, alternatives=(likely,)))
        shown.sample.steps = tuple(steps)
        samples.append(shown)
    return capture_of(*samples)


def tip_at(page: Page, place: tuple[int | None, int | None]) -> str:
    """Move the pointer to a pair, and return the text of the tooltip."""
    assert point_at(page, *place)
    return page.locator("#tip").inner_text()


@pytest.mark.parametrize(
    ("view", "place"), [("alignment", (1, 2)), ("links", (1, None)), ("steps", (None, 2))]
)
def test_keys_update_the_tooltip_of_a_resting_pointer(view, place, open_page, tmp_path):
    """It is the one that a movement of the pointer shows."""
    page = open_page(capture_outputs("2019").save(tmp_path / "page.html"), f"#head=0&view={view}")
    seen = [tip_at(page, place)]
    for key in "].":
        press(page, key)
        kept = page.locator("#tip").inner_text()
        page.mouse.move(0, 0)
        seen.append(tip_at(page, place))
        assert kept == seen[-1]
    assert len(set(seen)) == 3


def test_the_tooltip_names_the_layer_and_that_of_the_keyboard_closes_with_it(open_page, tmp_path):
    page = open_page(
        capture_outputs("2019").save(tmp_path / "page.html"),
        "#read=cross%202&head=0&view=alignment",
    )
    press(page, "ArrowDown")
    assert "layer 2, head 1" in page.locator("#tip").inner_text()
    press(page, ",")
    assert page.locator("#tip").is_hidden()


def test_linked_sides_are_at_the_same_step_whatever_their_tokens(open_page, tmp_path):
    """The side with fewer steps stays at its last, and says so."""
    page = open_page(
        capture_outputs("abcd").save(tmp_path / "page.html", compare=capture_outputs("xyz"))
    )
    page.get_by_role("tab", name="steps").first.click()
    page.evaluate("window.regard.ready")
    counts = page.locator(".steps .count")
    for number in (2, 3):
        press(page, "n")
        assert counts.all_inner_texts() == [f"step {number} of 4", f"step {number} of 3"]
    press(page, "n")
    assert counts.all_inner_texts() == [
        "step 4 of 4",
        "step 3 of 3, the last (step 4 on the other side)",
    ]
    press(page, "p p")
    assert counts.all_inner_texts() == ["step 2 of 4", "step 2 of 3"]


def test_keys_of_a_presenter_go_through_the_steps_of_all_samples(open_page, tmp_path):
    """The page does not scroll; Esc ends it, and unpins only after that."""
    both = capture_outputs("abcd", "xyz"), capture_outputs("efgh")
    page = open_page(
        both[0].save(tmp_path / "page.html", compare=both[1]), "#view=steps", width=1366, height=500
    )
    press(page, "c f")
    counts = page.locator(".steps .count")
    press(page, "PageDown ArrowDown PageUp ArrowRight")
    assert counts.first.inner_text() == "step 3 of 4"
    assert page.evaluate("scrollY") == 0
    for key, title in ((">", "xyz"), (">", "abcd"), ("<", "xyz")):
        press(page, key)
        assert title in page.locator(".pane header").first.inner_text()
    press(page, "n Escape")
    assert not page.evaluate("document.documentElement.classList.contains('presenting')")
    assert page.evaluate("window.regard.shown()")["query"] == 1
    press(page, "Escape")
    assert page.evaluate("window.regard.shown()")["query"] is None


def test_axes_have_one_name_in_all_views(open_page, tmp_path):
    page = open_page(capture_outputs("abcd").save(tmp_path / "page.html"), "#view=links")
    names = {view: texts_of_canvases(page, view) for view in ("links", "alignment")}
    assert names["links"] & names["alignment"] >= {"queries: output items", "keys: source items"}


def texts_of_canvases(page: Page, view: str) -> set[str]:
    """Return the texts that a view draws."""
    page.evaluate("""() => {
      const draw = CanvasRenderingContext2D.prototype.fillText;
      window.drawn = [];
      CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
        window.drawn.push(text);
        return draw.call(this, text, ...rest);
      };
    }""")
    page.evaluate("view => { location.hash = `view=${view}&head=1` }", view)
    page.evaluate("window.regard.ready")
    return set(page.evaluate("window.drawn"))
