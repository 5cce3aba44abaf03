"""The read inside torch's transforms: compile, export, vmap, derivatives, autocast.

Run by test_transforms.py in a process of its own, without the shape checks of the other tests.
"""

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import regard
from regard.attention.attend import attend
from regard.attention.biases import Alibi, DistanceBias, RelativeBias, ShawBias
from regard.attention.choices import Choice, Hard, Soft, Sparse, TopK, reinforce
from regard.attention.kernels import gather
from regard.attention.masks import causal, padding
from regard.attention.scores import Additive, General, ScaledDot, Score
from regard.layers.multihead import MultiHead
from tests.helpers import ADDITIVE_KERNELS, close

BATCH, HEADS, QUERIES, KEYS, DIM, VALUE_DIM = 2, 3, 5, 7, 11, 13
SCORES = {
    "scaled": ScaledDot,
    "general": lambda: General(DIM, DIM),
    "additive": lambda: Additive(DIM, DIM, 17),
}
FEW = {"hard": Hard(), "gumbel": Hard("gumbel", temperature=0.7), "top": TopK(3)}
SPARSE = {f"sparse-{alpha}": Sparse(alpha) for alpha in (1.3, 1.5, 2, 3.0)}
INNER = ("reference", "products", "sdpa")
SOFT_CELLS = [(score, kernel) for score in ("scaled", "general") for kernel in INNER]
SOFT_CELLS += [("additive", kernel) for kernel in ADDITIVE_KERNELS]
EXPORTED = {
    ("scaled", "sdpa"),
    ("general", "reference"),
    ("general", "products"),
    ("top", "reference"),
    ("sparse-1.5", "reference"),
}
"""Reads that are exported without --slow."""
CHOICE_CELLS = [(choice, "reference") for choice in FEW | SPARSE]
CHOICE_CELLS += [(choice, "gather") for choice in FEW]
soft_cells = pytest.mark.parametrize(("name", "kernel"), SOFT_CELLS)
cells = pytest.mark.parametrize(("name", "kernel"), SOFT_CELLS + CHOICE_CELLS)


class Reader(nn.Module):
    """Read under a causal and a padding mask, both created inside."""

    def __init__(self, score: Score, choice: Choice, kernel: str):
        super().__init__()
        self.score, self.choice, self.kernel = score, choice, kernel

    def forward(self, query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        options = {"score": self.score, "choice": self.choice, "kernel": self.kernel}
        return attend(query, (keys, values), mask=causal() & padding(lengths), **options)


def make_reader(name: str, kernel: str) -> Reader:
    """Return the read with the score of this name, or with the choice of this name."""
    score, choice = SCORES.get(name, ScaledDot)(), (FEW | SPARSE).get(name, Soft())
    return Reader(score, choice, kernel).double()


def make_tensors() -> tuple[Tensor, ...]:
    """Draw queries, keys and values, and lengths, of which one leaves rows without keys."""
    shapes = ((QUERIES, DIM), (KEYS, DIM), (KEYS, VALUE_DIM))
    tensors = [
        torch.randn(BATCH, HEADS, *shape, dtype=torch.float64, requires_grad=True)
        for shape in shapes
    ]
    return (*tensors, torch.tensor([7, 0]))


@pytest.mark.parametrize(
    ("name", "kernel", "tile"),
    [
        ("scaled", "sdpa", 0),
        ("general", "reference", 0),
        ("general", "products", 0),
        ("sparse-2", "reference", 0),
        ("gumbel", "gather", 40),
        pytest.param("scaled", "reference", 0, marks=pytest.mark.slow),
        pytest.param("scaled", "products", 0, marks=pytest.mark.slow),
        pytest.param("general", "sdpa", 0, marks=pytest.mark.slow),
        pytest.param("sparse-3.0", "reference", 0, marks=pytest.mark.slow),
        pytest.param("top", "gather", 1 << 20, marks=pytest.mark.slow),
    ],
)
def test_compiled_read_equals_the_eager_one_without_graph_breaks(monkeypatch, name, kernel, tile):
    monkeypatch.setattr(gather, "TILE", tile)
    torch.compiler.reset()
    read, inputs = make_reader(name, kernel), make_tensors()
    compiled = torch.compile(read, fullgraph=True, backend="aot_eager")
    learned, results = [*inputs[:3], *read.parameters()], []
    for function in (read, compiled):
        torch.manual_seed(5)
        out = function(*inputs)
        weighting = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
        results.append([out, *torch.autograd.grad(out, learned, weighting)])
    for expected, actual in zip(*results, strict=True):
        close(actual, expected)


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        pytest.param(*cell, marks=() if cell in EXPORTED else pytest.mark.slow)
        for cell in SOFT_CELLS + CHOICE_CELLS
    ],
)
def test_exported_read_equals_the_eager_one(name, kernel):
    read, inputs = make_reader(name, kernel), tuple(x.detach() for x in make_tensors())
    with torch.no_grad():
        exported = torch.export.export(read, inputs).module()
        torch.manual_seed(5)
        expected = read(*inputs)
        torch.manual_seed(5)
        close(exported(*inputs), expected)


