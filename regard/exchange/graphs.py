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
A recurrent core decodes one token at a time, and has other tensors of a layer (`_map_state`).
"""

import copy
import json
import re
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn.functional import pad

from regard import __version__
from regard.attention.masks import FilledSlots, Mask, Padded, dense, intersect, padding
from regard.attention.memory import Memory, StaticMemory
from regard.errors import UserError
from regard.layers.positions.base import PositionalEncoding
from regard.layers.read import Read
from regard.layers.recurrent.self_attentive import Past
from regard.layers.written import WrittenAttention
from regard.models.cores.recurrent_decoder import RecurrentDecoderState
from regard.models.cores.transformer import Transformer, TransformerState
from regard.models.model import Model
from regard.models.readers.images import ImageReader
from regard.models.readers.points import PointReader
from regard.models.readers.sound import FrameReader
from regard.models.readers.tokens import TokenReader
from regard.models.writers.numbers import NumberWriter
from regard.models.writers.tokens import TokenWriter
from regard.models.writers.tracks import SceneTrackWriter, TrackWriter
from regard.recipes.base.run import ARTIFACTS
from regard.recipes.reviews.naive_bayes import NaiveBayesWriter, RatioTexts
from regard.system.writing import write_atomically

Tensors = Mapping[str, Tensor]
Run = Callable[[Tensors], Tensors]  # from the inputs of a graph to its outputs
_BATCH, _SOURCE, _ITEMS = "batch_size", "encoder_sequence_length", "items"
_NEW, _PAST = "sequence_length", "past_sequence_length"
EXAMPLE = {_BATCH: 3, _SOURCE: 7, _ITEMS: 41, _NEW: 2, _PAST: 4}
"""Sizes of the example of which a graph is exported: at least 2, those of a graph all different."""
_NEXT = "present.", "past_key_values."  # outputs that are inputs of the next step
_INPUTS = {ImageReader: "pixel_values", FrameReader: "samples", PointReader: "points"}
_OUTPUTS = {NumberWriter: "numbers", TrackWriter: "paths", SceneTrackWriter: "paths"}


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


class Graph(nn.Module):
    """A function of a model, from tensors by name to tensors by name."""

    def __init__(self, name: str, model: Any, function: Any, inputs: Mapping[str, GraphInput]):
        super().__init__()
        self.name, self.model, self.function, self.inputs = name, model, function, inputs

    def forward(self, given: Tensors) -> Tensors:
        return self.function(self.model, given)

    def example(self, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Return random inputs; sizes: of all axes by name, such as EXAMPLE."""
        return {name: given.example(sizes) for name, given in self.inputs.items()}

    @cached_property
    def outputs(self) -> list[str]:
        """Names of the outputs."""
        return [*self(self.example(EXAMPLE))]

    @cached_property
    def program(self) -> ExportedProgram:
        """The graph as a program for all sizes of its named axes."""
        shapes = {}
        for name, given in self.inputs.items():
            named = [i for i, axis in enumerate(given.axes) if isinstance(axis, str)]
            shapes[name] = dict.fromkeys(named, torch.export.Dim.DYNAMIC)
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            return torch.export.export(self, (self.example(EXAMPLE),), dynamic_shapes=(shapes,))

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
            shape = [n if isinstance(n, int) else rename(str(n)) for n in node.meta["val"].shape]
            outputs.append({"name": name, "type": "float32", "shape": shape})
        return {"name": self.name, "inputs": inputs, "outputs": outputs}


def graphs_of(model: Any) -> list[Graph]:
    """Return the graphs of a model. Raises: UserError if it has none."""
    if not isinstance(model, Model):
        name = "pixel_values" if len(model.shape) == 3 else "vectors"
        return [Graph("model", model, _answer, {name: GraphInput((_BATCH, *model.shape))})]
    if not isinstance(model.writer, TokenWriter):
        return [Graph("model", model, _answer, _source_inputs(model, _NEW))]
    if not isinstance(model.core, Transformer) and model.writer.positions is not None:
        raise UserError("a recurrent core with positions of its outputs cannot be exported")
    if any(isinstance(part, WrittenAttention) for part in model.modules()):
        raise UserError("memories that are written (pattern F and D) cannot be exported as graphs")
    if model.reader is None:
        return [_decoder(model, "model", None)]
    encoder = Graph("encoder", model, _encode, _source_inputs(model, _SOURCE))
    return [encoder, _decoder(model, "decoder", source_of(encoder.example(EXAMPLE)))]


def _source_inputs(model: Any, length: str) -> dict[str, GraphInput]:
    """Return the inputs of a reader; length: the axis of tokens."""
    reader, writer = model.reader, model.writer
    if not isinstance(reader, TokenReader):
        axes = [_ITEMS if isinstance(size, str) else size for size in reader.shapes()[0][1:]]
        inputs = {_INPUTS.get(type(reader), "tracks"): GraphInput((_BATCH, *axes))}
        return inputs | {"lengths": GraphInput((_BATCH,), "lengths")} if _ITEMS in axes else inputs
    ids = GraphInput((_BATCH, length), "ids", reader.table.num_embeddings)
    inputs = {"input_ids": ids, "attention_mask": GraphInput((_BATCH, length), "mask")}
    if isinstance(writer, NaiveBayesWriter):
        axes = _BATCH, length, len(writer.kinds), writer.output.out_features
        inputs["ratios"] = GraphInput(axes)
    return inputs


