"""A user's own parts in a Transformer: score, choice, norm, positions, feed-forward network."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.attention.choices import Choice, Soft
from regard.attention.masks import Padded
from regard.attention.scores import ScaledDot, Score
from regard.data.batches import Batch
from regard.data.elements import LabeledRegions
from regard.layers.feedforward import FeedForward
from regard.layers.norms import RMSNorm
from regard.layers.positions.base import AlibiPositions, PositionalEncoding
from regard.layers.positions.learned import Learned
from regard.layers.positions.rotary import Rotary
from regard.layers.positions.sinusoidal import Sinusoidal
from regard.layers.read import Read
from regard.models.autoencoders.config import AutoencoderConfig
from regard.models.config import DetectorConfig
from regard.models.cores.config import TransformerConfig
from regard.models.cores.recurrent import Recurrent
from regard.models.cores.self_attentive import SelfAttentive
from regard.models.cores.transformer import Transformer
from regard.models.model import Model
from regard.models.readers.images import ImageReader
from regard.models.readers.reader import Reader
from regard.models.readers.sound import FrameReader
from regard.models.readers.tokens import TokenReader, embedding_projection, embedding_table
from regard.models.writers.classes import ClassWriter
from regard.models.writers.numbers import NumberWriter
from regard.models.writers.sets import SetWriter
from regard.models.writers.tags import TagWriter
from regard.models.writers.tokens import TokenWriter
from regard.models.writers.tracks import TrackWriter
from tests.engines.small import unsupported_reason
from tests.helpers import close

CONFIG = TransformerConfig(layers=2, width=12, heads=3, feedforward=17)


class NegativeDistance(Score):
    """-|q - k|, with a learned factor."""

    is_rotation_invariant = True

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def compare(self, query: Tensor, keys: Tensor) -> Tensor:
        return -self.factor * (query.unsqueeze(-2) - keys.unsqueeze(-3)).square().sum(-1)


class CenteredNorm(nn.Module):
    """x - mean(x), scaled."""

    def __init__(self, dim: int):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, items: Tensor) -> Tensor:
        return (items - items.mean(-1, keepdim=True)) * self.scale


class Ramp(PositionalEncoding):
    """Adds a learned vector times the position."""

    def __init__(self, dim: int):
        super().__init__()
        self.slope = nn.Parameter(torch.full((dim,), 0.1))

    def add(self, items: Tensor, start: int = 0) -> Tensor:
        return items + torch.arange(start, start + items.shape[1])[:, None].to(items) * self.slope


class ReverseRotary(Rotary):
    """Rotates the other way around."""

    def rates(self) -> Tensor:
        return -super().rates()


class Maxout(nn.Module):
    """The larger of two linear maps."""

    def __init__(self):
        super().__init__()
        self.maps = nn.Linear(12, 24)

    def forward(self, items: Tensor) -> Tensor:
        return self.maps(items).unflatten(-1, (2, -1)).amax(-2)


OWN = {
    "score": {"score": NegativeDistance},
    "norm": {"norm": CenteredNorm},
    "positions": {"positions": Ramp(12)},
    "a rotation": {"positions": ReverseRotary(4)},
    "feedforward": {"feedforward": Maxout},
    "activation": {"feedforward": lambda: FeedForward(12, 17, activation=torch.tanh)},
    "all": {
        "score": NegativeDistance,
        "norm": CenteredNorm,
        "positions": ReverseRotary(2),
        "feedforward": Maxout,
    },
}
KNOWN = {
    "norm": {"norm": RMSNorm},
    "positions": {"positions": Rotary(4)},
    "a bias": {"positions": AlibiPositions(3)},
    "feedforward": {
        "feedforward": lambda: FeedForward(12, 20, activation="silu", bias=False, gated=True)
    },
}


def make_model(parts: dict) -> Model:
    torch.manual_seed(2)
    table = embedding_table(9, 12)
    core, writer = Transformer(CONFIG, **parts), TokenWriter(TokenReader(table))
    return Model(reader=TokenReader(table), core=core, writer=writer)


@pytest.mark.parametrize("name", OWN)
def test_own_parts_are_trained_and_step_as_all_at_once(name):
    core = make_model(OWN[name]).core.double().train()
    source, targets = torch.randn(2, 5, 12).double(), torch.randn(2, 6, 12).double()
    state = core.start(Padded(source, torch.tensor([5, 3])))
    out = core(targets, state)
    out.square().sum().backward()
    for parameter_name, parameter in core.named_parameters():
        if not parameter_name.endswith("key.bias"):  # cancels in the softmax
            assert parameter.grad is not None, parameter_name
            assert parameter.grad.abs().max() > 1e-9, parameter_name
    for time in range(6):
        step, state = core.step(targets[:, time], state)
        close(step, out[:, time])


@pytest.mark.parametrize("name", OWN)
def test_engines_refuse_own_parts_by_name(name):
    reason = unsupported_reason(make_model(OWN[name]).eval())
    assert reason is not None
    kinds = ("NegativeDistance", "CenteredNorm", "Ramp", "ReverseRotary", "Maxout", "tanh")
    assert any(kind in reason for kind in kinds), reason


@pytest.mark.parametrize("name", KNOWN)
def test_engines_run_parts_of_this_package_however_they_are_given(name):
    assert unsupported_reason(make_model(KNOWN[name]).eval()) is None


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"score": NegativeDistance()}, "score must be a function .*, got a NegativeDistance"),
        ({"norm": RMSNorm(12)}, "norm must be a function that creates a part, got a RMSNorm"),
        ({"feedforward": FeedForward(12, 8)}, "feedforward must be a function .* FeedForward"),
        ({"positions": Sinusoidal(8)}, "positions must have dim=12, got Sinusoidal with 8"),
        ({"positions": Learned(9, 1)}, "positions must have dim=12, got Learned with 1"),
        ({"positions": AlibiPositions(1)}, "must have num_heads=3, got AlibiPositions with 1"),
        ({"encodes": False, "decodes": False}, "must have an encoder or a decoder"),
        ({"config": 4}, "give a TransformerConfig or its fields, got 4"),
        (
            {"config": replace(CONFIG, inducing_points=2), "positions": Rotary(4)},
            "inducing_points need positions that are added, got Rotary",
        ),
        (
            {"config": replace(CONFIG, beta=2.0), "choice": Soft},
            r"`choice` must be None with .*, beta=2.0",
        ),
    ],
)
def test_wrong_parts_are_named(parts, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Transformer(**{"config": CONFIG} | parts)
    with pytest.raises(ValueError, match="None with attention='none'"):
        Recurrent(width=12, hidden=8, score=ScaledDot(), attention="none")


class Doubled(Choice):
    """Softmax of twice the scores."""

    def weights(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return Soft().weights(2 * scores, allowed)


def test_own_choice_is_that_of_every_read_and_equals_a_config_of_the_same_choice():
    torch.manual_seed(0)
    own = Transformer(CONFIG, choice=Doubled).double()
    torch.manual_seed(0)
    named = Transformer(replace(CONFIG, beta=2.0)).double()
    reader = [part for part in own.modules() if isinstance(part, Read)]
    assert [type(read.choice) for read in reader] == [Doubled] * 6
    assert len({id(read.choice) for read in reader}) == 6
    source = Padded(torch.randn(2, 5, 12).double(), torch.tensor([5, 3]))
    targets = torch.randn(2, 4, 12).double()
    close(own(targets, own.start(source)), named(targets, named.start(source)))


def test_positions_are_given_by_name():
    core = Transformer(width=12, heads=3, positions="rotary")
    assert type(core.positions) is Rotary
    with pytest.raises(ValueError, match=r"positions must be sinusoidal, .* got 'rotery'"):
        Transformer(positions="rotery")


class Frames(Reader):
    """Reader of one's own that returns what its caller gives."""

    def forward(self, source: Any) -> Any:
        return source


