"""Claims of the lectures on recurrence: steps in a row, cost, what remains of the first item."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils.flop_counter import FlopCounterMode

from regard.attention.attend import attend, attention_weights
from regard.attention.masks import Padded
from regard.attention.memory import Memory
from regard.attention.scores import Dot
from regard.layers.read import Read
from regard.layers.recurrent.cells import CELLS
from regard.layers.recurrent.self_attentive import SelfAttentiveCell
from regard.models.cores.recurrent import Recurrent
from regard.models.cores.transformer import Transformer
from regard.models.writers.tags import TagWriter
from tests.shapes import without_checks

WIDTH, HIDDEN = 5, 8
every_cell = pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])


def recurrent(**fields) -> Recurrent:
    sizes = {"width": WIDTH, "hidden": HIDDEN, "attention_hidden": 7, "directions": 1}
    return Recurrent(**(sizes | fields)).double().eval()


def transformer(**fields) -> Transformer:
    return Transformer(layers=2, width=6, heads=2, feedforward=9, **fields).double().eval()


def source_of(length: int, width: int, *, rows: int = 1, grad: bool = False) -> Padded:
    items = torch.randn(rows, length, width, dtype=torch.float64, requires_grad=grad)
    return Padded(items, torch.full((rows,), length))


def longest_chain(out: Tensor) -> int:
    """Return the length of the longest chain of operations that need each other's results."""
    assert out.grad_fn is not None
    lengths: dict[Node, int] = {}
    stack = [out.grad_fn]
    while stack:
        inputs = [node for node, _ in stack[-1].next_functions if node is not None]
        missing = [node for node in inputs if node not in lengths]
        if missing:
            stack += missing
        else:
            node = stack.pop()
            lengths[node] = 1 + max((lengths[node] for node in inputs), default=0)
    return lengths[out.grad_fn]


def is_zero(out: Tensor, item: Tensor) -> bool:
    """Return True if `item` has no effect on `out`, to first order."""
    (grad,) = torch.autograd.grad(out.square().sum(), item, allow_unused=True, retain_graph=True)
    return grad is None or not grad.any()


def test_transformer_encodes_all_positions_at_once():
    core = transformer()
    chains = {
        longest_chain(core.encode(source_of(length, 6, grad=True)).items) for length in (3, 9, 27)
    }
    assert len(chains) == 1


def test_transformer_calls_each_read_once_for_any_number_of_positions():
    core, calls = transformer(), []
    for module in core.modules():
        if isinstance(module, Read):
            module.register_forward_hook(lambda *_: calls.append(1))
    for length in (3, 27):
        calls.clear()
        core(torch.randn(1, length, 6).double(), core.start(source_of(4, 6)))
        assert len(calls) == 2 + 2 * 2  # encoder blocks, decoder blocks with two each


@pytest.mark.parametrize("cell", ["rnn", "lstm"])  # the steps of a gru are one node of the graph
def test_recurrent_encoder_takes_as_many_steps_in_a_row_as_positions(cell):
    core = recurrent(cell=cell)
    chains = [
        longest_chain(core.encode(source_of(length, WIDTH, grad=True)).items)
        for length in (3, 9, 27)
    ]
    per_step = (chains[1] - chains[0]) / 6
    assert per_step >= 2  # product and nonlinearity
    assert (chains[2] - chains[1]) / 18 == per_step


