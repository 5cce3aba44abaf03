"""Exported graphs give the outputs of the model, by ONNX Runtime and as programs of torch.export.

Run by tests/contracts/test_transforms.py in a process without the shape checks of other tests.
"""

import itertools
import json
import mimetypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from playwright.sync_api import Route, sync_playwright
from torch import Tensor, nn

import regard
from docs.gallery.browser import launch_browser
from regard.attention.masks import Padded
from regard.cli.main import main
from regard.data.batches import pad
from regard.errors import UserError
from regard.exchange import graphs
from regard.exchange import onnx as onnx_format
from regard.layers.positions.sinusoidal import Sinusoidal
from regard.models.readers.points import farthest_points
from regard.recipes.registry import RECIPES
from tests.helpers import save_weights
from tests.recipes.tiny import quick_options
from tests.recipes.untrained import untrained

LETTERS = [" ".join(letters) for letters in itertools.combinations("abcdefghij", 3)]
PAIRS = [f"{number}.{kind}" for number in range(2) for kind in ("key", "value")]
CONTEXT = "--context", "8", "--model.core.layers", "2"
CORE = (
    "--model.core.width 64 --model.core.heads 2 --model.core.layers 1 --model.core.decoder-layers 1"
)


class Exported:
    """Graphs of a run in a folder, run by ONNX Runtime."""

    def __init__(self, folder: Path):
        self.content = json.loads((folder / "graphs.json").read_text(encoding="utf-8"))
        self.files = {graph["name"]: folder / graph["file"] for graph in self.content["graphs"]}
        self.sessions = {
            name: onnxruntime.InferenceSession(path) for name, path in self.files.items()
        }

    def run(self, name: str, **inputs: Tensor | np.ndarray) -> dict[str, Tensor]:
        session = self.sessions[name]
        arrays = {own.name: np.asarray(inputs[own.name]) for own in session.get_inputs()}
        names = [own.name for own in session.get_outputs()]
        outputs = map(torch.from_numpy, session.run(None, arrays))
        return dict(zip(names, outputs, strict=True))

    def empty(self, name: str, rows: int) -> dict[str, Tensor]:
        """Return past keys and values of length 0, and other states of zeros."""
        past = {}
        for own in self.sessions[name].get_inputs():
            if own.name.startswith("past") and ".encoder." not in own.name:
                sizes = [0 if isinstance(size, str) else size for size in own.shape[1:]]
                past[own.name] = torch.zeros(rows, *sizes)
        return past


def to_past(outputs: dict[str, Tensor]) -> dict[str, Tensor]:
    pairs = [(name, value) for name, value in outputs.items() if name.startswith("present.")]
    return {name.replace("present.", "past_key_values."): value for name, value in pairs}


