"""Tooltips, keys and linked sides of the page, for captures without a model."""

import pytest
import torch
from playwright.sync_api import Page

from regard.look.capture import Capture
from regard.look.maps import AttentionMap, SampleMaps
from regard.look.sample import Alternative, Axis, DecodingStep, Sample


def capture_of(*outputs: str, layers: int = 2, heads: int = 2) -> Capture:
    """Return a capture of one sample per output, a token per character, with random weights on five source tokens."""
    samples = []
    for output in outputs:
        weights = torch.rand(layers, heads, len(output), 5, generator=torch.Generator().manual_seed(0)).softmax(-1)
        steps = [
            DecodingStep(token=token, probability=0.5, alternatives=(Alternative(token=token, probability=0.5),))
            for token in output
        ]
        axes = {"output": Axis(labels=tuple(output)), "source": Axis(labels=tuple("abcde"))}
        maps = tuple(
            AttentionMap(
                key=f"{output} {layer}",
                name=f"layer {layer}",
                kind="cross",
                layer=layer + 1,
                queries="output",
                keys="source",
                heads=tuple(str(head + 1) for head in range(heads)),
                load=weights[layer].__getitem__,
            )
            for layer in range(layers)
        )
        samples.append(SampleMaps(sample=Sample(title=output, axes=axes, steps=tuple(steps)), maps=maps))
    return Capture(lambda: samples, title="run", model="model")


def press(page: Page, keys: str) -> None:
    for key in keys.split():
        page.keyboard.press(key)
        page.evaluate("window.regard.ready")


def point_at(page: Page, place: tuple[int | None, int | None]) -> str:
    """Move the pointer to a pair, and return the text of the tooltip."""
    position = page.evaluate("([q, k]) => window.regard.place(q, k)", list(place))
    page.mouse.move(position["x"], position["y"])
    return page.locator("#tip").inner_text()


@pytest.mark.parametrize(("view", "place"), [("alignment", (1, 2)), ("links", (1, None)), ("steps", (None, 2))])
def test_keys_update_the_tooltip_of_a_resting_pointer(view, place, open_page, tmp_path):
    """It is the one that a movement of the pointer shows."""
    page = open_page(capture_of("2019").save(tmp_path / "page.html"), f"#head=0&view={view}")
    seen = [point_at(page, place)]
    for key in "].":
        press(page, key)
        kept = page.locator("#tip").inner_text()
        page.mouse.move(0, 0)
        seen.append(point_at(page, place))
        assert kept == seen[-1]
    assert len(set(seen)) == 3


def test_the_tooltip_names_the_layer_and_that_of_the_keyboard_closes_with_it(open_page, tmp_path):
    page = open_page(capture_of("2019").save(tmp_path / "page.html"), "#read=layer%201&head=0&view=alignment")
    press(page, "ArrowDown")
    assert "layer 2, head 1" in page.locator("#tip").inner_text()
    press(page, ",")
    assert page.locator("#tip").is_hidden()
