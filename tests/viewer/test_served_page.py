"""The page of a service, in a browser: inputs of all kinds, answers, attention, errors and keys."""

import base64
import json
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request, Route

from benchmarks.serve.measures import OBSERVE
from regard.recipes.base.trained import TrainedRun
from tests.recipes.tiny import folder
from tests.serve.running import serving_here, untrained_run

RUNS: dict[str, tuple[str, ...]] = {
    "dates": ("--model.core.width", "16"),
    "boxes": ("--threshold", "0.01"),
    "events": ("--threshold", "0.01"),
    "rebuild": (),
}
"""Options by recipe."""
TEXT = "5 May 2019"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainedRun]:
    """Runs that are served under the names of their recipes."""
    root = tmp_path_factory.mktemp("runs")
    return {name: untrained_run(name, root / name, *options) for name, options in RUNS.items()}


@pytest.fixture(scope="module")
def address(runs: dict[str, TrainedRun]) -> Iterator[str]:
    """Address of the service of the runs."""
    with serving_here(runs) as service:
        yield f"{service.url}/"


@pytest.fixture
def open_run(browser: Browser, address: str) -> Iterator[Callable[..., Page]]:
    """Return a function that opens the page of a run, which asks no other host."""
    contexts, problems = [], []

    def note_request(request: Request) -> None:
        if not request.url.startswith((address, "data:", "blob:")):
            problems.append(request.url)

    def open_tab(name: str, *, refuses: int = 0, **options: object) -> Page:
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(20_000)
        page.on("request", note_request)
        page.on("pageerror", lambda error: problems.append(str(error)))
        if refuses:
            page.route("**/v1/runs", lambda route: check_key(route, refuses))
        page.goto(f"{address}?run={name}")
        page.wait_for_selector(".live")
        return page

    yield open_tab
    for context in contexts:
        context.close()
    assert problems == []


def check_key(route: Route, status: int) -> None:
    """Answer as a service with the key "secret" does."""
    if route.request.headers.get("authorization") == "Bearer secret":
        return route.continue_()
    problem = {"title": "Unauthorized", "status": status, "detail": "expected a valid key"}
    route.fulfill(status=status, json=problem, content_type="application/problem+json")


def type_text(page: Page, text: str) -> None:
    """Type the last character of a text, and wait until its attention is drawn."""
    page.locator("textarea").fill(text[:-1])
    page.evaluate(OBSERVE)
    page.locator("textarea").press(text[-1])
    page.evaluate("window.firstRow")


def output(page: Page) -> str:
    return page.locator(".live-output").inner_text()


def test_answer_and_attention_follow_the_text(
    open_run: Callable[..., Page], runs: dict[str, TrainedRun]
) -> None:
    page = open_run("dates")
    page.wait_for_selector(".host canvas")
    assert page.locator("textarea").input_value() == runs["dates"].test_input(0)
    for text in ("1", "3 May", "12.1.1999", TEXT):
        type_text(page, text)
    (expected,) = runs["dates"].predict([TEXT])
    assert expected
    assert output(page) == expected
    assert page.title() == f"{TEXT} -> {expected} - regard"
    kinds = page.locator("[data-control=attention] option").all_inner_texts()
    assert [kind.partition(" (")[0] for kind in kinds] == [
        "Encoder self-attention",
        "Decoder self-attention",
        "Cross-attention",
    ]
    page.locator("[data-control=head]").select_option("1")
    type_text(page, "1 June 2001")
    shown = page.evaluate("window.regard.shown()")
    assert (shown["kind"], shown["head"], shown["view"]) == ("cross", 1, "alignment")
    (row,) = runs["dates"].look(["1 June 2001"])[0].find("cross")
    tip = page.evaluate("window.regard.place(0, 1)")
    page.mouse.move(tip["x"], tip["y"])
    page.locator("#tip").wait_for(state="visible")
    number = float(page.locator("#tip b.number").inner_text())
    assert number == pytest.approx(float(row.weights[1, 0, 1]), rel=1e-4)
    page.locator("textarea").fill("")
    page.wait_for_selector(".is-stale")
    assert output(page) == ""


def test_curl_command_is_what_was_asked(
    open_run: Callable[..., Page], runs: dict[str, TrainedRun], tmp_path: Path
) -> None:
    page = open_run("dates")
    type_text(page, "5 May '19")
    page.get_by_text("Options").click()
    page.get_by_label("beam").fill("3")
    page.get_by_label("n_best").fill("2")
    page.wait_for_selector(".live-output tr >> nth=2")
    answers = runs["dates"].answer(["5 May '19"], beam=3, n_best=2)
    cells = page.locator(".live-output tr td:first-child").all_inner_texts()
    assert cells == [one["text"] for one in answers[0]["outputs"]]
    page.get_by_role("button", name="Copy curl").click()
    reply = curl(page, tmp_path)
    assert reply["answers"] == [{"input": 1} | answers[0]]
    assert {row["kind"] for row in reply["look"]["rows"]} >= {"cross", "decoder self"}

    page.locator("[data-control=head]").select_option("1")
    page.get_by_label("Run").select_option("boxes")
    image = folder() / "images" / "a" / "0.png"
    page.locator("input[type=file]").set_input_files(image)
    page.wait_for_selector(".host[data-view=image] canvas")
    # The selection of another run is not kept.
    assert page.evaluate("window.regard.shown().head") == -1
    page.get_by_role("button", name="Copy curl").click()
    reply = curl(page, image.parent)
    assert reply["answers"] == [{"input": 1} | runs["boxes"].answer([image])[0]]