def drop_core(words: list[str]) -> list[str]:
    """Return options without those of the core."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return [word for pair in pairs if not pair[0].startswith("--model.core") for word in pair]


def as_run(recipe: Any, model: Any, folder: Path) -> Any:
    run = SimpleNamespace(recipe=recipe.run.recipe)
    return SimpleNamespace(model=model, recipe=recipe, folder=folder, run=run)


def export(
    name: str, folder: Path, *options: str, change: Callable[[Any], None] = lambda _: None
) -> tuple[Any, Exported]:
    """Return an untrained model, and its export as ONNX."""
    (folder / "run").mkdir()
    (folder / "out").mkdir()
    recipe, model = untrained(name, folder / "run", *options)
    change(model)
    onnx_format.export(as_run(recipe, model, folder / "run"), folder / "out", None, print)
    return model, Exported(folder / "out")


def close(actual: Tensor, expected: Tensor) -> None:
    bound = 1e-4 * float(expected.abs().max())
    torch.testing.assert_close(actual, expected, rtol=0, atol=bound)


SMALL = "--model.core.width 8 --model.core.hidden 8"
RECURRENT = f"--model.core recurrent {SMALL}"
CHAIN = f"--model.core self-attentive {SMALL} --model.core.self-attention-hidden 6"
CASES = [
    (onnx_format, "reviews", f"{RECURRENT} --naive-bayes words"),
    (graphs, "translate", RECURRENT),
    (graphs, "language", CHAIN),
]
OTHER = [name for name in RECIPES if name not in ("dates", "reviews")]
SLOW = [*((onnx_format, name, "") for name in OTHER), (graphs, "points", "")]
SLOW += [(graphs, "caption", ""), (graphs, "reviews", f"{RECURRENT} --naive-bayes none")]
SLOW += [(onnx_format, "caption", RECURRENT), (onnx_format, "tags", CHAIN)]
SLOW += [(graphs, "dates", CHAIN), (graphs, "language", RECURRENT)]
SLOW += [(graphs, "images", "--model.core.kernel flex --model.core.width 8 --model.core.heads 2")]
SLOW += [(onnx_format, "dates", f"{RECURRENT} --model.core.kernel additive")]
SLOW += [(graphs, "draw", f"{RECURRENT} --position-embeddings sequence")]


@pytest.mark.parametrize(
    ("module", "name", "options"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_graphs_of_every_recipe_are_those_of_the_model(
    tmp_path: Path, module: Any, name: str, options: str
):
    # `export` compares them, at other sizes than those of the example.
    words = quick_options(name)
    if options:
        words = [*drop_core(words), *options.split()]
    recipe, model = untrained(name, tmp_path, *words)
    out = tmp_path / "out"
    out.mkdir()
    module.export(as_run(recipe, model, tmp_path), out, None, print)
    content = json.loads((out / "graphs.json").read_text(encoding="utf-8"))
    assert [*map(sorted, (graph.keys() for graph in content["graphs"]))]
    files = {"weights.bin"} & {path.name for path in out.iterdir()}
    files |= {graph["file"] for graph in content["graphs"]}
    assert files | {"graphs.json", "artifacts"} == {path.name for path in out.iterdir()}


@pytest.mark.parametrize(
    "options",
    [
        None,
        pytest.param("", marks=pytest.mark.slow),
        pytest.param(
            f"{CORE} --model.tie target --model.core.positions learned --model.core.window 3 "
            "--model.core.pattern S --model.core.positions.max-length 70",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            f"{CORE} --model.tie target --model.core.choice topk --model.core.score additive "
            "--model.core.positions relative --model.core.norm-order post",
            marks=pytest.mark.slow,
        ),
        pytest.param(f"{RECURRENT} --model.core.layers 2", marks=pytest.mark.slow),
        pytest.param(CHAIN, marks=pytest.mark.slow),
        pytest.param(
            f"{RECURRENT} --model.core.cell lstm --model.core.attention none "
            "--model.core.directions 1",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            f"{RECURRENT} --model.core.cell rnn --model.core.attention location "
            "--model.core.value-map 5",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            f"{CHAIN} --model.core.cell gru --model.core.layers 2 --model.core.choice topk "
            "--model.core.self-attention-recency learned",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_fifty_steps_of_a_decoder_give_the_logits_of_the_model(
    tmp_path: Path, options: str | None, request: pytest.FixtureRequest
):
    """options: of an export of its own; None: that of the next tests."""
    if options is None:
        trained, folder, *_ = request.getfixturevalue("text_to_text")
        model, exported = trained.model, Exported(folder)
    else:
        model, exported = export("dates", tmp_path, *options.split())
    names = {graph["name"]: graph for graph in exported.content["graphs"]}
    inputs = [own["name"] for own in names["decoder"]["inputs"]]
    if options is None or not options.startswith("--model.core "):
        expected = ["input_ids", "encoder_attention_mask", "past_key_values.0.decoder.key"]
        assert inputs[:3] == expected
    source_vocab, vocab = (
        table.num_embeddings for table in (model.reader.table, model.writer.inputs.table)
    )
    for rows, length in ((1, 1), (2, 60), (33, 5)):
        ids = torch.randint(source_vocab, (rows, length))
        lengths = torch.randint(1, length + 1, (rows,))
        mask = (torch.arange(length) < lengths[:, None]).long()
        encoded = exported.run("encoder", input_ids=ids, attention_mask=mask)
        past = exported.empty("decoder", rows) | to_past(encoded)
        with torch.no_grad():
            state = model.start(Padded(ids, lengths))
            close(encoded["last_hidden_state"], model.encoder(Padded(ids, lengths)).items)
            for _ in range(50):
                tokens = torch.randint(vocab, (rows,))
                logits, state = model.step(tokens, state)
                given = {"input_ids": tokens[:, None], "encoder_attention_mask": mask}
                assert past.keys() | given.keys() >= {*inputs}
                outputs = exported.run("decoder", **given, **past)
                past |= to_past(outputs)
                close(outputs["logits"][:, 0], logits)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param("--model.core.positions learned", marks=pytest.mark.slow),
        "--model.core.positions rotary --model.core.window 4 --model.core.pattern SL "
        "--model.core.positions.window-base 50",
    ],
)
def test_language_model_reads_prompts_of_unequal_lengths(tmp_path: Path, options: str):
    data = quick_options("language")[:6]
    model, exported = export("language", tmp_path, *data, *options.split(), *CONTEXT)
    names = [own.name for own in exported.sessions["model"].get_inputs()]
    assert names[:2] == ["input_ids", "attention_mask"]
    assert names[2:] == [f"past_key_values.{pair}" for pair in PAIRS]
    given = torch.randint(model.writer.inputs.table.num_embeddings, (2, 13))
    mask = (torch.arange(13) >= torch.tensor([[0], [4]])).long()
    outputs = exported.run(
        "model", input_ids=given[:, :9], attention_mask=mask[:, :9], **exported.empty("model", 2)
    )
    logits = [outputs["logits"]]
    for end in range(10, 14):
        outputs = exported.run(
            "model",
            input_ids=given[:, end - 1 : end],
            attention_mask=mask[:, :end],
            **to_past(outputs),
        )
        logits.append(outputs["logits"])
    actual = torch.cat(logits, 1)
    for row, begin in enumerate((0, 4)):
        target = torch.cat((given[row, begin:], given[row, :1]))[None]
        with torch.no_grad():
            expected = model(None, Padded(target, torch.tensor([target.shape[1]])))
        close(actual[row, begin:], expected[0])


@pytest.mark.slow
@pytest.mark.parametrize("options", [CHAIN, RECURRENT])
def test_recurrent_language_model_begins_with_zeros(tmp_path: Path, options: str):
    words = [*drop_core(quick_options("language")), *options.split()]
    model, exported = export("language", tmp_path, *words)
    past, state = exported.empty("model", 3), model.start(rows=3)
    with torch.no_grad():
        for _ in range(20):
            tokens = torch.randint(model.writer.inputs.table.num_embeddings, (3,))
            logits, state = model.step(tokens, state)
            outputs = exported.run("model", input_ids=tokens[:, None], **past)
            past = to_past(outputs)
            close(outputs["logits"][:, 0], logits)


def disturb(model: Any) -> None:
    """Add noise to the parameters, so that outputs depend on the source."""
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
            if ".cross." in name:
                parameter.mul_(4)


@pytest.fixture(scope="module")
def text_to_text(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Any, Path, list[str], list[str]]:
    """Return a run, the folder of its export as ONNX, and inputs with their outputs.

    With --slow it reads dates, is trained for half a minute, and has 1,000 inputs.
    """
    folder = tmp_path_factory.mktemp("run")
    run_folder, out = folder / "run", folder / "out"
    if is_slow := request.config.getoption("--slow"):
        given = "dates --data.locales nl fi el ja --data.epoch-size 20000 --data.test-size 1000"
        words = [*given.split(), "--train.steps", "300"]
    else:
        pairs = folder / "pairs.tsv"
        pairs.write_text("".join(f"{text}\t{text}\n" for text in LETTERS))
        given = f"{CORE} --model.core.positions rotary --model.core.key-heads 1 --decode.beam 1"
        given += f" --data.train {pairs} --data.val {pairs} --data.test {pairs}"
        words = ["translate", *drop_core(quick_options("translate")), *given.split()]
    assert main(["train", *words, "--run", str(run_folder)]) == 0
    run = regard.load(run_folder, engine="torch", notify=lambda _: None)
    if is_slow:
        texts = [run.test_input(number) for number in range(1000)]
    else:
        texts = LETTERS
        disturb(run.model)
        save_weights(run_folder / "model.safetensors", run.model)
    options = ["export", str(run_folder), "--out", str(out), "--to"]
    assert main([*options, "onnx"]) == 0
    assert main([*options, "torch"]) == 2  # the folder exists
    expected = run.predict(texts)
    assert len(set(expected)) > 20
    return run, out, texts, expected


@pytest.mark.timeout(1800)
def test_greedy_outputs_of_a_run_are_those_of_predict(text_to_text: Any):
    run, out, texts, expected = text_to_text
    exported, recipe = Exported(out), run.recipe
    start, eos, padding = recipe.search_ids().values()
    sources = [recipe.preprocess(text, 1)[0].ids for text in texts]
    given = pad(sources, recipe.source_tokenizer.source_ends)
    mask = (torch.arange(given.items.shape[1]) < given.lengths[:, None]).long()
    past = to_past(exported.run("encoder", input_ids=given.items, attention_mask=mask))
    past |= exported.empty("decoder", len(texts))
    tokens = torch.full((len(texts), 1), start)
    for _ in range(recipe.search_config().limit(int(given.lengths.max()))):
        own = {"input_ids": tokens[:, -1:], "encoder_attention_mask": mask}
        outputs = exported.run("decoder", **own, **past)
        past |= to_past(outputs)
        outputs["logits"][..., [start, padding]] = -torch.inf
        tokens = torch.cat((tokens, outputs["logits"].argmax(-1)), 1)
    for row, wanted in zip(tokens[:, 1:].tolist(), expected, strict=True):
        assert recipe.tokenizer.decode(row[: [*row, eos].index(eos)]) == wanted


IMPORTED = [(onnx_format, case) for case in ("gpt2", "llama3", "marian", "t5", "bert")]


@pytest.mark.slow
@pytest.mark.parametrize(("module", "case"), [*IMPORTED, (graphs, "gpt2"), (graphs, "marian")])
def test_imported_runs_have_graphs(tmp_path: Path, module: Any, case: str):
    # `export` compares them with the model.
    from tests.exchange.small import (  # noqa: PLC0415  # loads transformers, for seconds
        create_model,
        import_model,
        save_model,
    )

    run = import_model(save_model(create_model(case, 1), tmp_path / "theirs"), tmp_path / "run")
    (tmp_path / "out").mkdir()
    module.export(run, tmp_path / "out", None, print)
    special = json.loads((tmp_path / "out" / "graphs.json").read_text())["special_tokens"]
    assert (special["pad"], special["eos"]) == (0, 3)


WEB = "onnxruntime-web@1.30.0"
GREEDY = """
import * as ort from "./ort.wasm.bundle.min.mjs";
ort.env.wasm.numThreads = 1;
const int64 = (values) =>
  new ort.Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