ITEMS, LENGTHS = torch.randn(2, 5, 12), torch.tensor([5, 3])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (ITEMS, r"Frames must return Padded\(items, lengths\), got Tensor"),
        (Padded(ITEMS[..., :6], LENGTHS), r"Frames must return items \(batch, time, 12\)"),
        (Padded(ITEMS[0], LENGTHS), r"got \(5, 12\) and \(2,\)"),
        (Padded(ITEMS, LENGTHS[:1]), r"got \(2, 5, 12\) and \(1,\)"),
        (Padded(ITEMS, LENGTHS + 1), "lengths of Frames must be at most 5, got 6"),
    ],
)
@pytest.mark.usefixtures("no_shape_checks")
def test_a_reader_of_ones_own_returns_items_of_the_width_and_their_lengths(given, message):
    core = Transformer(width=12, heads=3, layers=1, decodes=False)
    model = Model(reader=Frames(), core=core, writer=ClassWriter(12, 2))
    assert model(Padded(ITEMS, LENGTHS)).shape == (2, 2)
    with pytest.raises((TypeError, ValueError), match=message):
        model(given)


class FirstRow(nn.Module):
    """Pool of one's own that loses all rows but the first."""

    def forward(self, items: Padded) -> Tensor:
        return items.items[:1, 0]