class LogDistance(DistanceBias):
    """bias_h(i, j) = -rate_h log(1 + |j - i|)."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.rand(HEADS))

    def at(self, distance: Tensor, dtype: torch.dtype) -> Tensor:
        return (
            -self.rate.to(dtype).view(-1, *(1,) * distance.dim()) * distance.abs().to(dtype).log1p()
        )


def make_relative_bias() -> RelativeBias:
    bias = RelativeBias(HEADS)
    nn.init.normal_(bias.table)
    return bias


BIASES = {
    "none": lambda: None,
    "alibi": lambda: Alibi(HEADS),
    "relative": make_relative_bias,
    "shaw": lambda: ShawBias(4, 3),
    "own": LogDistance,
}


# Strict export and compilation trace in the same way: by default one of them traces each bias.
COMPILED = "alibi", "relative", "shaw"
STRICT = [
    pytest.param(bias, True, marks=pytest.mark.slow if bias in COMPILED else ()) for bias in BIASES
]
IN_MODELS = "none", "relative"
"""Biases of the models that are exported below, not strictly either."""
NOT_STRICT = [
    pytest.param(bias, False, marks=pytest.mark.slow if bias in IN_MODELS else ())
    for bias in BIASES
]


@pytest.mark.parametrize(("bias", "strict"), [*NOT_STRICT, *STRICT])
def test_exported_layer_reads_sequences_of_any_length(bias, strict):
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = MultiHead(DIM + 1, HEADS, bias=BIASES[bias]())
            self.cross = MultiHead(DIM + 1, HEADS, bias=BIASES[bias]())

        def forward(self, items: Tensor, source: Tensor) -> Tensor:
            return self.cross(self.own(items, mask=causal()), source)

    def make_items(*lengths: int) -> tuple[Tensor, ...]:
        return tuple(torch.randn(BATCH, length, DIM + 1) for length in lengths)

    layer = Decoder().eval()
    lengths = {name: torch.export.Dim(name, min=2, max=400) for name in ("items", "source")}
    with torch.no_grad():
        shapes = tuple({1: length} for length in lengths.values())
        exported = torch.export.export(
            layer, make_items(6, 9), dynamic_shapes=shapes, strict=strict
        ).module()
        for sizes in ((6, 9), (2, 2), (5, 11), (9, 4), (150, 333)):
            items = make_items(*sizes)
            close(exported(*items), layer(*items))


class TextModel(nn.Module):
    """A model from tokens to tokens, of plain tensors."""

    def __init__(self, positions: str, *, encodes: bool):
        super().__init__()
        core = regard.Transformer(
            layers=1, width=8, heads=2, feedforward=8, encodes=encodes, positions=positions
        )
        tokens = [regard.TokenReader(regard.embedding_table(9, 8)) for _ in range(2)]
        reader, writer = tokens[0] if encodes else None, regard.TokenWriter(tokens[1])
        self.model = regard.Model(reader=reader, core=core, writer=writer)

    def forward(
        self, target: Tensor, target_lengths: Tensor, source: Tensor, lengths: Tensor
    ) -> Tensor:
        given = regard.Padded(source, lengths) if self.model.reader is not None else None
        return self.model(given, regard.Padded(target, target_lengths))


@pytest.mark.parametrize(
    ("positions", "encodes"),
    [
        pytest.param("alibi", True, marks=pytest.mark.slow),
        pytest.param("sinusoidal", True, marks=pytest.mark.slow),  # as in untyped_exports.py
        ("rotary", True),
        ("relative", False),
    ],
)
def test_exported_model_reads_batches_of_any_size_and_length(positions, encodes):
    def make_batch(rows: int, target: int, source: int) -> tuple[Tensor, ...]:
        sizes = target, source
        items = [torch.randint(9, (rows, size)) for size in sizes]
        lengths = [torch.randint(1, size + 1, (rows,)) for size in sizes]
        return items[0], lengths[0], items[1], lengths[1]

    model = TextModel(positions, encodes=encodes).eval()
    rows, target, source = (
        torch.export.Dim(name, min=least, max=999)
        for name, least in zip("bts", (2, 3, 2), strict=True)
    )
    shapes = ({0: rows, 1: target}, {0: rows}, {0: rows, 1: source}, {0: rows})
    with torch.no_grad():
        exported = torch.export.export(
            model, make_batch(2, 5, 6), dynamic_shapes=shapes, strict=False
        ).module()
        for sizes in ((2, 5, 6), (3, 3, 2), (2, 300, 301)):  # a table of sines has 256 rows
            batch = make_batch(*sizes)
            close(exported(*batch), model(*batch))


@soft_cells
def test_vmapped_read_equals_the_batched_one(name, kernel):
    read, inputs = make_reader(name, kernel), tuple(x.detach() for x in make_tensors())
    close(torch.func.vmap(read)(*(x.unsqueeze(1) for x in inputs)).squeeze(1), read(*inputs))


@cells
def test_per_row_gradients_equal_rows_of_the_batch_gradient(name, kernel):
    if name == "gumbel":  # single rows draw other numbers
        return
    read, (query, keys, values, lengths) = make_reader(name, kernel), make_tensors()

    def total(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        return read(query[None], keys[None], values[None], lengths[None]).square().sum()

    each = torch.func.vmap(torch.func.grad(total, (0, 1, 2)))
    mapped = each(query.detach(), keys.detach(), values.detach(), lengths)
    out = read(query, keys, values, lengths).square().sum()
    gradients = torch.autograd.grad(out, (query, keys, values))
    for actual, expected in zip(mapped, gradients, strict=True):
        close(actual, expected)
    summed = torch.func.grad(
        lambda q: torch.vmap(total)(q, keys.detach(), values.detach(), lengths).sum()
    )
    close(summed(query.detach()), gradients[0])


@pytest.mark.parametrize("kernel", ["reference", "gather"])
def test_vmap_of_random_choices_needs_randomness_and_samples_differ(kernel):
    query, keys, values, _ = (x.detach() for x in make_tensors())

    def run_query(query: Tensor) -> Tensor:
        return attend(query, (keys[0], values[0]), choice=FEW["gumbel"], kernel=kernel)

    read = torch.vmap(run_query, randomness="different")
    out = read(query[:1].expand(40, -1, -1, -1))
    assert (out[0] != out[1:]).any()
    assert (
        (out.unsqueeze(-2) == values[0].unsqueeze(-3)).all(-1).any(-1).all()
    )  # each is one of the values


@pytest.mark.parametrize("kernel", ["reference", "gather"])
def test_reinforce_inside_a_transform(kernel):
    choice = Hard("reinforce")
    query, keys, values, _ = (x.detach() for x in make_tensors())

    def loss(query: Tensor) -> Tensor:
        with reinforce(choice) as samples:
            cost = (
                attend(query, (keys, values), choice=choice, kernel=kernel).square().sum((1, 2, 3))
            )
        return (cost + samples.surrogate(cost)).sum()

    torch.manual_seed(5)
    actual = torch.func.grad(loss)(query)
    query.requires_grad_()
    torch.manual_seed(5)
    close(actual, torch.autograd.grad(loss(query), query)[0])


@soft_cells
def test_read_of_fake_tensors_has_the_right_shape_and_caches_nothing(name, kernel):
    options = {"score": SCORES[name](), "mask": causal()}
    shapes = (2, 5, DIM), (2, 5, DIM), (2, 5, VALUE_DIM)
    with FakeTensorMode(allow_non_fake_inputs=True):
        query, keys, values = (torch.randn(shape) for shape in shapes)
        assert attend(query, (keys, values), kernel=kernel, **options).shape == (2, 5, VALUE_DIM)
    query, keys, values = (torch.randn(shape) for shape in shapes)
    out = attend(query, (keys, values), kernel=kernel, **options)
    close(out, attend(query, (keys, values), kernel="reference", **options))


@cells
def test_autocast_computes_in_half_precision(name, kernel):
    read, inputs = make_reader(name, kernel).float(), make_tensors()
    single = [x.detach().bfloat16().float().requires_grad_() for x in inputs[:3]]
    torch.manual_seed(5)
    with torch.autocast("cpu", torch.bfloat16):
        out = read(*single, inputs[3])
    if name not in SCORES:
        assert out.dtype == torch.bfloat16
    torch.manual_seed(5)
    exact = read(*single, inputs[3])
    if name not in FEW:  # others may pick another key where two scores nearly agree
        assert (out.float() - exact).abs().max() <= 2**-4 * exact.abs().max()
    out.float().sum().backward()
    assert all(x.grad.isfinite().all() for x in single)


@pytest.mark.parametrize(
    "bias",
    [pytest.param(bias, marks=() if bias in COMPILED else pytest.mark.slow) for bias in BIASES],
)
def test_layer_is_compiled_once_for_all_lengths_without_graph_breaks(bias):
    torch._dynamo.reset()  # the limit of compilations of a function counts those of other tests
    layer = MultiHead(DIM + 1, num_heads=HEADS, bias=BIASES[bias]()).eval()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="eager")
    for length in (5, 7, 9):
        x = torch.randn(2, length, DIM + 1)
        close(compiled(x, mask=causal()), layer(x, mask=causal()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_reads_in_half_precision_are_compiled_as_one_graph(dtype):
    def read(query: Tensor, keys: Tensor) -> Tensor:
        return attend(query, (keys, keys), mask=causal())

    query, keys = torch.randn(2, BATCH, HEADS, KEYS, DIM, dtype=dtype)
    compiled = torch.compile(read, backend="eager", fullgraph=True)
    assert torch.equal(compiled(query, keys), read(query, keys))
