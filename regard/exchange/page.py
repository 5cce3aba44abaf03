"""Export of a run that generates text as one HTML page, which decodes in the browser.

    page.html     the viewer, built from viewer/
      + model     JSON: form of the model, tokenizers, limits    (viewer/src/live/form.ts)
      + chunks    int8: rows of matrices;  float32: scales of rows, vectors, biases of distances

A row w of a matrix is round(127 w / max |w|) in int8, with the scale max |w| / 127 in float32, as
in the compiled engine; the page computes in float32 with these weights. It needs no network.
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.biases import DistanceBias
from regard.attention.scores.base import InnerProduct
from regard.engines.lowering import UnsupportedModelError, lower
from regard.errors import UserError
from regard.layers import forms
from regard.look.page.page import chunk_script, json_script, with_scripts
from regard.recipes.base.run import data_paths
from regard.recipes.base.text_to_text import TextToTextRecipe
from regard.recipes.language.recipe import LanguageRecipe
from regard.settings.ranges import short_repr

_KNOWN = {
    forms.LinearForm: "weight bias",
    forms.NormForm: "size scale shift eps is_rms",
    forms.FeedForwardForm: "expand contract activation gate",
    forms.ReadForm: "score bias beta",
    forms.RotaryForm: "rates interleaved",
    forms.AttentionForm: "query key value output num_heads key_heads read rotary query_norm "
    "key_norm",
    forms.AddNormForm: "order norm",
    forms.BlockForm: "attention add_attention cross add_cross feedforward add_feedforward window",
    forms.SinusoidsForm: "dim",
    forms.LearnedForm: "weight",
    forms.TransformerForm: "encoder_positions encoder_embedding_norm encoder encoder_norm "
    "decoder_positions decoder_embedding_norm decoder decoder_norm",
    forms.WriterForm: "inputs output bias",
    forms.TextForm: "source core writer",
}
"""Fields of forms that the page computes; the others must have their defaults."""
_CHOICES: dict[str, tuple[Any, ...]] = {
    "activation": ("relu", "gelu", "gelu-tanh", "silu"),
    "order": ("pre", "post"),
    "beta": (1,),
}


def export(trained: Any, folder: Path, options: Any, notify: Callable[[str], None]) -> None:
    """Write index.html to a new folder. Raises: UserError if the page cannot run the model."""
    _text_settings(trained)  # refuses a run before its data is read
    # A text of one's own data is not given away.
    example = "" if data_paths(trained.run) else str(trained.test_input(0))
    (folder / "index.html").write_text(page_text(trained, example), encoding="utf-8")


def page_text(trained: Any, example: str = "") -> str:
    """Return the page of a run. Raises: UserError as `export`."""
    text, longest = _text_settings(trained)
    packed = Packed(longest)
    try:
        form = packed.form(lower(trained.model.cpu()))
    except UnsupportedModelError as error:
        raise UserError(f"the page cannot run this model: {error}; choose --to onnx") from error
    count = sum(parameter.numel() for parameter in trained.model.parameters())
    model = {
        "format": "regard live page",
        "version": 1,
        "title": f"{trained.run.recipe}: {trained.folder.resolve().name}",
        "model": f"{count:,} parameters in int8",
        "example": example,
        "text": text,
        "form": form,
    }
    scripts = [chunk_script(name, numbers) for name, numbers in packed.chunks().items()]
    return with_scripts([*scripts, json_script("model", model)])


class Packed:
    """Forms as JSON, whose tensors are offsets into two arrays; a shared tensor is stored once.

    longest: largest number of items of a sequence, for biases of distances.
    """

    def __init__(self, longest: int):
        self._longest = longest
        self._arrays: dict[str, list[NDArray[Any]]] = {"int8": [], "float32": []}
        self._stored: dict[tuple[int, ...], dict[str, Any]] = {}

    def chunks(self) -> dict[str, NDArray[Any]]:
        """Return the numbers of both arrays."""
        return {name: np.concatenate(arrays) for name, arrays in self._arrays.items()}

    def form(self, part: Any) -> Any:
        """Return a part of a form as JSON. Raises: UnsupportedModelError."""
        if isinstance(part, forms.TableForm):
            key = id(part.weight), id(part.projection)
            return {"weight": self._once(part.matrix, *key), "scale": part.scale}
        if isinstance(part, DistanceBias):
            distances = torch.arange(1 - self._longest, self._longest)
            values = part.at(distances, torch.float32).reshape(-1, len(distances))
            return {"heads": len(values), "values": self._once(values.flatten(), id(part))}
        if isinstance(part, Tensor):
            return part.tolist() if part.dtype == torch.float64 else self._once(part, id(part))
        if isinstance(part, InnerProduct):
            return {"scale": part.scale}
        if is_dataclass(part):
            _check(part)
            return {name: self.form(getattr(part, name)) for name in _KNOWN[type(part)].split()}
        return [self.form(item) for item in part] if type(part) is tuple else part

    def _once(self, tensor: Tensor, *key: int) -> dict[str, Any]:
        """Return the offsets of a tensor, which is stored if none with this key is."""
        if key not in self._stored:
            numbers = tensor.detach().numpy()
            if numbers.ndim == 2:
                scales, rows = quantize(numbers)
                self._stored[key] = {
                    "int8": self._append("int8", rows),
                    "scales": self._append("float32", scales),
                    "rows": rows.shape[0],
                    "columns": rows.shape[1],
                }
            else:
                offset = self._append("float32", numbers)
                self._stored[key] = {"float32": offset, "size": numbers.size}
        return self._stored[key]

    def _append(self, name: str, numbers: NDArray[Any]) -> int:
        first = sum(map(len, self._arrays[name]))
        self._arrays[name].append(numbers.ravel())
        return first


def quantize(matrix: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """Return the scale of each row, and the rows in int8."""
    scales = np.abs(matrix).max(1) / np.float32(127)
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
    return scales.astype(np.float32), np.rint(matrix * inverse[:, None]).astype(np.int8)


def _check(part: Any) -> None:
    """Raise UnsupportedModelError for a part that the page does not compute."""
    kind = type(part).__name__
    if type(part) not in _KNOWN:
        raise UnsupportedModelError(f"it has a {kind}, which the page does not compute")
    for field in fields(part):
        value = getattr(part, field.name)
        values: tuple[Any, ...] = (None if field.default is MISSING else field.default,)
        if field.name in _KNOWN[type(part)].split():
            values = _CHOICES.get(field.name, (value,))
        if not any(value is known or value == known for known in values):
            is_plain = isinstance(value, str | int | float)
            shown = short_repr(value) if is_plain else "one that the page does not compute"
            raise UnsupportedModelError(f"its {field.name} is {shown} ({kind})")


def _text_settings(trained: Any) -> tuple[dict[str, Any], int]:
    """Return tokenizers and limits of a run, and the largest number of items of a sequence."""
    recipe = trained.recipe
    if isinstance(recipe, LanguageRecipe):
        tokenizer, context = recipe.tokenizer, recipe.config.context
        text = {
            "kind": "language",
            "target": _tokenizer(tokenizer),
            "context": context,
            "before": recipe.before,
            "banned": recipe.banned,
            "eos": tokenizer.specials.eos,
            "temperature": recipe.config.sample.temperature or 1.0,
        }
        return text, context
    if not isinstance(recipe, TextToTextRecipe):
        raise UserError(f"the page has no form for runs of {trained.run.recipe}; choose --to onnx")
    source, decode = recipe.source_tokenizer, recipe.search_config()
    limit, ends = recipe.settings.input_limit, source.source_ends
    start, eos, pad = recipe.search_ids().values()
    most = limit + len(ends.before) + len(ends.after)
    text = {
        "kind": "text",
        "source": None if source is recipe.tokenizer else _tokenizer(source),
        "target": _tokenizer(recipe.tokenizer),
        "before": ends.before,
        "after": ends.after,
        "limit": limit,
        "start": start,
        "eos": eos,
        "banned": (pad, start),
        "max_ratio": decode.max_ratio,
        "max_extra": decode.max_extra,
        "max_length": decode.max_length,
    }
    return text, max(most, decode.limit(most))


def _tokenizer(tokenizer: Any) -> dict[str, Any]:
    """Return the content of the file of a tokenizer. Raises: UserError for a pretrained one."""
    kind = tokenizer.config.kind
    if kind not in ("char", "word", "bpe"):
        raise UserError(f"the page has no tokenizer of the kind {kind}; choose --to onnx")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        tokenizer.save(path)
        return json.loads(path.read_text(encoding="utf-8"))