@pytest.mark.usefixtures("no_shape_checks")
def test_a_pool_of_ones_own_gives_a_vector_for_each_row():
    core = Transformer(width=12, heads=3, layers=1, decodes=False)
    writer = TrackWriter(12, 4, from_velocity=False, pool=FirstRow())
    model = Model(reader=Frames(), core=core, writer=writer)
    with pytest.raises(ValueError, match=r"the pool FirstRow must be \(2, 12\), got \(1, 12\)"):
        model(Padded(ITEMS, LENGTHS))


IDS = torch.tensor([[5, 3, 4, 2], [1, 2, 0, 0], [2, 2, 6, 0]])
SOURCE = Padded(IDS, torch.tensor([4, 2, 3]))
TARGETS = {
    "numbers": (lambda: NumberWriter(12), torch.randn(3, 1)),
    "class": (lambda: ClassWriter(12, 3), torch.tensor([0, 2, 1])),
    "tags": (lambda: TagWriter(12, 3), torch.tensor([[0, 1, 2, 0], [1, 1, 0, 0], [2, 0, 1, 0]])),
    "tokens": (lambda: TokenWriter(TokenReader(embedding_table(7, 12))), SOURCE),
    "tracks": (lambda: TrackWriter(12, 5, from_velocity=False), torch.randn(3, 5, 2)),
    "sets": (
        lambda: SetWriter(12, 3, axes=1, num_queries=4, blocks=1),
        LabeledRegions(torch.tensor([[0, 2], [1, -1], [-1, -1]]), torch.rand(3, 2, 2) * 0.5 + 0.2),
    ),
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.usefixtures("no_shape_checks")
def test_a_target_of_another_size_is_refused(name):
    make, target = TARGETS[name]
    writer = make()
    parts = {"decodes": writer.part != "encoder", "in_order": writer.part != "set"}
    core = Transformer(width=12, heads=3, layers=1, **parts)
    model = Model(reader=TokenReader(embedding_table(7, 12)), core=core, writer=writer)
    assert model.loss(Batch(SOURCE, target)).total.isfinite()
    if isinstance(target, Padded):
        wrong = [Padded(IDS[:1], target.lengths[:1]), Padded(IDS, target.lengths[:1])]
        wrong.append(Padded(IDS, target.lengths + 1))
    elif isinstance(target, LabeledRegions):
        labels, regions = target.labels, target.regions
        wrong = [LabeledRegions(labels[:count], regions[:count]) for count in (1, 2)]
        pairs = [(labels[:1], regions), (labels, regions[:, :1]), (labels, regions[..., :1])]
        wrong += [LabeledRegions(*pair) for pair in pairs]
    else:
        wrong = [target[:1], target[:2], target.mT if target.dim() > 1 else target[:, None]]
    for other in wrong:
        with pytest.raises(ValueError, match="target"):
            model.loss(Batch(SOURCE, other))


class Halving(PositionalEncoding):
    """Keeps half of each vector."""

    def rotate(self, vectors: Tensor, start: int | Tensor = 0) -> Tensor:
        return vectors[..., ::2]


class OneRow(PositionalEncoding):
    """Adds positions, and loses all rows but the first."""

    def add(self, items: Tensor, start: int = 0) -> Tensor:
        return items[:1]


@pytest.mark.parametrize(("positions", "name"), [(Halving(), "rotate"), (OneRow(), "add")])
@pytest.mark.usefixtures("no_shape_checks")
def test_positions_keep_the_shape(positions, name):
    core = Transformer(width=12, heads=3, layers=1, decodes=False, positions=positions)
    with pytest.raises(
        ValueError, match=f"{type(positions).__name__}.{name}.* must keep the shape"
    ):
        core.encode(Padded(ITEMS, LENGTHS))


def test_an_attention_module_of_a_decoder_has_a_memory():
    core = Transformer(width=12, heads=3, layers=1)
    core.decoder[0].cross = nn.Linear(12, 12)
    with pytest.raises(TypeError, match="must have `memory`, as MultiHead has, got Linear"):
        core.start(Padded(ITEMS, LENGTHS))


@pytest.mark.parametrize("size", [(4, 32), (3, 3), (16, 16), (35, 35)])
@pytest.mark.parametrize("patch", [None, 4])
@pytest.mark.usefixtures("no_shape_checks")
def test_images_and_sounds_have_the_size_of_their_reader(size, patch):
    images = ImageReader((3, 32, 32), 16, patch=patch)
    with pytest.raises(ValueError, match=r"images must be \(batch, 3, 32, 32\), got \(1, 3,"):
        images(torch.rand(1, 3, *size))
    sounds = FrameReader(4000, 16, sample_rate=8000, bands=20, channels=8)
    with pytest.raises(ValueError, match=r"sounds must be \(batch, 4000\), got"):
        sounds(torch.rand(1, 100 * size[0]))


TABLE = embedding_table(7, 4)
PROPOSALS = {"num_queries": 3, "blocks": 1, "axes": 2}
WITHOUT_EFFECT: dict[str, tuple[Any, dict[str, Any]]] = {
    "attention has": (Recurrent, {"decodes": False, "attention": "dot"}),
    "attention has no effect with encodes": (SelfAttentive, {"encodes": False, "attention": "dot"}),
    "layers has": (SelfAttentive, {"encodes": False, "layers": 3, "decoder_layers": 2}),
    "shared_positions has": (
        Transformer,
        {"positions": "learned", "shared_positions": False, "decodes": False},
    ),
    "layers has no effect": (Transformer, {"encodes": False, "layers": 3, "decoder_layers": 2}),
    "max_positions must": (Recurrent, {"max_positions": 9}),
    "downsampling_layers must": (
        ImageReader,
        {"shape": (3, 8, 8), "dim": 4, "patch": 4, "downsampling_layers": 3},
    ),
    "`output_projection` must": (
        TokenWriter,
        {"inputs": TokenReader(TABLE), "output_projection": embedding_projection(4, 4)},
    ),
    "`margin` must": (SetWriter, {"dim": 4, "num_classes": 2, "margin": (0.1, 0.1), **PROPOSALS}),
    "`nms_threshold`": (SetWriter, {"dim": 4, "num_classes": 2, "nms_threshold": 0.3, **PROPOSALS}),
    "nms_threshold must": (DetectorConfig, {"queries": "learned", "nms_threshold": 0.3}),
    "commitment has": (AutoencoderConfig, {"commitment": 0.5}),
    "channels has": (AutoencoderConfig, {"channels": 3}),
}


@pytest.mark.parametrize("message", WITHOUT_EFFECT)
def test_settings_without_effect_are_refused(message):
    make, options = WITHOUT_EFFECT[message]
    with pytest.raises(ValueError, match=message):
        make(**options)


OTHER: dict[str, Any] = {
    "choice": "hard", "beta": 2.0, "layers": 2, "decoder_layers": 3, "width": 24, "heads": 2,
    "head_dim": 2, "head_value_dim": 2, "feedforward": 7, "activation": "gelu", "gated": True,
    "norm": "rms", "norm_order": "post", "norm_eps": 0.1, "bias": False, "positions": "rotary",
    "kernel": "reference", "key_heads": 1, "score": "dot", "soft_cap": 0.1, "inducing_points": 3,
    "window": 2, "attention_bias": "none", "final_norm": False, "embedding_norm": True,
    "qk_norm": "rms", "layer_scale": 0.1, "first_norm": False, "sink": "learned", "gate": "head",
    "registers": 2,
}  # fmt: skip
"""Another value of each setting that stands alone."""
DEPENDENT = {"hard", "top_k", "alpha", "head_key_dim", "output_projection", "score_hidden"}
DEPENDENT |= {"shared_positions", "pattern", "decay"}
"""Settings of others, which TransformerConfig refuses without these."""


@pytest.mark.parametrize("name", OTHER)
@pytest.mark.parametrize("part", [{"decodes": False}, {"encodes": False}, {"in_order": False}])
@pytest.mark.usefixtures("no_shape_checks")
def test_each_setting_has_an_effect_or_is_refused(name, part):
    assert set(OTHER) | DEPENDENT == {entry.name for entry in fields(TransformerConfig)}
    small: dict[str, Any] = {"width": 12, "heads": 3, "layers": 1, "feedforward": 5}
    plain = Transformer(**small, **part).eval()
    try:
        changed = Transformer(**small | {name: OTHER[name]}, **part).eval()
    except ValueError as error:
        is_named = f"{name} " in str(error)
    else:
        reads = [module for module in changed.modules() if isinstance(module, Read)]
        is_named = name == "kernel" and {read.kernel for read in reads} == {"reference"}
    if is_named:
        return
    shapes = {key: value.shape for key, value in plain.state_dict().items()}
    if shapes != {key: value.shape for key, value in changed.state_dict().items()}:
        return
    changed.load_state_dict(plain.state_dict())
    for core in (plain, changed):
        for parameter in core.parameters():
            parameter.data = (
                torch.full_like(parameter, 0.3)
                + torch.arange(parameter.numel()).view(parameter.shape).sin()
            )
    source = Padded(ITEMS, LENGTHS) if plain.encodes else None
    results = []
    for core in (plain, changed):
        if not core.decodes:
            results.append(core.encode(source).items)
        elif core.in_order:
            results.append(core(ITEMS, core.start(source, rows=2)))
        else:
            results.append(core.decode_set(ITEMS, core.encode(source))[-1])
    assert not torch.allclose(*results)