def _decoder(model: Any, name: str, source: Any) -> Graph:
    """Return the graph of a decoder, given an example of a source."""
    tokens = torch.zeros(EXAMPLE[_BATCH], dtype=torch.int64)
    example = model.step(tokens, model.start(source, rows=len(tokens)))[1].core
    state, is_text = _tensors_of(model.core, example), isinstance(model.reader, TokenReader)
    count = _NEW if isinstance(model.core, Transformer) else 1
    vocab = model.writer.inputs.table.num_embeddings
    inputs = {"input_ids": GraphInput((_BATCH, count), "ids", vocab)}
    if model.reader is None and count == _NEW:
        inputs["attention_mask"] = GraphInput((_BATCH, f"{_PAST} + {_NEW}"), "past mask")
    elif is_text and "present.0.encoder.key" in state:
        inputs["encoder_attention_mask"] = GraphInput((_BATCH, _SOURCE), "mask")
    for part, tensor in state.items():
        axes: list[int | str] = [_BATCH, *tensor.shape[1:]]
        if part.endswith(("key", "value")) and (is_text or ".encoder." not in part):
            axes[-2] = _SOURCE if ".encoder." in part else _PAST
        inputs[part.replace(*_NEXT)] = GraphInput(tuple(axes))
    return Graph(name, model, partial(_decode, example), inputs)


def _map_state(core: Any, state: Any, visit: Any, mask: Mask | None = None) -> Any:
    """Return a state with visit(name, tensor) for each tensor; mask: of the source."""
    own = ".decoder" if core.encodes else ""

    def pairs(name: str, memory: Any, mask: Mask | None = None) -> Any:
        if memory is None:
            return None
        keys, values = visit(f"{name}.key", memory.keys), visit(f"{name}.value", memory.values)
        return Memory(keys, values, mask, memory.mapped_by)

    if isinstance(state, TransformerState):
        pasts, sources = [], []
        for layer, (past, source) in enumerate(zip(state.pasts, state.sources, strict=True)):
            pasts.append(pairs(f"{layer}{own}", past))
            sources.append(pairs(f"{layer}.encoder", source, mask))
        return TransformerState(tuple(sources), tuple(pasts))
    cells: list[Any] = []
    for layer, cell in enumerate(state.cells):
        if isinstance(cell, Past):
            # With a slot for the next pair, which is masked: there is always one to read.
            read, old = visit(f"{layer}{own}.read", cell.read), pairs(f"{layer}{own}", cell.memory)
            keys, values = (pad(part, (0, 0, 0, 1)) for part in (old.keys, old.values))
            size = torch.full((), old.size)
            slots = StaticMemory(keys, values, size, FilledSlots(), old.mapped_by)
            cells.append(Past(read, read, slots))  # no step uses the last output
        else:
            parts = zip(("state", "cell"), cell, strict=False)
            cells.append(tuple(visit(f"{layer}{own}.{kind}", part) for kind, part in parts))
    context = None if state.context is None else visit(f"0{own}.context", state.context)
    return RecurrentDecoderState(tuple(cells), context, pairs("0.encoder", state.memory, mask))


def _tensors_of(core: Any, state: Any) -> dict[str, Tensor]:
    """Return the tensors of a state by the names of outputs."""
    tensors: dict[str, Tensor] = {}
    _map_state(core, state, lambda name, part: tensors.setdefault(f"present.{name}", part))
    return tensors


def source_of(given: Tensors) -> Any:
    """Return what a reader reads from the inputs of a graph."""
    items, mask = next(iter(given.values())), given.get("attention_mask")
    lengths = given.get("lengths") if mask is None else mask.sum(1)
    source: Any = items if lengths is None else Padded(items, lengths)
    return RatioTexts(source, given["ratios"]) if "ratios" in given else source


def _answer(model: Any, given: Tensors) -> Tensors:
    answer, writer = model(source_of(given)), getattr(model, "writer", None)
    if not isinstance(answer, Tensor):
        return answer._asdict()
    if writer is None:
        return {"reconstructions": answer}
    return {_OUTPUTS.get(type(writer), "probabilities"): answer}


def _encode(model: Any, given: Tensors) -> Tensors:
    """Return the encoded source, and the tensors that a decoder begins with."""
    core, encoded = model.core, model.encoder(source_of(given))
    return {"last_hidden_state": encoded.items} | _tensors_of(core, core.begin(encoded))


