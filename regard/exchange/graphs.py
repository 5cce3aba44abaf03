"""Graphs of a trained model: functions of tensors by name, for torch.export and ONNX.

    encoder    input_ids, attention_mask -> last_hidden_state, present.N.encoder.{key,value}
    decoder    input_ids, encoder_attention_mask, past_key_values.N.{decoder,encoder}.{key,value}
               -> logits, present.N.decoder.{key,value}
    model      input_ids, attention_mask, past_key_values.N.{key,value}
               -> logits, present.N.{key,value}                          of a language model
    model      inputs of the reader -> prediction of the writer          of all other models

Names and shapes of text models are those of Optimum. One graph decodes the first tokens and all
later ones: past keys and values may have length 0. The encoder computes those of the source, once.
Sources are padded on the right, the inputs of a language model on the left.
"""

import copy
import json
import re
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from regard import __version__
from regard.attention.masks import Mask, Padded, dense, intersect, padding
from regard.attention.memory import Memory
from regard.errors import UserError
from regard.layers.positions.base import PositionalEncoding
from regard.models.cores.self_attentive import SelfAttentive
from regard.models.cores.transformer import Transformer
from regard.models.model import Model
from regard.models.readers.images import ImageReader
from regard.models.readers.points import PointReader
from regard.models.readers.sound import FrameReader
from regard.models.readers.tokens import TokenReader
from regard.models.writers.numbers import NumberWriter
from regard.models.writers.sets import SetWriter
from regard.models.writers.tokens import TokenWriter
from regard.models.writers.tracks import SceneTrackWriter, TrackWriter
from regard.recipes.base.run import ARTIFACTS
from regard.recipes.reviews.naive_bayes import NaiveBayesWriter, RatioTexts
from regard.system.writing import write_atomically

Run = Callable[..., Sequence[Tensor]]  # from the inputs of a graph, in order, to its outputs
_BATCH, _SOURCE, _ITEMS = "batch_size", "encoder_sequence_length", "items"
_NEW = "sequence_length", "decoder_sequence_length"
_PAST = "past_sequence_length", "past_decoder_sequence_length"
EXAMPLE = {_BATCH: 3, _SOURCE: 7, _ITEMS: 41} | dict.fromkeys(_NEW, 2) | dict.fromkeys(_PAST, 4)
"""Sizes of the example of which a graph is exported: at least 2, those of a graph all different."""


class GraphInput(NamedTuple):
    """Input of a graph: its axes, each a size or the name of one, and its values."""

    axes: tuple[int | str, ...]
    values: Literal["numbers", "ids", "mask", "past mask", "lengths"] = "numbers"
    high: int = 0  # number of ids

    def example(self, sizes: Mapping[str, int]) -> Tensor:
        """Return random values; the padding of a mask is at its end, that of a past mask first."""
        sums = [str(axis).split(" + ") for axis in self.axes]
        shape = [sum(sizes[part] if part in sizes else int(part) for part in own) for own in sums]
        if self.values == "numbers":
            return torch.rand(shape)
        if self.values == "ids":
            return torch.randint(self.high, shape)
        most = sizes[_ITEMS] if self.values == "lengths" else shape[1]
        lengths = torch.randint(1, most + 1, shape[:1]).index_fill(0, torch.tensor(0), most)
        if self.values == "lengths":
            return lengths
        mask = (torch.arange(most) < lengths[:, None]).long()
        return mask.flip(1) if self.values == "past mask" else mask