const open = (name) => ort.InferenceSession.create(name);
const [encoder, decoder, { graphs, special_tokens: special }] = await Promise.all([
  open("encoder.onnx"), open("decoder.onnx"), (await fetch("graphs.json")).json(),
]);
const inputs = graphs.find((graph) => graph.name === "decoder").inputs;

window.predict = async (ids, limit) => {
  const mask = int64(ids.map(() => 1));
  const past = {};
  const keep = (outputs) => {
    for (const [name, value] of Object.entries(outputs))
      if (name.startsWith("present")) past[name.replace("present", "past_key_values")] = value;
    return outputs;
  };
  for (const { name, shape } of inputs.filter((input) => input.name.includes(".decoder.")))
    past[name] = new ort.Tensor("float32", [], [1, shape[1], 0, shape[3]]);
  keep(await encoder.run({ input_ids: int64(ids), attention_mask: mask }));
  const tokens = [special.start];
  while (tokens.length <= limit && tokens.at(-1) !== special.eos) {
    const last = { input_ids: int64(tokens.slice(-1)), encoder_attention_mask: mask };
    const logits = keep(await decoder.run({ ...last, ...past })).logits.data;
    logits[special.start] = logits[special.pad] = -Infinity;
    tokens.push(logits.indexOf(Math.max(...logits)));
  }
  return tokens.slice(1);
};
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_greedy_outputs_in_a_browser_are_those_of_predict(text_to_text: Any, tmp_path: Path):
    """`onnxruntime-web` in Chromium, without a request to another host."""
    run, out, texts, expected = text_to_text
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm")
    install = [npm, "install", "--prefix", str(tmp_path), "--ignore-scripts", WEB]
    if subprocess.run(install, capture_output=True, check=False).returncode:
        pytest.skip(f"npm cannot install {WEB}")
    requests = []

    def answer(route: Route) -> None:
        name = route.request.url.rpartition("/")[2]
        requests.append(route.request.url)
        if name in ("", "greedy.mjs"):
            page = "<!doctype html><script type=module src=greedy.mjs></script>"
            kind = "text/javascript" if name else "text/html"
            return route.fulfill(body=GREEDY if name else page, content_type=kind)
        path = out / name
        if not path.exists():
            path = tmp_path / "node_modules" / "onnxruntime-web" / "dist" / name
        return route.fulfill(path=path, content_type=mimetypes.guess_type(name)[0])

    recipe = run.recipe
    eos = recipe.search_ids()["eos"]
    assert not (out / "weights.bin").exists()
    with sync_playwright() as playwright:
        browser = launch_browser(playwright)
        page = browser.new_page()
        page.route("**/*", answer)
        page.goto("http://graphs.test/")
        page.wait_for_function("!!window.predict")
        for text, wanted in [*zip(texts, expected, strict=True)][::10][:20]:
            source = recipe.preprocess(text, 1)[0].ids
            ids = pad([source], recipe.source_tokenizer.source_ends).items[0].tolist()
            limit = recipe.search_config().limit(len(ids))
            row = page.evaluate("([ids, limit]) => predict(ids, limit)", [ids, limit])
            assert recipe.tokenizer.decode(row[: [*row, eos].index(eos)]) == wanted
        browser.close()
    assert all(url.startswith("http://graphs.test/") for url in requests)
    assert any(url.endswith(".wasm") for url in requests)