def curl(page: Page, folder: Path) -> dict:
    command = page.locator(".served-command").inner_text()
    assert shlex.split(command)[0] == "curl"
    return json.loads(subprocess.check_output(["sh", "-c", f"{command} -s"], cwd=folder))


def test_a_dropped_image_shows_its_boxes(
    open_run: Callable[..., Page], runs: dict[str, TrainedRun]
) -> None:
    page = open_run("boxes")
    content = (folder() / "images" / "b" / "1.png").read_bytes()
    page.wait_for_selector(".served-file")
    page.evaluate(_DROP, [base64.b64encode(content).decode(), "one.png", "image/png"])
    page.wait_for_selector(".host[data-view=image] canvas")
    expected = [box["label"] for box in runs["boxes"].answer([content])[0]["boxes"]]
    assert expected
    assert page.locator(".live-output td:first-child").all_inner_texts() == expected
    assert "one.png" in page.locator(".served-file").inner_text()


def test_a_sound_is_recorded(open_run: Callable[..., Page]) -> None:
    page = open_run("events")
    page.evaluate(_MICROPHONE)
    page.get_by_role("button", name="Record").click()
    page.wait_for_timeout(600)
    page.get_by_role("button", name="Stop").click()
    page.wait_for_selector(".host[data-view=sound]")
    assert "recording.wav" in page.locator(".served-file").inner_text()
    assert page.locator(".live-output h2").inner_text() == "events"
    refused = "() => { navigator.mediaDevices.getUserMedia = () => Promise.reject(Error('no')); }"
    page.evaluate(refused)
    page.get_by_role("button", name="Record").click()
    page.get_by_text("The microphone cannot be used: no").wait_for()


def test_a_run_without_attention_has_an_answer_alone(
    open_run: Callable[..., Page], runs: dict[str, TrainedRun]
) -> None:
    page = open_run("dates")
    page.wait_for_selector(".host canvas")
    page.get_by_label("Run").select_option("rebuild")
    assert output(page) == ""
    image = folder() / "images" / "a" / "2.png"
    page.locator("input[type=file]").set_input_files(image)
    page.get_by_text("no attention").wait_for()
    (answer,) = runs["rebuild"].answer([image])
    assert f"error: {answer['error']:.3g}" in output(page)
    assert not page.locator(".host").is_visible()
    page.get_by_label("Run").select_option("dates")
    page.wait_for_selector(".host[data-view=alignment] canvas")


def test_errors_are_one_line(open_run: Callable[..., Page]) -> None:
    page = open_run("dates")
    status = page.locator(".live-status")
    page.locator("textarea").fill("1 " * 200)
    page.get_by_text("is too long").wait_for()
    assert status.inner_text().startswith("Unprocessable")
    assert status.inner_text().endswith("(inputs[0])")
    assert output(page) == ""
    assert page.locator("#app").evaluate("app => app.classList.contains('is-stale')")
    type_text(page, TEXT)
    page.route("**/v1/predict", lambda route: route.abort())
    page.locator("textarea").press("0")
    page.get_by_text("The service does not answer.").wait_for()
    page.unroute("**/v1/predict")
    page.route("**/v1/predict", refuse, times=1)
    # What the service has no room for is asked again.
    page.locator("textarea").fill("6 May")
    page.wait_for_selector(".live-output p")


def refuse(route: Route) -> None:
    """Answer as a service where too many inputs wait."""
    headers = {"Retry-After": "0.1"}
    route.fulfill(status=429, json={"title": "Too Many Requests"}, headers=headers)


def test_a_key_is_asked_for(open_run: Callable[..., Page]) -> None:
    page = open_run("dates", refuses=401)
    page.get_by_text("Unauthorized: expected a valid key").wait_for()
    key = page.get_by_label("API key")
    key.fill("wrong")
    key.press("Enter")
    key.fill("secret")
    key.press("Enter")
    page.wait_for_selector(".host canvas")
    assert not key.is_visible()
    page.get_by_role("button", name="Copy curl").click()
    command = page.locator(".served-command").inner_text()
    assert 'Authorization: Bearer $KEY"' in command
    assert "secret" not in command + page.content()


def test_a_phone_shows_the_whole_width(open_run: Callable[..., Page]) -> None:
    options = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
    page = open_run("dates", **options)
    page.wait_for_selector(".host canvas")
    page.get_by_role("button", name="Copy curl").click()
    page.get_by_text("Options").click()
    assert page.evaluate("document.documentElement.scrollWidth") == 390


_DROP = """([content, name, type]) => {
  const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([bytes], name, { type }));
  const event = new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true });
  document.querySelector(".served-file").dispatchEvent(event);
}"""

_MICROPHONE = """() => {
  navigator.mediaDevices.getUserMedia = async () => {
    const context = new AudioContext();
    const oscillator = new OscillatorNode(context, { frequency: 400 });
    const stream = context.createMediaStreamDestination();
    oscillator.connect(stream);
    oscillator.start();
    await context.resume();
    return stream.stream;
  };
}"""