@dataclass(frozen=True)
class Graph:
    """A function of tensors, and the names of its inputs and outputs."""

    name: str
    module: Any
    inputs: Mapping[str, GraphInput]
    outputs: Sequence[str]

    def example(self, sizes: Mapping[str, int]) -> tuple[Tensor, ...]:
        """Return random inputs; sizes: of all axes by name, such as EXAMPLE."""
        return tuple(given.example(sizes) for given in self.inputs.values())

    @cached_property
    def program(self) -> ExportedProgram:
        """The graph as a program for all sizes of its named axes."""
        shapes = []
        for given in self.inputs.values():
            named = [i for i, axis in enumerate(given.axes) if isinstance(axis, str)]
            shapes.append(dict.fromkeys(named, torch.export.Dim.DYNAMIC))
        example = self.example(EXAMPLE)
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            return torch.export.export(self.module, example, dynamic_shapes=(tuple(shapes),))

    def describe(self) -> dict[str, Any]:
        """Return the names, types and axes of inputs and outputs as JSON."""
        nodes = self.program.graph.find_nodes(op="placeholder")[-len(self.inputs) :]
        results: Any = self.program.graph.output_node().args[0]
        inputs, outputs, axes = [], [], dict[str, str]()
        for node, (name, given) in zip(nodes, self.inputs.items(), strict=True):
            kind = "float32" if given.values == "numbers" else "int64"
            inputs.append({"name": name, "type": kind, "shape": [*given.axes]})
            axes |= zip(map(str, node.meta["val"].shape), map(str, given.axes), strict=True)
        rename = partial(re.sub, r"s\d+", lambda found: axes[found[0]])
        for name, node in zip(self.outputs, results, strict=True):
            sizes = node.meta["val"].shape
            shape = [size if isinstance(size, int) else rename(str(size)) for size in sizes]
            outputs.append({"name": name, "type": "float32", "shape": shape})
        return {"name": self.name, "inputs": inputs, "outputs": outputs}


def graphs_of(model: Any) -> list[Graph]:
    """Return the graphs of a model. Raises: UserError if it has none."""
    if not isinstance(model, Model):
        name = "pixel_values" if len(model.shape) == 3 else "vectors"
        inputs = {name: GraphInput((_BATCH, *model.shape))}
        return [Graph("model", _AnswerGraph(model, [*inputs]), inputs, ["reconstructions"])]
    core, writes_tokens = model.core, isinstance(model.writer, TokenWriter)
    if isinstance(core, SelfAttentive) or (writes_tokens and not isinstance(core, Transformer)):
        raise UserError(f"{type(core).__name__} cannot be exported: its graph is unrolled")
    if not writes_tokens:
        return [_answer(model)]
    if model.reader is None:
        return [_decoder(model, "model", _NEW[0], _PAST[0])]
    inputs, outputs = _inputs_of(model.reader, _SOURCE), ["last_hidden_state"]
    for number in range(core.num_layers("decoder")):
        outputs += [f"present.{number}.encoder.key", f"present.{number}.encoder.value"]
    encoder = Graph("encoder", _EncoderGraph(model, [*inputs]), inputs, outputs)
    return [encoder, _decoder(model, "decoder", _NEW[1], _PAST[1])]


def _inputs_of(reader: Any, length: str) -> dict[str, GraphInput]:
    if isinstance(reader, TokenReader):
        ids = GraphInput((_BATCH, length), "ids", reader.table.num_embeddings)
        return {"input_ids": ids, "attention_mask": GraphInput((_BATCH, length), "mask")}
    axes = [_ITEMS if isinstance(size, str) else size for size in reader.shapes()[0][1:]]
    names = {ImageReader: "pixel_values", FrameReader: "samples", PointReader: "points"}
    inputs = {names.get(type(reader), "tracks"): GraphInput((_BATCH, *axes))}
    return inputs | {"lengths": GraphInput((_BATCH,), "lengths")} if _ITEMS in axes else inputs


def _answer(model: Any) -> Graph:
    inputs, outputs, writer = _inputs_of(model.reader, _NEW[0]), ["probabilities"], model.writer
    if isinstance(writer, NaiveBayesWriter):
        sizes = len(writer.kinds), writer.output.out_features
        inputs["ratios"] = GraphInput((_BATCH, _NEW[0], *sizes))
    elif isinstance(writer, NumberWriter):
        outputs = ["numbers"]
    elif isinstance(writer, SetWriter):
        outputs = ["logits", "regions"]
    elif isinstance(writer, TrackWriter | SceneTrackWriter):
        outputs = ["paths", "probabilities"][: 1 if writer.head.paths == 1 else 2]
    return Graph("model", _AnswerGraph(model, [*inputs]), inputs, outputs)


