"""Model: a reader, a core and a writer.

    h^Enc = encoder(x)              the items of the reader, encoded by the core
    h^Dec = predictor(y, h^Enc)     the queries of the writer (targets delayed by one, or learned)
                                    read h^Enc
    y~    = decoder(h^Dec)          the answer of the writer; in training, its loss

Any reader can be combined with any core and any writer. Without a reader, the core is a decoder
alone, and the model a causal language model:

    h_0 = U W_e + W_p      h_l = block(h_{l-1})      p(u_t | u_<t) = softmax(h_n W_e^T)

where the rows of U are one-hot, and W_e is the table of both input and output.

With a writer of tokens a model is a stepper: `start(source)` encodes the source, then `step(tokens,
state)` takes one more token per row; the results equal those of `forward`.

Source: lectures, D.13 (GPT), E.11 (encoder-predictor-decoder view); radford2018, section 3.1.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.choices.hard import reinforce, sampling_choices
from regard.attention.masks import Padded
from regard.layers.forms import TableForm, TextForm, TransformerForm, WriterForm, form_of
from regard.models.cores.core import Core, CoreState
from regard.models.readers.reader import Reader, check_lengths
from regard.models.sampled import step_wise_choices, surrogate
from regard.models.writers.writer import Writer


class BatchLoss(NamedTuple):
    """Sums over a batch, in nats."""

    total: Float[Tensor, ""]
    """Training objective (label smoothing included)."""
    nll: Float[Tensor, ""]
    """Loss for reports, such as the sum of -log p(target)."""
    count: int
    """Number of predictions, such as target tokens."""


@dataclass(frozen=True, eq=False)
class ModelState:
    """State of the core after `position` targets."""

    core: CoreState
    position: int = 0

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        return replace(self, core=self.core.select(index))

    def reorder(self, index: Int[Tensor, " rows"]) -> Self:
        return replace(self, core=self.core.reorder(index))


class Model(nn.Module):
    """Reader, core and writer; y~ = decoder(predictor(y, encoder(x))).

    reader: None for a language model, whose core has no encoder.
    Raises: ValueError, naming the part, if the parts do not fit together.
    """

    def __init__(self, *, reader: Reader | None, core: Core, writer: Writer):
        super().__init__()
        decodes, kind = writer.part != "encoder", type(writer).__name__
        if reader is None and writer.part != "decoder":
            raise ValueError(f"`reader` must not be None: a {kind} needs a source")
        if core.encodes != (reader is not None):
            raise ValueError(f"`core` must have encodes={reader is not None} for reader={reader}")
        if decodes and not core.decodes:
            raise ValueError(f"`core` must have decodes=True: a {kind} reads its decoder")
        if decodes and core.in_order != (writer.part == "decoder"):
            raise ValueError(f"`core` must have in_order={not core.in_order} for a {kind}")
        if writer.part == "set" and writer.set_outputs not in (None, core.set_outputs):
            raise ValueError(
                f"`writer` must have blocks={core.set_outputs}, the decoder blocks of the core, "
                f"got {writer.set_outputs}"
            )
        if reader is not None and reader.dim not in (None, core.width):
            raise ValueError(
                f"`reader` must give items of the core's width, {core.width}, got dim={reader.dim}"
            )
        name, expected = ("width", core.width) if decodes else ("memory_dim", core.memory_dim)
        if writer.dim not in (None, expected):
            raise ValueError(
                f"`writer` must take vectors of the core's {name}, {expected}, got dim={writer.dim}"
            )
        # The order of registration is that of the parameters, in which the norm of the gradient is
        # summed: embeddings first, which without a reader are the writer's.
        if reader is None:
            self.writer = writer
        self.reader = reader
        self.core = core
        self.writer = writer
        self.has_samples = bool(sampling_choices(self))

    def forward(self, source: Any = None, target: Any = None) -> Any:
        """Return the answer of the writer; of a TokenWriter the logits of each next token."""
        return self.decoder(self.hidden(source, target))

    def encoder(self, source: Any = None) -> Any:
        """Return h^Enc, the encoded source: items (Padded) of size core.memory_dim.

        None for a model without a reader.
        """
        items = self._items(source)
        return None if items is None else self.writer.encode(self.core, items)

    def predictor(self, target: Any, encoded: Any, *, source: Any = None) -> Any:
        """Return h^Dec, the hidden vectors from which the writer predicts.

        target:  None if the core reads no target (`writer.part` is not decoder).
        encoded: what `encoder` returned.
        source:  what `encoder` was given; only for a writer that continues it (TrackWriter).
        """
        return self._read(encoded, self.writer.embed_target(target), source)

    def decoder(self, hidden: Any) -> Any:
        """Return y~, the prediction of the writer from h^Dec."""
        return self.writer.answer(hidden)

    def hidden(self, source: Any = None, target: Any = None) -> Any:
        # The target comes first: dropout draws its seeds in this order.
        queries, items = self.writer.embed_target(target), self._items(source)
        if queries is not None and items is not None:
            # `shape[0]`, not `len`: torch.export would fix the number of rows.
            rows, given = items.items.shape[0], queries.shape[0]
            if given != rows:
                raise ValueError(f"`target` must have the {rows} rows of `source`, got {given}")
        encoded = None if items is None else self.writer.encode(self.core, items)
        return self._read(encoded, queries, source)

    def loss(self, batch: Any) -> BatchLoss:
        """Return the loss of a batch, summed over its predictions.

        batch: `source`, the input of the reader (None without a reader), and `target`, that of the
               writer, such as token ids.
        In training with keys sampled by `Hard("reinforce")`, its gradient includes theirs
        (regard.models.sampled).
        """
        samples_keys = self.has_samples and self.training and torch.is_grad_enabled()
        with reinforce(self) if samples_keys else nullcontext() as samples:
            hidden = self.hidden(batch.source, batch.target)
        total, nll = self.writer.loss(hidden, batch.target)
        if samples is not None:
            with torch.no_grad():
                costs = self.writer.costs(hidden, batch.target)
            total = total + surrogate(samples, costs, step_wise_choices(self))  # of value zero
        return BatchLoss(total, nll, self.count(batch))

    def count(self, batch: Any) -> int:
        return self.writer.count(batch.target)

    def blocks(self) -> list[nn.Module]:
        return self.core.blocks()

    def start(self, source: Any = None, *, rows: int = 1) -> ModelState:
        """Return the state before the first target; rows: of a model without a reader."""
        return ModelState(self.core.start(self._items(source), rows=rows))

    def step(
        self, tokens: Int[Tensor, " rows"], state: ModelState
    ) -> tuple[Float[Tensor, "rows vocab"], ModelState]:
        """Return the logits of the next token after one more token per row, and the next state.

        Hooks on modules with a `step` of their own are not called: their `forward` does not run.
        Raises: TypeError if the writer does not decode targets in order.
        """
        item = self.writer.embed(tokens.unsqueeze(1), state.position).squeeze(1)
        hidden, core = self.core.step(item, state.core)
        return self.writer.answer(hidden), ModelState(core, state.position + 1)

    def steps(
        self, tokens: Int[Tensor, "rows time"], state: ModelState
    ) -> tuple[Float[Tensor, "rows vocab"], ModelState]:
        """Return what `step` does after the last of these tokens, which are read at once."""
        items = self.writer.embed(tokens, state.position)
        hidden, core = self.core.steps(items, state.core)
        return self.writer.answer(hidden), ModelState(core, state.position + tokens.shape[1])

    def slide(self, state: ModelState, window: int) -> ModelState:
        return replace(state, core=self.core.slide(state.core, window))

    def _items(self, source: Any) -> Padded | None:
        if self.reader is not None:
            items = self.reader(source)
            reader, core = type(self.reader).__name__, type(self.core).__name__
            _check_items(reader, items, self.core.width)
            if items.relations is not None and not self.core.reads_relations:
                needed = "`core` must be a Transformer without inducing_points"
                raise ValueError(f"{needed} to read the relations of a {reader}, got a {core}")
            return items
        if source is not None:
            kind = type(source).__name__
            raise TypeError(f"`source` must be None, since the model has no reader, got a {kind}")
        return None

    def _read(self, encoded: Any, queries: Tensor | None, source: Any) -> Any:
        if self.writer.part == "decoder" and queries is not None:
            encoded = self.core.begin(encoded, rows=queries.shape[0])
        return self.writer.read(self.core, encoded, source=source, queries=queries)

    def form(self) -> TextForm:
        """Return the form of this model in decoding (regard.layers.forms)."""
        source = None if self.reader is None else form_of(self.reader, TableForm)
        return TextForm(
            source, form_of(self.core, TransformerForm), form_of(self.writer, WriterForm)
        )


def _check_items(reader: str, items: Any, width: int) -> None:
    """Raise TypeError or ValueError unless a reader returned items that the core can read."""
    if not isinstance(items, Padded):
        raise TypeError(f"{reader} must return Padded(items, lengths), got {type(items).__name__}")
    shape, lengths = tuple(items.items.shape), items.lengths
    if len(shape) != 3 or shape[2] != width or lengths.shape != shape[:1]:
        raise ValueError(
            f"{reader} must return items (batch, time, {width}) and lengths (batch), got {shape} "
            f"and {tuple(lengths.shape)}"
        )
    check_lengths(reader, items)
