"""Export of a run as ONNX, opset 20: a file for each graph (regard.exchange.graphs).

Graphs that share a tensor, such as a table of encoder and decoder, share the file weights.bin,
which holds each tensor once; otherwise each file holds its weights.
"""

import importlib
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.exchange.graphs import Graph, Run, Tensors, write_graphs
from regard.system.extras import check_extra

_WEIGHTS = "weights.bin"
_LEAST, _MOST = 1 << 10, 1 << 30
"""Bytes of a tensor that may be in weights.bin, and of the weights that one file of ONNX holds."""


def export(trained: Any, folder: Path, options: Any, notify: Callable[[str], None]) -> None:
    """Write a run as ONNX files, checked by ONNX Runtime. Raises: UserError without packages."""
    check_extra("onnx", "--to onnx")

    def write(graphs: Sequence[Graph]) -> list[Run]:
        models = {folder / f"{graph.name}.onnx": _convert(graph) for graph in graphs}
        _move_weights([*models.values()], folder)
        for path, model in models.items():
            path.write_bytes(model.SerializeToString())
        return [*map(_open, models)]

    write_graphs(trained, folder, write, suffix=".onnx")


def _convert(graph: Graph) -> Any:
    """Return the model of a graph in ONNX's protocol, with the names of its axes."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it names operators of torchvision
    with warnings.catch_warnings(action="ignore"):
        converted: Any = torch.onnx.export(
            graph.program,
            dynamo=True,
            opset_version=20,
            input_names=[*graph.inputs],
            output_names=[*graph.outputs],
            custom_translation_table={
                torch.ops.aten.sort.stable: _sort,
                torch.ops.aten._cdist_forward.default: _distances,
            },
            verbose=False,
        )
    passes = importlib.import_module("onnx_ir.passes.common")
    passes.ClearMetadataAndDocStringPass()(converted.model)  # it lists paths of source files
    model, described = converted.model_proto, graph.describe()
    values = *model.graph.input, *model.graph.output
    for value, known in zip(values, described["inputs"] + described["outputs"], strict=True):
        for dim, axis in zip(value.type.tensor_type.shape.dim, known["shape"], strict=True):
            if isinstance(axis, str):
                dim.dim_param = axis
    model.graph.ClearField("value_info")
    return model


def _move_weights(models: Sequence[Any], folder: Path) -> None:
    """Move large tensors to one file, if models share one or a model would be too large."""
    external = importlib.import_module("onnx.external_data_helper")
    tensors = [tensor for model in models for tensor in model.graph.initializer]
    tensors = [tensor for tensor in tensors if len(tensor.raw_data) >= _LEAST]
    counts = Counter(tensor.raw_data for tensor in tensors)
    if max(counts.values(), default=0) < 2 and sum(map(len, counts)) < _MOST:
        return
    offsets: dict[bytes, int] = {}
    with (folder / _WEIGHTS).open("wb") as file:
        for tensor in tensors:
            data = tensor.raw_data
            if data not in offsets:
                offsets[data] = file.tell()
                file.write(data)
            external.set_external_data(tensor, _WEIGHTS, offsets[data], len(data))
            tensor.ClearField("raw_data")


def _open(path: Path) -> Run:
    """Return a function that runs a model by ONNX Runtime."""
    session = importlib.import_module("onnxruntime").InferenceSession(path)

    names = [output.name for output in session.get_outputs()]

    def run(given: Tensors) -> Tensors:
        arrays = {name: tensor.numpy() for name, tensor in given.items()}
        return dict(zip(names, map(torch.from_numpy, session.run(None, arrays)), strict=True))

    return run


def _sort(values: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    """Return values and indices in order; ONNX takes the first of equal values first, too."""
    op = importlib.import_module("onnxscript").opset20
    count = op.Gather(op.Shape(values), op.Constant(value_ints=[dim]))
    return op.TopK(values, count, axis=dim, largest=int(descending), sorted=1)


def _distances(first: Any, second: Any, p: float, mode: int) -> Any:
    """Return the Euclidean distances of two sets of points."""
    op = importlib.import_module("onnxscript").opset20
    axes = (op.Constant(value_ints=[axis]) for axis in (-2, -3, -1))
    offsets = op.Sub(op.Unsqueeze(first, next(axes)), op.Unsqueeze(second, next(axes)))
    return op.ReduceL2(offsets, next(axes), keepdims=0)
