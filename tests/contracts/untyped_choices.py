"""Choices inside torch's transforms: compile, export, vmap, derivatives, autocast.

Run by test_transforms.py in a process of its own, without the shape checks of the other tests.
"""

import pytest
import torch
from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.choices import Choice, Hard, Sparse, TopK, reinforce
from regard.attention.kernels import gather
from regard.attention.masks import causal, padding
from tests.helpers import close

BATCH, HEADS, QUERIES, KEYS, DIM, VALUE_DIM = 2, 3, 5, 7, 11, 13
FEW = {"hard": Hard(), "gumbel": Hard("gumbel", temperature=0.7), "top": TopK(3)}
SPARSE = {
    "sparse-1.3": Sparse(1.3),
    "sparse-1.5": Sparse(1.5),
    "sparse-2": Sparse(2),
    "sparse-3": Sparse(3.0),
}
CELLS = [("reference", choice) for choice in FEW | SPARSE] + [("gather", choice) for choice in FEW]
cells = pytest.mark.parametrize(("kernel", "choice"), CELLS)


class ChoiceReader(nn.Module):
    """Read under a causal and a padding mask with fully masked rows."""

    def __init__(self, choice: Choice, kernel: str):
        super().__init__()
        self.choice = choice
        self.kernel = kernel

    def forward(self, query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        mask = causal() & padding(lengths)
        return attend(query, (keys, values), choice=self.choice, mask=mask, kernel=self.kernel)


def make_reader(choice: str, kernel: str) -> ChoiceReader:
    return ChoiceReader((FEW | SPARSE)[choice], kernel)


def make_tensors() -> tuple[Tensor, ...]:
    shapes = ((QUERIES, DIM), (KEYS, DIM), (KEYS, VALUE_DIM))
    tensors = [
        torch.randn(BATCH, HEADS, *shape, dtype=torch.float64, requires_grad=True)
        for shape in shapes
    ]
    return (*tensors, torch.tensor([7, 0]))


@pytest.mark.parametrize(
    ("kernel", "choice", "tile"),
    [
        ("reference", "sparse-2", 0),
        ("reference", "sparse-3", 0),
        ("gather", "gumbel", 40),
        ("gather", "top", 1 << 20),
    ],
)
def test_compiled_read_equals_the_eager_one_without_graph_breaks(monkeypatch, kernel, choice, tile):
    monkeypatch.setattr(gather, "TILE", tile)
    torch.compiler.reset()
    read, inputs = make_reader(choice, kernel), make_tensors()
    compiled = torch.compile(read, fullgraph=True, backend="aot_eager")
    results = []
    for function in (read, compiled):
        torch.manual_seed(5)
        out = function(*inputs)
        weighting = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
        results.append([out, *torch.autograd.grad(out, inputs[:3], weighting)])
    for expected, actual in zip(*results, strict=True):
        close(actual, expected)


@cells
def test_exported_read_equals_the_eager_one(kernel, choice):
    read, inputs = make_reader(choice, kernel), tuple(x.detach() for x in make_tensors())
    with torch.no_grad():
        exported = torch.export.export(read, inputs).module()
        torch.manual_seed(5)
        expected = read(*inputs)
        torch.manual_seed(5)
        close(exported(*inputs), expected)


@cells
def test_per_row_gradients_equal_rows_of_the_batch_gradient(kernel, choice):
    if choice == "gumbel":  # single rows draw other numbers
        return
    read, (query, keys, values, lengths) = make_reader(choice, kernel), make_tensors()

    def total(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        return read(query[None], keys[None], values[None], lengths[None]).square().sum()

    each = torch.func.vmap(torch.func.grad(total, (0, 1, 2)))
    mapped = each(query.detach(), keys.detach(), values.detach(), lengths)
    gradients = torch.autograd.grad(
        read(query, keys, values, lengths).square().sum(), (query, keys, values)
    )
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


@cells
def test_autocast_computes_in_half_precision(kernel, choice):
    read, inputs = make_reader(choice, kernel), make_tensors()
    single = [x.detach().bfloat16().float().requires_grad_() for x in inputs[:3]]
    torch.manual_seed(5)
    with torch.autocast("cpu", torch.bfloat16):
        out = read(*single, inputs[3])
    assert out.dtype == torch.bfloat16
    torch.manual_seed(5)
    exact = read(*single, inputs[3])
    if choice.startswith("sparse"):  # others may pick another key where two scores nearly agree
        assert (out.float() - exact).abs().max() <= 2**-4 * exact.abs().max()
    out.float().sum().backward()
    assert all(x.grad.isfinite().all() for x in single)