def test_files_hold_each_weight_once_and_nothing_of_the_machine(text_to_text: Any):
    run, out, *_ = text_to_text
    exported, model = Exported(out), run.model
    files = [*exported.files.values(), *out.glob("weights.bin")]
    assert (out / "weights.bin").exists() == (model.reader.table is model.writer.inputs.table)
    size = sum(parameter.numel() * 4 for parameter in model.parameters())
    assert size < sum(path.stat().st_size for path in files) < size + 200_000
    for path in exported.files.values():
        assert onnx.load(path).opset_import[0].version == 20
        assert b".py" not in path.read_bytes()


class Sampling(nn.Module):
    def forward(self, points: Tensor, absent: Tensor) -> Tensor:
        return farthest_points(points, absent, 6)


def test_sampling_of_equal_points_in_a_graph_is_that_of_the_reader():
    points = torch.randint(2, (4, 9, 3)).float()
    absent = torch.arange(9) >= torch.tensor([9, 7, 4, 1])[:, None]
    program = torch.export.export(Sampling(), (points, absent)).module()
    assert torch.equal(program(points, absent), farthest_points(points, absent, 6))


def test_export_that_differs_from_the_model_is_refused(tmp_path: Path, monkeypatch):
    recipe, model = untrained("tags", tmp_path)
    original = graphs.source_of

    def drop_padding(given: dict[str, Tensor]) -> Any:
        padded = original(given)
        return (
            padded
            if torch.compiler.is_exporting()
            else Padded(padded.items, padded.lengths * 0 + 1)
        )

    monkeypatch.setattr(graphs, "source_of", drop_padding)
    with pytest.raises(UserError, match="probabilities of the exported file differs"):
        graphs.export(as_run(recipe, model, tmp_path), tmp_path, None, print)


def test_positions_of_a_recurrent_writer_and_missing_packages_are_refused(tmp_path, monkeypatch):
    words = [*drop_core(quick_options("language")), *RECURRENT.split()]
    recipe, model = untrained("language", tmp_path, *words)
    model.writer.positions = Sinusoidal(8)
    with pytest.raises(UserError, match="with positions of its outputs cannot be exported"):
        graphs.export(as_run(recipe, model, tmp_path), tmp_path, None, print)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'needs onnx: pip install -e "\.\[onnx\]"'):
        onnx_format.export(as_run(recipe, model, tmp_path), tmp_path, None, print)
