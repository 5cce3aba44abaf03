"""Self-attentive cells: formulas by plain loops, equal plain cells, the initial past."""

import math

import pytest
import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.read import Role
from regard.layers.recurrent.cells import Cell
from regard.layers.recurrent.self_attentive import INITIAL_RECENCY_BIAS, SelfAttentiveCell
from regard.layers.recurrent.self_attentive_encoder import SelfAttentiveEncoder
from regard.look.hooks import record_weights
from tests.helpers import close

INPUT, HIDDEN, SIZE, STEPS, ROWS = 3, 2, 5, 4, 2
every_cell = pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
every_recency = pytest.mark.parametrize("recency", ["none", "learned"])
every_score = pytest.mark.parametrize(
    "score", ["additive", "concat", "general", "scaled-dot", "dot"]
)


def make_cell(cell: str, **options) -> SelfAttentiveCell:
    torch.manual_seed(2)
    size = HIDDEN if options.get("score") == "dot" else SIZE
    built = SelfAttentiveCell(INPUT, HIDDEN, size, cell=cell, **options).double()
    for parameter in built.parameters():  # biases too
        nn.init.normal_(parameter, std=0.7)
    return built


def make_items(rows: int = ROWS) -> Tensor:
    return torch.randn(rows, STEPS, INPUT, dtype=torch.float64)


def dot(first: list[float], other: list[float]) -> float:
    return math.fsum(a * b for a, b in zip(first, other, strict=True))


def matvec(matrix: Tensor, vector: list[float]) -> list[float]:
    return [dot(row, vector) for row in matrix.tolist()]


def add(*vectors: list[float]) -> list[float]:
    return [math.fsum(numbers) for numbers in zip(*vectors, strict=True)]


def align(cell: SelfAttentiveCell, score: str, state: list[float], query: list[float]) -> float:
    """Return align(h, q), where q is h_t (rnn, gru), or x_t, or [x_t; h~_{t-1}] (lstm)."""
    maps = [weight for weight in (cell.query_weight, cell.feedback_weight) if weight is not None]
    if score == "dot":
        return dot(state, matvec(torch.cat(maps, 1), query) if maps else query)
    both = matvec(torch.cat((cell.key_weight, *maps), 1), state + query)  # W [h; q]
    if score in ("additive", "concat"):
        return dot(cell.read.score.v.tolist(), [math.tanh(number) for number in both])
    key, mapped = matvec(cell.key_weight, state), matvec(torch.cat(maps, 1), query)
    return dot(key, mapped) / {"general": 1, "scaled-dot": math.sqrt(SIZE)}[score]


def read(
    cell: SelfAttentiveCell,
    score: str,
    query: list[float],
    states: list[list[float]],
    parts: list[list[float]],
):
    """Return the weights of the states h_i for a query, and the weighted sums of h_i or c_i."""
    # One bias per distance.
    by_distance = cell.read.bias.table.tolist() if cell.read.bias else [0.0] * STEPS
    biases = by_distance[: len(states)][::-1]  # the last state is 0 states ago
    scores = [
        math.exp(align(cell, score, h, query) + bias)
        for h, bias in zip(states, biases, strict=True)
    ]
    weights = [score / math.fsum(scores) for score in scores]
    return weights, [dot(weights, [part[k] for part in parts]) for k in range(HIDDEN)]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def plain_step(name: str, plain: Cell, x: list[float], before: list[float]) -> list[float]:
    """Return the next state of an rnn or gru after `before`."""
    inner = add(matvec(plain.input_weight, x), plain.bias.tolist())
    state = matvec(plain.state_weight, before)
    if name == "rnn":
        return [math.tanh(number) for number in add(inner, state)]
    r, z, n = (slice(k * HIDDEN, (k + 1) * HIDDEN) for k in range(3))
    reset, update = (
        [sigmoid(number) for number in add(inner[gate], state[gate])] for gate in (r, z)
    )
    past = [
        gate * number
        for gate, number in zip(reset, add(state[n], plain.state_bias.tolist()), strict=True)
    ]
    candidate = [math.tanh(number) for number in add(inner[n], past)]
    return [(1 - u) * new + u * old for u, new, old in zip(update, candidate, before, strict=True)]


