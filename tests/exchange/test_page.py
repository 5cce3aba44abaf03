"""Pages with a model in a browser: their numbers are those of the model with the same weights."""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser, Page

from regard.cli.main import main
from regard.data.batches import pad
from regard.data.config import TokenizerConfig
from regard.data.tokenizer import EOS, Ends, Tokenizer, TrainedTokenizer
from regard.engines.lowering import lower
from regard.errors import UserError
from regard.exchange import page as exchange_page
from regard.exchange.page import Packed, page_text
from regard.layers import forms
from regard.layers.positions.config import (
    AlibiConfig,
    LearnedConfig,
    NoPositionsConfig,
    RelativeConfig,
    RotaryConfig,
)
from regard.models.build import build, build_language_model
from regard.models.config import LanguageModelConfig
from regard.models.cores.config import TransformerConfig
from regard.recipes.load import load
from tests.exchange import live_models
from tests.exchange.live_models import dequantize
from tests.exchange.odd_texts import odd_texts

_SHORT = (
    "--train.warmup 5 --train.lr 5e-3 --train.tensorboard false --data.epoch-size 400 "
    "--data.locales en nl --data.val-size 20 --data.test-size 40 --val-sample 20 "
    "--train.validate-every 40"
)
_RUNS = {
    "dates": f"train dates {_SHORT} --train.steps 40 --model.core.layers 2 --model.core.width 32 "
    "--model.core.heads 4",
    "language": "train language --train.steps 10 --train.validate-every 10 --context 48 --batch 8 "
    "--train.tensorboard false --model.core.width 16 --model.core.layers 2 --model.core.heads 4",
}
TEXTS = ["3 maart 2019", "Tuesday, 12th of May 1998", "x", "samedi 14 juillet 2029, a \u00df"]
VARIANTS: dict[str, dict[str, Any]] = {
    "post": {"norm_order": "post", "positions": LearnedConfig(max_length=140)},
    "shared": {"positions": LearnedConfig(max_length=140), "shared_positions": False},
    "rms": {"norm": "rms", "bias": False, "gated": True, "activation": "silu", "key_heads": 2},
    "rotary": {"positions": RotaryConfig(dim=4, interleaved=True)},
    "alibi": {"positions": AlibiConfig(), "activation": "gelu", "embedding_norm": True},
    "relative": {"positions": RelativeConfig(buckets=8, max_distance=9), "score": "dot"},
    "none": {"positions": NoPositionsConfig(), "activation": "gelu-tanh", "final_norm": False},
    "heads": {"head_dim": 6, "head_value_dim": 10, "key_heads": 1, "attention_bias": "qkv"},
    "window": {"window": 3, "beta": 0.5, "pattern": "S"},
    "norms": {"positions": RotaryConfig(), "qk_norm": "rms"},
}
CASES = [(kind, name) for name in VARIANTS for kind in ("dates", "language")]
CASES.remove(("language", "shared"))
CASES.remove(("dates", "norms"))  # no engine but torch runs them in cross-attention
_FIRST = [case for case in CASES if "dates" in case or "norms" in case]
_OTHERS = [pytest.param(*case, marks=pytest.mark.slow) for case in CASES if case not in _FIRST]