@every_cell
def test_every_path_between_two_positions_passes_all_states_between_them(cell):
    layer = CELLS[cell](WIDTH, HIDDEN, context_dim=0).double()
    items = [torch.randn(1, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(9)]

    def last_state(cut: int | None) -> Tensor:
        state = layer.begin(1)
        for position, item in enumerate(items):
            state = layer(layer.project(item), state)
            state = tuple(part.detach() for part in state) if position == cut else state
        return state[0]

    assert not is_zero(last_state(None), items[0])
    for cut in range(8):  # without any one of them, nothing of the first item arrives
        assert is_zero(last_state(cut), items[0])


@every_cell
def test_attention_reads_every_position_without_a_state_between(cell):
    core, length = recurrent(cell=cell), 9
    state = core.start(source_of(length, WIDTH))
    values = state.memory.values.requires_grad_()
    context = core.read(state.cells[0][0].detach().unsqueeze(1), state.memory).sum()
    (grad,) = torch.autograd.grad(context, values)
    assert (grad[0].abs().amin(-1) > 0).all()


def test_self_attention_of_a_cell_reads_every_earlier_state_without_one_between():
    cell = SelfAttentiveCell(WIDTH, HIDDEN, 7, cell="rnn").double()
    items = torch.randn(1, 9, WIDTH, dtype=torch.float64)
    past = cell.begin(1)
    with torch.no_grad():
        for projected in cell.project(items).unbind(1):
            past = cell(projected, past)
    keys, values = past.memory.keys, past.memory.values.clone().requires_grad_()
    past = past._replace(memory=Memory(keys, values, mapped_by=cell.read.score))
    new = cell(cell.project(torch.randn(1, WIDTH, dtype=torch.float64)), past)
    (grad,) = torch.autograd.grad(new.read.sum(), values)
    assert (grad[0].abs().amin(-1) > 0).all()


def first_item_gradients(
    make: Callable[[], Callable[[Tensor], list[Tensor]]], length: int
) -> list[float]:
    """Return the gradient norm of each output for the first of `length` items, over 5 models."""
    norms = []
    for _ in range(5):
        outputs_of = make()
        items = torch.randn(1, length, WIDTH, dtype=torch.float64, requires_grad=True)
        norms.append(
            [
                torch.autograd.grad(out.sum(), items, retain_graph=True)[0][0, 0]
                for out in outputs_of(items)
            ]
        )
    return [float(torch.stack(each).norm(dim=-1).mean()) for each in zip(*norms, strict=True)]


@every_cell
def test_last_state_forgets_the_first_item_and_the_context_vector_does_not(cell):
    def make() -> Callable[[Tensor], list[Tensor]]:
        core = recurrent(cell=cell)

        def outputs(items: Tensor) -> list[Tensor]:
            state = core.start(Padded(items, torch.tensor([items.shape[1]])))
            return [state.cells[0][0], state.context]  # s_0 = h_n and c_0

        return outputs

    last, context = zip(*(first_item_gradients(make, length) for length in (5, 80)), strict=True)
    assert last[1] < 1e-4 * last[0]  # exponentially
    assert context[1] > context[0] * 5 / 80 / 4  # as the weight of one of n items, 1 / n


def test_gradient_of_the_last_state_is_bounded_by_a_power_of_the_distance():
    # ||d h_n / d x_1|| <= ||A|| ||B||^(n - 1), since |tanh'| <= 1
    layer = CELLS["rnn"](WIDTH, HIDDEN, context_dim=0).double()
    with torch.no_grad():
        layer.state_weight.mul_(0.6 / torch.linalg.matrix_norm(layer.state_weight, 2))
    for length in (2, 5, 11):
        items = torch.randn(length, 1, WIDTH, dtype=torch.float64)

        def last(first: Tensor, items: Tensor = items) -> Tensor:
            state = layer(layer.project(first), layer.begin(1))
            for item in items[1:]:
                state = layer(layer.project(item), state)
            return state[0][0]

        jacobian = torch.autograd.functional.jacobian(last, items[0])[:, 0]
        norm = torch.linalg.matrix_norm(jacobian, 2)
        assert 0 < norm <= torch.linalg.matrix_norm(layer.input_weight, 2) * 0.6 ** (length - 1)


def test_rnn_with_self_attention_forgets_less_than_the_same_rnn_without():
    def make() -> Callable[[Tensor], list[Tensor]]:
        reading = SelfAttentiveCell(WIDTH, HIDDEN, 7, cell="rnn").double()
        plain = reading.cell

        def outputs(items: Tensor) -> list[Tensor]:
            state, past = plain.begin(1), reading.begin(1)
            for item in items.unbind(1):
                state = plain(plain.project(item), state)
                past = reading(reading.project(item), past)
            return [state[0], past.output]

        return outputs

    with without_checks():
        plain, reading = zip(
            *(first_item_gradients(make, length) for length in (5, 40)), strict=True
        )
    assert plain[1] < 1e-2 * plain[0]
    assert reading[1] > reading[0] * 5 / 40 / 4
    assert reading[1] > 10 * plain[1]


def accuracy_after_training(
    read_out: Callable[[Recurrent, Tensor], Tensor], core: Recurrent, length: int
) -> float:
    """Train a core to name the class of the first item among noise; return the accuracy."""
    classes = torch.eye(4, WIDTH, dtype=torch.float64) * 4
    out = nn.Linear(core.memory_dim, 4).double()
    optimizer = torch.optim.Adam([*core.parameters(), *out.parameters()], lr=0.02)

    def batch(rows: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(4, (rows,))
        items = torch.randn(rows, length, WIDTH, dtype=torch.float64) * 0.3
        items[:, 0] += classes[labels]
        return items, labels

    for _ in range(40):
        items, labels = batch(32)
        loss = nn.functional.cross_entropy(out(read_out(core, items)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        items, labels = batch(500)
        return (out(read_out(core, items)).argmax(-1) == labels).double().mean().item()


def test_trained_attention_remembers_the_first_of_fifty_items_and_the_last_state_does_not():
    def start(core: Recurrent, items: Tensor):
        return core.start(Padded(items, torch.full((len(items),), items.shape[1])))

    core = recurrent(cell="gru", hidden=16, attention="none")
    assert (
        accuracy_after_training(lambda core, items: start(core, items).cells[0][0], core, 50) < 0.5
    )
    core = recurrent(cell="gru", hidden=16, attention="additive")
    assert accuracy_after_training(lambda core, items: start(core, items).context, core, 50) > 0.95


def flops(run: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run()
    return counter.get_total_flops()


@every_cell
@pytest.mark.parametrize("attention", ["none", "dot"])
def test_time_is_linear_in_both_lengths_without_attention_and_has_their_product_with_it(
    cell, attention
):
    core = recurrent(
        cell=cell, attention=attention, kernel="reference" if attention == "dot" else "auto"
    )

    def cost(source: int, target: int) -> int:
        targets = torch.randn(1, target, WIDTH, dtype=torch.float64)
        return flops(lambda: core(targets, core.start(source_of(source, WIDTH))))

    mixed = (
        cost(23, 17) - cost(7, 17) - cost(23, 5) + cost(7, 5)
    )  # the coefficient of m t, times 16 * 12
    assert cost(23, 5) > cost(7, 5)
    assert cost(7, 17) > cost(7, 5)
    # a score and a weighted value for each pair: 2 hidden operations each
    assert mixed == (0 if attention == "none" else 4 * HIDDEN * 16 * 12)


@pytest.mark.parametrize("attention", ["additive", "concat", "general", "dot"])
def test_number_of_weights_is_the_product_of_the_lengths(attention):
    core, numbers = recurrent(cell="gru", attention=attention), []

    def count(read: Read, inputs: tuple, _: Tensor) -> None:
        query, memory = inputs
        numbers.append(attention_weights(query, memory, score=read.score).numel())

    core.read.register_forward_hook(count)
    for source, target in ((3, 5), (7, 5), (7, 11)):
        numbers.clear()
        core(
            torch.randn(1, target, WIDTH, dtype=torch.float64), core.start(source_of(source, WIDTH))
        )
        assert sum(numbers) == source * (target + 1)  # c_0 .. c_t


def test_inner_products_of_all_queries_and_keys_cost_queries_times_keys_times_size():
    query, keys = torch.randn(3, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    assert flops(lambda: Dot()(query, keys)) == 2 * 3 * 5 * 7
    assert (
        flops(lambda: attend(query, (keys, keys), score=Dot(), kernel="reference"))
        == 2 * 2 * 3 * 5 * 7
    )


def test_outputs_come_at_each_step_or_after_the_whole_input():
    """Tag i needs x_1 .. x_i of a forward encoder, the first output of a decoder all of them."""
    core, writer = recurrent(), TagWriter(HIDDEN, 3).double()
    source = source_of(5, WIDTH, grad=True)

    def inputs_of(out: Tensor) -> list[int]:
        (grad,) = torch.autograd.grad(out.square().sum(), source.items, retain_graph=True)
        return grad[0].any(-1).nonzero().flatten().tolist()

    tags = writer.answer(core.encode(source))[0]
    assert [inputs_of(tag) for tag in tags] == [list(range(i + 1)) for i in range(5)]
    target = torch.randn(1, 1, WIDTH, dtype=torch.float64)
    assert inputs_of(core(target, core.start(source))[0, 0]) == list(range(5))