@every_score
@every_recency
@pytest.mark.parametrize("name", ["rnn", "gru"])
def test_rnn_and_gru_are_the_lectures_formula(name, score, recency):
    cell, items = make_cell(name, score=score, recency=recency), make_items(1)
    h, c, weights = [], [0.0] * HIDDEN, []  # c_0 = h_0 = 0
    for x in items[0].tolist():
        h.append(plain_step(name, cell.cell, x, c))
        read_weights, c = read(cell, score, h[-1], h, h)
        weights.append(read_weights)
    past = cell.begin(1)
    with record_weights(cell) as maps:
        for projected in cell.project(items).unbind(1):
            past = cell(projected, past)
    close(past.output[0], torch.tensor(h[-1], dtype=torch.float64))
    close(past.read[0], torch.tensor(c, dtype=torch.float64))
    close(cell.run(items)[0][0], torch.tensor(h, dtype=torch.float64))
    assert [len(call[0, 0]) for call in maps["read"]] == [1, 2, 3, 4]  # the new state included
    for call, expected in zip(maps["read"], weights, strict=True):
        close(call[0, 0], torch.tensor(expected))


@every_score
@pytest.mark.parametrize("feeds_back", [True, False], ids=["paper", "released"])
@every_recency
def test_lstm_is_the_papers_formula(score, feeds_back, recency):
    cell = make_cell("lstm", score=score, feeds_back=feeds_back, recency=recency)
    items = make_items(1)
    plain, h, c, weights = cell.cell, [], [], []
    adaptive = memory = [0.0] * HIDDEN
    for x in items[0].tolist():
        query = x + adaptive if feeds_back else x
        if h:
            read_weights, adaptive = read(cell, score, query, h, h)
            _, memory = read(cell, score, query, h, c)
            weights.append(read_weights)
        inner = add(
            matvec(plain.input_weight, x), matvec(plain.state_weight, adaptive), plain.bias.tolist()
        )
        i, f, g, o = (inner[k * HIDDEN : (k + 1) * HIDDEN] for k in range(4))
        c.append(
            [sigmoid(f[k]) * memory[k] + sigmoid(i[k]) * math.tanh(g[k]) for k in range(HIDDEN)]
        )
        h.append([sigmoid(o[k]) * math.tanh(c[-1][k]) for k in range(HIDDEN)])
    with record_weights(cell) as maps:
        outputs, cells = cell.run(items)
    close(outputs[0], torch.tensor(h, dtype=torch.float64))
    close(cells[0], torch.tensor(c, dtype=torch.float64))
    # Nothing at the first step, then the previous states.
    assert [len(call[0, 0]) for call in maps["read"]] == [1, 2, 3]
    for call, expected in zip(maps["read"], weights, strict=True):
        close(call[0, 0], torch.tensor(expected))


def test_released_form_is_the_papers_with_no_feedback():
    paper, released, items = make_cell("lstm"), make_cell("lstm", feeds_back=False), make_items()
    nn.init.zeros_(paper.feedback_weight)
    weights = paper.state_dict()
    del weights["feedback_weight"]
    released.load_state_dict(weights)
    for first, other in zip(paper.run(items), released.run(items), strict=True):
        assert torch.equal(first, other)


@every_cell
@every_score
def test_untrained_cell_with_recency_is_nearly_a_plain_cell(cell, score):
    torch.manual_seed(5)
    size = HIDDEN if score == "dot" else SIZE
    ours = SelfAttentiveCell(
        INPUT, HIDDEN, size, cell=cell, score=score, recency="learned"
    ).double()
    table, items = ours.read.bias.table, make_items()
    with record_weights(ours) as maps:
        fresh = ours.run(items)[0]
    # Each other state has about exp(-INITIAL_RECENCY_BIAS) of the last one's weight: the scores
    # differ by less than 1.
    for call in maps["read"]:
        assert call[..., :-1].le(math.exp(1 - INITIAL_RECENCY_BIAS) * call[..., -1:]).all()
    nn.init.constant_(table[:1], 60.0)
    alone = ours.run(items)[0]
    plain, state = ours.cell, tuple(part.double() for part in ours.cell.begin(ROWS))
    for step, projected in enumerate(plain.project(items).unbind(1)):
        state = plain(projected, state)
        close(alone[:, step], state[0])
        assert (fresh[:, step] - state[0]).abs().max() < 0.05