@pytest.fixture(scope="module")
def load_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Return a function that loads a run of this name, which is trained once."""
    folders: dict[str, Path] = {}

    def load_trained(name: str) -> Any:
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp(name) / "run"
            assert main([*_RUNS[name].split(), "--run", str(folders[name])]) == 0
        return load(folders[name], engine="torch", notify=lambda _: None)

    return load_trained


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Return a function that opens the page of a run without network; no request, no error."""
    contexts, problems = [], []

    def open_run(trained: Any, example: str = TEXTS[0], **options: Any) -> Page:
        path = tmp_path / f"page-{len(contexts)}.html"
        path.write_text(page_text(trained, example), encoding="utf-8")
        contexts.append(browser.new_context(offline=True, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(20_000)
        own = path.as_uri()
        page.on("request", lambda one: one.url == own or problems.append(one.url))
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(own)
        page.wait_for_selector(".live")
        if example:
            page.wait_for_selector(".host *")
        return page

    yield open_run
    for context in contexts:
        context.close()
    assert problems == []


def changed(trained: Any, core: dict[str, Any], tokenizer: Tokenizer | None = None) -> Any:
    """Return a run with an untrained model of other settings, and another source tokenizer."""
    torch.manual_seed(1)
    recipe = copy.copy(trained.recipe)
    config, size = trained.config.model, len(recipe.tokenizer)
    config = replace(config, core=replace(config.core, **core))
    if hasattr(recipe, "source_tokenizer"):
        recipe.source_tokenizer = tokenizer or recipe.source_tokenizer
        sizes = {"source_vocab": len(recipe.source_tokenizer), "target_vocab": size}
        model = build(config, **sizes)
    else:
        model = build_language_model(config, vocab=size)
    for weight in model.parameters():  # norms and biases have an effect
        if weight.dim() == 1 or weight.shape[-1] == 8:
            weight.data += 0.3 * torch.randn_like(weight)
    return SimpleNamespace(
        recipe=recipe, model=model.eval(), folder=trained.folder, run=trained.run
    )


def run_text(page: Page, text: str, **choice: int) -> dict[str, Any]:
    choices = {"topK": 1, "length": 20, "seed": 1} | choice
    return page.evaluate("([text, choice]) => live.run(text, choice)", [text, choices])


@torch.no_grad()
def logits_of(trained: Any, text: str, tokens: list[int]) -> torch.Tensor:
    """Return the logits of the model for an output, or for a text and its continuation."""
    recipe = trained.recipe
    if hasattr(recipe, "source_tokenizer"):
        source = pad([[*recipe.source_tokenizer.encode(text), EOS]])
        return trained.model(source, pad([[recipe.search_ids()["bos"], *tokens]]))[0]
    first = recipe.encode_text(text).tolist()[0]
    return trained.model(target=pad([[first, *tokens]]))[0]


def check_logits(page: Page, trained: Any, text: str) -> None:
    """Check the logits of a text, and that each token is the most likely one that is allowed."""
    found = run_text(page, text)
    expected = logits_of(trained, text, found["tokens"])
    torch.testing.assert_close(torch.tensor(found["logits"]), expected, rtol=0, atol=1e-4)
    expected[:, [0, 2]] = -torch.inf
    is_language = not hasattr(trained.recipe, "source_tokenizer")
    if is_language:
        expected[:, [1, 3]] = -torch.inf
    begin = len(trained.recipe.encode_text(text)) - 1 if is_language else 0
    assert found["tokens"][begin:] == expected.argmax(-1).tolist()[begin:]
    assert len(found["tokens"]) > begin


def test_outputs_are_those_of_the_model(load_run, open_page, tmp_path):
    """30 texts: the outputs of `predict` with the weights of the page; less than 8 MB."""
    trained = load_run("dates")
    texts = [trained.test_input(index) for index in range(30)]
    page = open_page(trained)
    dequantize(trained.model)
    found = page.evaluate("texts => texts.map(text => live.run(text).output)", texts)
    assert found == trained.predict(texts)
    assert len(set(found)) > 3
    for text in texts[:5]:
        check_logits(page, trained, text)
    out = tmp_path / "out"
    assert main(["export", str(trained.folder), "--to", "page", "--out", str(out)]) == 0
    assert [path.name for path in out.iterdir()] == ["index.html"]
    assert (out / "index.html").stat().st_size < 8_000_000
    assert json.dumps(texts[0]) in (out / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("kind", "name"), [*_FIRST, *_OTHERS])
def test_logits_of_other_models(kind, name, load_run, open_page):
    trained = changed(load_run(kind), VARIANTS[name])
    page = open_page(trained)
    dequantize(trained.model)
    for text in TEXTS:
        check_logits(page, trained, text)


def test_attention_is_that_of_a_capture(load_run, open_page):
    """Labels, steps, and the entropy and distance of each head are those of `look`."""
    for kind in ("dates", "language"):
        trained = load_run(kind)
        page = open_page(trained)
        dequantize(trained.model)
        shown = trained.look([TEXTS[1]])[0]
        found = run_text(page, TEXTS[1], length=1)["sample"]
        steps = [(step["token"], step["probability"]) for step in found["steps"]]
        expected = [
            (step.token, pytest.approx(step.probability, abs=1e-5)) for step in shown.sample.steps
        ]
        assert steps == expected
        for step, own in zip(found["steps"], shown.sample.steps, strict=True):
            alternatives = {one.token: one.probability for one in own.alternatives}
            first = step["alternatives"][0]
            assert first["probability"] == pytest.approx(alternatives[first["token"]], abs=1e-5)
        maps = shown.find()
        kept = [own for own in maps if own.measure == "weight"]
        assert [read["name"] for read in found["reads"]] == [own.name for own in kept]
        for read, own in zip(found["reads"], kept, strict=True):
            axes = [found["axes"][read[side]]["labels"] for side in ("queries", "keys")]
            assert axes == [[*shown.queries(own).labels], [*shown.keys(own).labels]]
            assert (read["kind"], read["layer"], read["heads"]) == (
                own.kind,
                own.layer,
                [*own.heads],
            )
            entropy = torch.special.entr(own.weights.double().clamp(min=0)).sum(-1).mean(-1)
            assert read["summaries"]["entropy"] == pytest.approx(entropy.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    ("kind", "normalize"),
    [
        ("char", "nfkc"),
        ("word", "none"),
        ("bpe", "nfkc"),
        pytest.param("char", "none", marks=pytest.mark.slow),
        pytest.param("word", "nfkc", marks=pytest.mark.slow),
        pytest.param("bpe", "none", marks=pytest.mark.slow),
    ],
)
def test_tokens_are_those_of_the_tokenizer(kind, normalize, load_run, open_page):
    texts = [text for text in odd_texts(160) if text.strip()]
    config = TokenizerConfig(
        kind=kind, vocab_size=400, normalize=normalize, lowercase=normalize == "nfkc"
    )
    tokenizer = TrainedTokenizer.train(texts[::2], config)
    trained = changed(load_run("dates"), {"layers": 1}, tokenizer)
    page = open_page(trained)
    labels = "texts => texts.map(text => live.run(text).sample?.axes.source.labels ?? [])"
    expected = []
    for text in texts:
        tokens = tokenizer.tokens(text.strip(), tokenizer.source_ends)
        expected.append(tokens if len(tokens) > 1 else [])
    for text, found, own in zip(texts, page.evaluate(labels, texts), expected, strict=True):
        assert found == own, text


@pytest.mark.parametrize("kind", ["char", "word", "bpe"])
def test_texts_of_a_language_model(kind, load_run, open_page):
    """White space is kept; the continuation is what `decode` adds to the text."""
    texts = ["a b", " a  b\n", "\n\n b\ta ", "bb a.  b, a", "</s> a"]
    config = TokenizerConfig(kind=kind, vocab_size=30)
    trained = load_run("language")
    trained.recipe.tokenizer = TrainedTokenizer.train(texts, config, keeps_space=True)
    trained = changed(trained, {"layers": 1})
    page, tokenizer = open_page(trained, "a b"), trained.recipe.tokenizer
    for text in texts:
        found, ids = run_text(page, text, topK=20, seed=3), tokenizer.encode(text)
        assert found["tokens"][: len(ids) - 1] == ids[1:]
        everything = tokenizer.decode([ids[0], *found["tokens"]])
        assert found["output"] == everything[len(tokenizer.decode(ids)) :]
    config = trained.recipe.config
    data = replace(config.data, train=("documents.jsonl",))  # whose texts end with EOS
    trained.recipe.config = replace(config, data=data)
    page, ended = open_page(trained, "a b"), 0
    for seed in range(8):
        tokens = run_text(page, "a b", topK=30, seed=seed, length=30)["tokens"]
        assert EOS not in tokens[:-1]
        ended += tokens[-1] == EOS
    assert ended > 0


def test_output_and_attention_follow_the_text(load_run, open_page):
    page = open_page(load_run("dates"), "3 maart")
    before = page.locator(".live-output").inner_text()
    field = page.locator("textarea")
    field.press("End")
    durations = []
    for key in " 2019":
        field.press(key)
        page.wait_for_timeout(250)
        entries = "performance.getEntriesByName('first row').map(entry => entry.duration)"
        durations.append(page.evaluate(entries)[-1])
    assert sorted(durations)[2] < 150
    expected = run_text(page, "3 maart 2019")
    assert page.locator(".live-output").inner_text() == expected["output"] != before
    assert page.title().startswith("3 maart 2019 -> ")
    field.fill("")
    page.wait_for_selector(".is-stale")
    assert page.locator(".live-output").inner_text() == ""
    field.fill("1 " * 200)
    page.get_by_text("the limit is").wait_for()
    field.fill("3 maart")
    page.wait_for_selector("#app:not(.is-stale)")
    assert page.locator(".live-output").inner_text() == before
    # Keys of the page are text here.
    field.press("v")
    assert page.evaluate("regard.shown().view") == "alignment"


def test_a_continuation_follows_the_text(load_run, open_page):
    """What was read before is used again; the context of the model is a limit."""
    page = open_page(load_run("language"), "")
    field, output = page.locator("textarea"), page.locator(".live-output")
    field.press_sequentially("3 maart 2019", delay=30)
    field.press("Backspace")
    field.press("8")
    page.wait_for_timeout(500)
    expected = run_text(page, "3 maart 2018")
    assert len(expected["tokens"]) == 11 + 20
    assert output.inner_text() == expected["output"].strip("\n")
    assert (
        run_text(page, "a" * 47)["tokens"][46:] == run_text(page, "a" * 47, length=2)["tokens"][46:]
    )
    field.fill("a" * 49)
    page.get_by_text("the context of the model is 48").wait_for()
    drawn = [run_text(page, "3 m", topK=5, seed=seed)["output"] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_phone_shows_the_whole_width(load_run, open_page):
    options = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
    page = open_page(load_run("dates"), **options)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.locator(".host canvas").first.bounding_box()["y"] < 500


def test_what_the_page_does_not_compute_is_refused(load_run, monkeypatch):
    trained = load_run("dates")
    with pytest.raises(
        UserError, match=r"the page cannot run this model: its .* is a Cosine, .*onnx"
    ):
        page_text(changed(trained, {"score": "cosine"}))
    message = r"its gate is one that the page does not compute \(AttentionForm\); choose"
    with pytest.raises(UserError, match=message):
        page_text(changed(trained, {"gate": "head"}))
    fields = exchange_page._KNOWN[forms.BlockForm].replace("window", "")
    monkeypatch.setitem(exchange_page._KNOWN, forms.BlockForm, fields)
    page_text(trained)
    with pytest.raises(UserError, match=r"cannot run this model: its window is 3 \(BlockForm\)"):
        page_text(changed(trained, {"window": 3}))
    trained.recipe.source_tokenizer = SimpleNamespace(
        config=SimpleNamespace(kind="pretrained"), source_ends=Ends()
    )
    with pytest.raises(UserError, match="no tokenizer of the kind pretrained"):
        page_text(trained)
    other = SimpleNamespace(recipe=None, run=SimpleNamespace(recipe="tags"))
    with pytest.raises(UserError, match="no form for runs of tags"):
        page_text(other)


def test_embeddings_of_another_size_are_multiplied_by_their_map():
    config = LanguageModelConfig(core=TransformerConfig(layers=1, width=8), embedding_dim=5)
    form = lower(build_language_model(config, vocab=7).eval())
    packed = Packed(4)
    stored = packed.form(form.writer.inputs)["weight"]
    int8, float32 = packed.chunks().values()
    rows = int8[stored["int8"] :].reshape(7, 8) * float32[stored["scales"] :, None]
    error = np.abs(rows - form.writer.inputs.matrix.numpy()).max(1)
    assert (error <= 0.51 * float32).all()


def test_numbers_of_the_test_of_the_viewer_are_those_of_the_export():
    """`python -m tests.exchange.live_models` writes them."""
    saved, own = json.loads(live_models.FILE.read_text()), live_models.content()
    assert saved.keys() == own.keys()
    for name, model in own.items():
        assert saved[name]["form"] == json.loads(json.dumps(model["form"]))
        np.testing.assert_allclose(saved[name]["logits"], model["logits"], atol=1e-5)