def _decoder(model: Any, name: str, new: str, before: str) -> Graph:
    core, outputs, is_text = model.core, ["logits"], isinstance(model.reader, TokenReader)
    vocab = model.writer.inputs.table.num_embeddings
    inputs = {"input_ids": GraphInput((_BATCH, new), "ids", vocab)}
    if model.reader is None:
        inputs["attention_mask"] = GraphInput((_BATCH, f"{before} + {new}"), "past mask")
    elif is_text:
        inputs["encoder_attention_mask"] = GraphInput((_BATCH, _SOURCE), "mask")
    source = _SOURCE if model.reader is None or is_text else model.reader.shapes()[1][1]
    own, cross = (".decoder", ".encoder") if core.encodes else ("", "")
    for number, block in enumerate(core.decoder):
        parts = [(own, block.attention, before), (cross, block.cross, source)]
        for part, attention, length in parts if core.encodes else parts[:1]:
            memory = attention.memory(torch.zeros(1, 1, core.width))
            for kind, pairs in (("key", memory.keys), ("value", memory.values)):
                axes = _BATCH, pairs.shape[1], length, pairs.shape[3]
                inputs[f"past_key_values.{number}{part}.{kind}"] = GraphInput(axes)
                outputs += [] if part == ".encoder" else [f"present.{number}{part}.{kind}"]
    return Graph(name, _DecoderGraph(model, [*inputs]), inputs, outputs)


class _AnswerGraph(nn.Module):
    """Prediction of a model from the inputs of its reader."""

    def __init__(self, model: Any, names: Sequence[str]):
        super().__init__()
        self.model, self.names = model, tuple(names)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        answer = self.model(self.source(inputs))
        return (answer,) if isinstance(answer, Tensor) else tuple(answer)

    def source(self, inputs: Sequence[Tensor]) -> Any:
        given = dict(zip(self.names, inputs, strict=True))
        mask, lengths = given.get("attention_mask"), given.get("lengths")
        lengths = lengths if mask is None else mask.sum(1)
        source: Any = inputs[0] if lengths is None else Padded(inputs[0], lengths)
        return RatioTexts(source, given["ratios"]) if "ratios" in given else source


class _EncoderGraph(_AnswerGraph):
    """Encoded source of a model, with its keys and values for each block of the decoder."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        encoded, pairs = self.model.encoder(self.source(inputs)), list[Tensor]()
        for block in self.model.core.decoder:
            memory = block.read_source(encoded.items, None)
            pairs += memory.keys, memory.values
        return (encoded.items, *pairs)


class _DecoderGraph(_AnswerGraph):
    """Logits of next tokens after past keys and values, and these with the new ones."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(self.names, inputs, strict=True))
        past = iter([tensor for name, tensor in given.items() if name.startswith("past")])
        core, present, mask = self.model.core, list[Tensor](), given.get("encoder_attention_mask")
        source_mask, source = None if mask is None else padding(mask.sum(1)), None
        items, padding_mask = self._embed(given)
        for block in core.decoder:
            old = Memory(next(past), next(past), mapped_by=block.attention.read.score)
            if core.encodes:
                source = Memory(next(past), next(past), source_mask, block.cross.read.score)
            items, new = block.step(items, old, source, intersect(block.mask(), padding_mask))
            present += new.keys, new.values
        return (self.model.writer.answer(core.decoder_norm(items)), *present)

    def _embed(self, given: Mapping[str, Tensor]) -> tuple[Tensor, Mask | None]:
        """Return the decoder inputs, and the mask of the padding of a language model."""
        ids, core = given["input_ids"], self.model.core
        start = next(part for name, part in given.items() if name.startswith("past")).shape[2]
        items, positions = self.model.writer.embed(ids, start), core.target_positions
        if core.encodes or not positions.adds:
            items = positions(items, start)
        if core.encodes:
            return core.decoder_embedding_norm(items), None
        # As many columns as keys, by an index: torch.export does not compare sums of sizes.
        columns = torch.arange(start + ids.shape[1], device=ids.device)
        mask = given["attention_mask"].index_select(1, columns)
        if positions.adds:  # those of the tokens without the padding before them
            vectors = positions(items.new_zeros(1, columns.shape[0], items.shape[-1]))[0]
            items = items + vectors[(mask.cumsum(1) - 1).clamp(min=0)[:, start:]]
        return core.decoder_embedding_norm(items), dense(mask.bool().unsqueeze(1))


def export(trained: Any, folder: Path, options: Any, notify: Callable[[str], None]) -> None:
    """Write a run as programs, FOLDER/NAME.pt2, which `torch.export.load` reads."""

    def write(graphs: Sequence[Graph]) -> list[Run]:
        for graph in graphs:
            names = graph.program.graph_signature.inputs_to_parameters
            for node in graph.program.graph.find_nodes(op="placeholder"):
                if node.name in names and not node.users:  # of the other graph
                    graph.program.state_dict[names[node.name]] = nn.Parameter(torch.empty(0))
            torch.export.save(graph.program, folder / f"{graph.name}.pt2")
        return [torch.export.load(folder / f"{graph.name}.pt2").module() for graph in graphs]

    write_graphs(trained, folder, write, suffix=".pt2")