def test_cell_without_recency_has_no_bias_and_reads_more_than_the_last_state():
    without, learned = make_cell("lstm"), make_cell("lstm", recency="learned")
    assert without.read.bias is None
    assert set(learned.state_dict()) - set(without.state_dict()) == {"read.bias.table"}


@every_cell
@every_score
def test_keys_are_projected_once_per_state(cell, score):
    ours, items = make_cell(cell, score=score), make_items()
    past = ours.begin(ROWS)
    for step, projected in enumerate(ours.project(items).unbind(1), start=1):
        past = ours(projected, past)
        assert past.memory.size == step
    states = past.memory.values[..., :HIDDEN]
    close(past.memory.keys, states if score == "dot" else states @ ours.key_weight.t())
    assert past.memory.mapped_by is ours.read.score


@every_cell
def test_first_step_reads_only_the_initial_state(cell):
    ours, items = make_cell(cell), make_items()
    final = tuple(torch.randn(ROWS, HIDDEN, dtype=torch.float64) for _ in range(ours.cell.parts))
    past = ours(ours.project(items[:, 0]), ours.init_from(final))
    expected = ours.cell(ours.cell.project(items[:, 0]), final)
    close(past.output, expected[0])
    assert past.memory.size == 2


@every_cell
def test_concat_has_one_matrix_and_is_additive_with_it(cell):
    concat, additive, items = make_cell(cell, score="concat"), make_cell(cell), make_items()
    additive.load_state_dict(concat.state_dict())
    for first, other in zip(concat.run(items), additive.run(items), strict=True):
        assert torch.equal(first, other)
    torch.manual_seed(4)
    fresh = SelfAttentiveCell(40, 30, 20, cell=cell, score="concat")
    every = fresh.key_weight, fresh.query_weight, fresh.feedback_weight
    weights = [weight for weight in every if weight is not None]
    bound = math.sqrt(6 / (20 + sum(w.shape[1] for w in weights)))  # of one layer on [h; q]
    for weight in weights:
        assert 0.9 * bound < weight.abs().max() <= bound


def make_encoder(cell: str, *, layers: int = 2, directions: int = 2) -> SelfAttentiveEncoder:
    def make(input_dim: int, role: Role) -> SelfAttentiveCell:
        return SelfAttentiveCell(input_dim, 6 // directions, SIZE, cell=cell, role=role)

    return SelfAttentiveEncoder(INPUT, 6, cell=make, layers=layers, directions=directions).double()


@every_cell
@pytest.mark.parametrize("directions", [1, 2])
def test_encoder_rows_are_independent_of_their_batch(cell, directions):
    encoder = make_encoder(cell, directions=directions)
    items = make_items(3)
    lengths = torch.tensor([2, 4, 0])
    batched = encoder(Padded(items, lengths))
    for row, length in enumerate(lengths.tolist()):
        assert batched.states[row, length:].eq(0).all()
        if length == 0:
            assert all(part[row].eq(0).all() for final in batched.finals for part in final)
            continue
        alone = encoder(Padded(items[row : row + 1, :length], lengths[row : row + 1]))
        close(batched.states[row, :length], alone.states[0])
        for ours, theirs in zip(batched.finals, alone.finals, strict=True):
            for part, other in zip(ours, theirs, strict=True):
                close(part[row], other[0])


@every_cell
def test_backward_direction_is_the_forward_one_of_the_reversed_row(cell):
    encoder, items = make_encoder(cell, layers=1), make_items(1)
    (states, ((final, *_),)), half = encoder(Padded(items, torch.tensor([STEPS]))), 3
    forwards, backwards = (side[0].run for side in (encoder.forward_cells, encoder.backward_cells))
    close(states[..., :half], forwards(items)[0])
    close(states[..., half:], backwards(items.flip(1))[0].flip(1))
    close(final, torch.cat((states[:, -1, :half], states[:, 0, half:]), -1))