def _decode(example: Any, model: Any, given: Tensors) -> Tensors:
    """Return logits and the tensors of the next state; example: a state with other tensors."""
    core, mask = model.core, given.get("encoder_attention_mask")
    mask = None if mask is None else padding(mask.sum(1))
    state = _map_state(core, example, lambda name, _: given[f"past_key_values.{name}"], mask)
    if isinstance(core, Transformer):
        items, padding_mask = _embed(model, given, state.pasts[0].size)
        pasts, blocks = [], list[Any](core.decoder)
        for block, old, source in zip(blocks, state.pasts, state.sources, strict=True):
            items, new = block.step(items, old, source, intersect(block.mask(), padding_mask))
            pasts.append(new)
        hidden, state = core.decoder_norm(items), replace(state, pasts=tuple(pasts))
    else:
        item, state = core.step(model.writer.embed(given["input_ids"])[:, 0], state)
        hidden = item.unsqueeze(1)
    present = {name: t for name, t in _tensors_of(core, state).items() if ".encoder." not in name}
    return {"logits": model.writer.answer(hidden)} | present


def _embed(model: Any, given: Tensors, start: int) -> tuple[Tensor, Mask | None]:
    """Return the decoder inputs, and the mask of the padding of a language model."""
    ids, core = given["input_ids"], model.core
    items, positions = model.writer.embed(ids, start), core.target_positions
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
    for read in (part for part in model.modules() if isinstance(part, Read)):
        read.kernel = "auto"  # others are no part of a graph
    parts = [part for part in model.modules() if isinstance(part, PositionalEncoding)]
    limits = [part.max_length for part in parts if part.max_length is not None]
    content: dict[str, Any] = {"regard": __version__, "recipe": trained.run.recipe}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        graphs = graphs_of(model)
        check_graphs(model, graphs, write(graphs), min([64, *limits]))
        content["graphs"] = [{"file": graph.name + suffix} | graph.describe() for graph in graphs]
    content["max_length"] = min(limits, default=None)
    if hasattr(trained.recipe, "tokenizer"):
        content["special_tokens"] = msgspec.structs.asdict(trained.recipe.tokenizer.specials)
    write_atomically(folder / "graphs.json", json.dumps(content, indent=2) + "\n")
    shutil.copytree(trained.folder / ARTIFACTS, folder / ARTIFACTS)


def check_graphs(model: Any, graphs: Sequence[Graph], runs: Sequence[Run], longest: int) -> None:
    """Raise UserError unless functions that run the graphs give the outputs of the model."""
    writes_tokens = isinstance(getattr(model, "writer", None), TokenWriter)
    smallest: dict[str, int] = dict.fromkeys(EXAMPLE, 1) | {_PAST: 0, _ITEMS: 2}
    largest = {_BATCH: 33, _SOURCE: longest, _ITEMS: 300, _PAST: longest - 2}
    largest[_NEW] = 1 if writes_tokens else longest
    for graph, run in zip(graphs, runs, strict=True):
        for sizes in (smallest, EXAMPLE, largest):
            _check_outputs(run(inputs := graph.example(sizes)), graph(inputs))
    if writes_tokens:
        _check_text(model, graphs, runs)


def _check_text(model: Any, graphs: Sequence[Graph], runs: Sequence[Run]) -> None:
    """Compare the logits of parts of a target, one after the other, with those of the model."""
    *encoders, decoder = graphs
    example = decoder.example(EXAMPLE | {_PAST: 0})
    given = {name: torch.zeros_like(tensor) for name, tensor in example.items()}
    source, logits = None, []
    for encoder in encoders:
        inputs = encoder.example(EXAMPLE)
        source, outputs = source_of(inputs), runs[0](inputs)
        given |= {f"encoder_{name}": tensor for name, tensor in inputs.items()}
        given |= {name.replace(*_NEXT): output for name, output in outputs.items()}
    tokens = torch.randint(decoder.inputs["input_ids"].high, (EXAMPLE[_BATCH], 7))
    size = 3 if decoder.inputs["input_ids"].axes[1] == _NEW else 1
    for begin in range(0, 6, size):
        given["input_ids"] = tokens[:, begin : begin + size]
        given["attention_mask"] = torch.ones_like(tokens[:, : begin + size])
        outputs = runs[-1]({name: given[name] for name in decoder.inputs})
        given |= {name.replace(*_NEXT): output for name, output in outputs.items()}
        logits.append(outputs["logits"])
    target = Padded(tokens, torch.full((len(tokens),), tokens.shape[1]))
    _check_outputs({"logits": torch.cat(logits, 1)}, {"logits": model(source, target)})


def _check_outputs(actual: Tensors, expected: Tensors) -> None:
    """Raise UserError unless outputs are equal up to 1e-4 of the largest number of each."""
    for name, wanted in expected.items():
        bound = 1e-4 * float(wanted.abs().max()) if wanted.numel() else 0.0
        if not torch.allclose(actual[name], wanted, rtol=0, atol=bound):
            raise UserError(f"{name} of the exported file differs by more than {bound:.1e}")