def write_graphs(
    trained: Any, folder: Path, write: Callable[[Sequence[Graph]], Sequence[Run]], *, suffix: str
) -> None:
    """Write the graphs of a run with graphs.json, their description, and the run's artifacts.

    write:  writes the file NAME + suffix of each graph, and returns functions that run these.
    Raises: UserError if the run has no graphs, or if a file differs from the model.
    """
    model = copy.deepcopy(trained.model).cpu()
    parts = [part for part in model.modules() if isinstance(part, PositionalEncoding)]
    limits = [part.max_length for part in parts if part.max_length is not None]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        graphs = graphs_of(model)
        check_graphs(model, graphs, write(graphs), min([64, *limits]))
    content: dict[str, Any] = {"regard": __version__, "recipe": trained.run.recipe}
    content["max_length"] = min(limits, default=None)
    content["graphs"] = [{"file": graph.name + suffix} | graph.describe() for graph in graphs]
    if hasattr(trained.recipe, "tokenizer"):
        content["special_tokens"] = msgspec.structs.asdict(trained.recipe.tokenizer.specials)
    write_atomically(folder / "graphs.json", json.dumps(content, indent=2) + "\n")
    shutil.copytree(trained.folder / ARTIFACTS, folder / ARTIFACTS)


def check_graphs(model: Any, graphs: Sequence[Graph], runs: Sequence[Run], longest: int) -> None:
    """Raise UserError unless functions that run the graphs give the outputs of the model."""
    smallest: dict[str, int] = dict.fromkeys(EXAMPLE, 1) | dict.fromkeys(_PAST, 0) | {_ITEMS: 2}
    largest = smallest | dict.fromkeys(_PAST, longest - 2)
    largest |= {_BATCH: 33, _SOURCE: longest, _ITEMS: 300}
    writes_tokens = isinstance(getattr(model, "writer", None), TokenWriter)
    largest[_NEW[0]] = 1 if writes_tokens else longest
    for graph, run in zip(graphs, runs, strict=True):
        for sizes in (smallest, EXAMPLE, largest):
            inputs = graph.example(sizes)
            for output in zip(graph.outputs, run(*inputs), graph.module(*inputs), strict=True):
                _check_output(*output)
    if writes_tokens:
        _check_text(model, graphs, runs)


def _check_text(model: Any, graphs: Sequence[Graph], runs: Sequence[Run]) -> None:
    """Compare the logits of two parts of a target, one after the other, with those of the model."""
    *encoders, decoder = graphs
    example = decoder.example(EXAMPLE | dict.fromkeys(_PAST, 0))
    given = dict(zip(decoder.inputs, example, strict=True))
    source, logits = None, []

    def keep(graph: Graph, outputs: Sequence[Tensor]) -> None:
        for name, output in zip(graph.outputs, outputs, strict=True):
            given[name.replace("present.", "past_key_values.")] = output

    for encoder in encoders:
        inputs = encoder.example(EXAMPLE)
        source, given["encoder_attention_mask"] = encoder.module.source(inputs), inputs[-1]
        keep(encoder, runs[0](*inputs))
    tokens = torch.randint(decoder.inputs["input_ids"].high, (EXAMPLE[_BATCH], 6))
    for begin, end in ((0, 3), (3, 5)):
        given["input_ids"] = tokens[:, begin:end]
        given["attention_mask"] = torch.ones_like(tokens[:, :end])
        keep(decoder, runs[-1](*(given[name] for name in decoder.inputs)))
        logits.append(given["logits"])
    target = Padded(tokens, torch.full((len(tokens),), tokens.shape[1]))
    _check_output("logits", torch.cat(logits, 1), model(source, target))


def _check_output(name: str, actual: Tensor, expected: Tensor) -> None:
    """Raise UserError unless an output is equal up to 1e-4 of the largest number."""
    bound = 1e-4 * float(expected.abs().max()) if expected.numel() else 0.0
    if not torch.allclose(actual, expected, rtol=0, atol=bound):
        raise UserError(f"{name} of the exported file differs by more than {bound:.1e}")
