"""Public names that build a model: cores from fields, own parts, and what is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.attention.masks import Unpadded
from regard.models.cores.config import RecurrentConfig, SelfAttentiveConfig, TransformerConfig
from tests.helpers import close
from tests.shapes import without_checks

SIZES = {"width": 12, "layers": 1}
CORES = {
    "Transformer": (
        TransformerConfig,
        SIZES | {"heads": 3, "feedforward": 17, "score": "cosine", "norm": "rms"},
    ),
    "Recurrent": (RecurrentConfig, SIZES | {"hidden": 14, "cell": "gru"}),
    "SelfAttentive": (SelfAttentiveConfig, SIZES | {"hidden": 14, "self_attention_hidden": 5}),
}


@pytest.mark.parametrize("name", CORES)
def test_core_of_fields_is_that_of_their_config(name: str) -> None:
    config, fields = CORES[name]
    kind = getattr(regard, name)
    torch.manual_seed(1)
    of_config = kind(config(**fields), decodes=False).eval()
    torch.manual_seed(1)
    of_fields = kind(**fields, decodes=False).eval()
    assert of_fields.width == 12
    items = Unpadded.of(torch.randn(2, 5, 12))
    assert torch.equal(of_config.encode(items).items, of_fields.encode(items).items)
    with pytest.raises(TypeError, match=r"give a \w+Config or its fields, got .* and \['width'\]"):
        kind(config(), width=12)
    with pytest.raises(TypeError, match="unexpected keyword argument 'widht'"):
        kind(widht=12)


class PointReader(regard.Reader):
    """Reader of points (batch, point, 3)."""

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim
        self.map = nn.Linear(3, dim)

    def forward(self, source: Tensor) -> regard.Padded:
        return Unpadded.of(self.map(source))


class MeanWriter(regard.Writer):
    """Writer of the mean of the encoded items, with a squared error."""

    part = "encoder"

    def read(
        self,
        core: regard.Core,
        encoded: regard.Padded,
        *,
        source: Any = None,
        queries: Tensor | None = None,
    ) -> Tensor:
        return encoded.items.mean(1)

    def loss(self, hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        total = (hidden - target).square().sum()
        return total, total.detach()

    def answer(self, hidden: Tensor) -> Tensor:
        return hidden


class Manhattan(regard.Score):
    """Minus the sum of absolute differences."""

    def compare(self, query: Tensor, keys: Tensor) -> Tensor:
        return -(query[..., :, None, :] - keys[..., None, :, :]).abs().sum(-1)


@pytest.mark.parametrize("core", CORES)
def test_own_reader_and_writer_make_a_model_with_every_core(core: str) -> None:
    torch.manual_seed(1)
    built = getattr(regard, core)(**CORES[core][1], decodes=False)
    model = regard.Model(reader=PointReader(12), core=built, writer=MeanWriter()).double()
    points, target = torch.randn(3, 4, 3).double(), torch.randn(3, built.memory_dim).double()

    class Batch:
        source = points

    Batch.target = target
    loss = model.loss(Batch())
    close(loss.total.detach(), (model(points) - target).square().sum().detach())
    assert loss.count == model.count(Batch()) == 3
    loss.total.backward()
    for weight in model.reader.parameters():
        assert weight.grad is not None
        assert weight.grad.any()


def test_own_score_decodes_as_it_reads_all_positions() -> None:
    torch.manual_seed(1)
    core = regard.Transformer(width=12, heads=3, layers=2, score=Manhattan, encodes=False)
    writer = regard.TokenWriter(regard.TokenReader(regard.embedding_table(9, 12)))
    model = regard.Model(reader=None, core=core, writer=writer).double().eval()
    tokens = torch.randint(9, (2, 6))
    expected, state = model(target=Unpadded.of(tokens)), model.start(rows=2)
    for time in range(5):
        logits, state = model.step(tokens[:, time], state)
        close(logits, expected[:, time])
    dot = regard.Transformer(width=12, heads=3, layers=2, encodes=False).double().eval()
    dot.load_state_dict(core.state_dict())
    other = regard.Model(reader=None, core=dot, writer=writer).double().eval()
    assert (other(target=Unpadded.of(tokens)) - expected).abs().max() > 1e-3  # the score is used


def test_source_of_a_track_writer_must_be_tracks() -> None:
    core = regard.Transformer(width=12, heads=3, layers=1, decodes=False)
    model = regard.Model(reader=PointReader(12), core=core, writer=regard.TrackWriter(12, 2))
    with without_checks(), pytest.raises(ValueError, match="`source` must be tracks"):
        model(torch.randn(3, 4, 3))


def language_model() -> regard.Model:
    core = regard.Transformer(width=12, heads=3, layers=2, encodes=False)
    writer = regard.TokenWriter(regard.TokenReader(regard.embedding_table(9, 12)))
    return regard.Model(reader=None, core=core, writer=writer).eval()


def test_target_is_needed_for_all_positions() -> None:
    with pytest.raises(TypeError, match=r"`target` must be token ids .* use `start` and `step`"):
        language_model()()


def test_token_ids_without_lengths_are_refused() -> None:
    ids = torch.randint(4, 9, (2, 3))
    core = regard.Recurrent(width=12, hidden=8)
    table = regard.TokenReader(regard.embedding_table(9, 12))
    model = regard.Model(reader=table, core=core, writer=regard.TokenWriter(table))
    padded = regard.Padded(ids, torch.tensor([3, 2]))
    for name, source, target in (
        ("source", ids, padded),
        ("target", padded, ids),
        ("target", padded, ids.tolist()),
    ):
        for call in (model, lambda *pair: model.loss(regard.Batch(*pair))):
            message = rf"`{name}` must be regard.Padded\(items, lengths\), got (Tensor|list)"
            with without_checks(), pytest.raises(TypeError, match=message):
                call(source, target)


def test_source_is_refused_by_a_model_without_a_reader() -> None:
    model, tokens = language_model(), Unpadded.of(torch.randint(4, 9, (2, 3)))
    for call in (lambda: model(tokens, tokens), lambda: model.start(tokens)):
        with without_checks(), pytest.raises(TypeError, match="`source` must be None"):
            call()


def test_writer_of_a_set_takes_as_many_blocks_as_the_core_has() -> None:
    core = regard.Transformer(width=12, heads=3, layers=1, decoder_layers=2, in_order=False)
    writer = regard.SetWriter(12, 3, axes=2, num_queries=4, blocks=1)
    with pytest.raises(ValueError, match=r"`writer` must have blocks=2, .* got 1"):
        regard.Model(reader=PointReader(12), core=core, writer=writer)


def test_hooks_on_the_attention_of_a_block_are_called_in_decoding() -> None:
    model, seen = language_model(), []
    model.core.decoder[1].attention.register_forward_hook(lambda *_: seen.append("attention"))
    model.step(torch.tensor([5, 6]), model.start(rows=2))
    model(target=Unpadded.of(torch.randint(4, 9, (2, 3))))
    assert seen == ["attention", "attention"]


def test_embeddings_are_the_first_parameters() -> None:
    """The norm of the gradient is a sum in this order, on which its last bits depend."""
    writer = regard.TokenWriter(regard.TokenReader(regard.embedding_table(9, 12)))
    reader = regard.TokenReader(regard.embedding_table(7, 12))
    of_text = regard.Model(
        reader=None, core=regard.Recurrent(width=12, hidden=8, encodes=False), writer=writer
    )
    of_pairs = regard.Model(reader=reader, core=regard.Recurrent(width=12, hidden=8), writer=writer)
    assert next(of_text.named_parameters())[0] == "writer.inputs.table.weight"
    names = [name for name, _ in of_pairs.named_parameters()]
    assert (names[0], names[-1]) == ("reader.table.weight", "writer.inputs.table.weight")


def test_pool_comes_before_the_output_and_grid_positions_last() -> None:
    pooled = [name for name, _ in regard.ClassWriter(12, 3).named_parameters()]
    parts = ["pool"] * 9 + ["norm"] * 2 + ["output"] * 2
    assert [name.partition(".")[0] for name in pooled] == parts
    inputs = regard.TokenReader(regard.embedding_table(9, 12))
    writer = regard.TokenWriter(inputs, positions=regard.GridPositions((2, 3), 12))
    names = [name for name, _ in writer.named_parameters()]
    assert names[-3:] == ["positions.rows", "positions.columns", "positions.end"]
