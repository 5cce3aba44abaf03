"""Recurrent core: formulas by hand, reads, and the initial state of the decoder."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from regard.attention.attend import attention_weights
from regard.attention.masks import Padded, Unpadded
from regard.attention.scores import Additive, Cosine, Dot, General, SoftCap
from regard.attention.scores.base import ScoreSizes
from regard.layers.read import Read
from regard.models.cores.config import STATE_SCORES, RecurrentConfig
from regard.models.cores.core import load_class
from regard.models.cores.recurrent import Recurrent
from tests.helpers import close

WIDTH, HIDDEN, STEPS, TIME, LENGTHS = 3, 10, 5, 7, (4, 7, 1)
CELLS = ("rnn", "gru", "lstm")
READING = ("additive", "general", "dot", "scaled-dot", "cosine", "location")
every_cell = pytest.mark.parametrize("cell", CELLS)


def make_case(**config) -> tuple[Recurrent, Padded, Tensor]:
    """Return a core, its source and its targets."""
    source = torch.randn(len(LENGTHS), TIME, WIDTH, dtype=torch.float64)
    targets = torch.randn(len(LENGTHS), STEPS, WIDTH, dtype=torch.float64)
    return make_core(**config), Padded(source, torch.tensor(LENGTHS)), targets


def make_core(**config) -> Recurrent:
    config = RecurrentConfig(**{"width": WIDTH, "hidden": HIDDEN, "attention_hidden": 11} | config)
    core = Recurrent(config, dropout=0.5).double().eval()
    for parameter in core.parameters():  # biases too, which start at zero
        nn.init.normal_(parameter, std=0.5)
    return core


def record_weights(core: Recurrent) -> list[Tensor]:
    """Return a list to which every later read appends its weights."""
    recorded: list[Tensor] = []

    def keep(read: Read, inputs: tuple) -> None:
        query, memory = inputs
        recorded.append(
            attention_weights(query, memory, score=read.score, choice=read.choice).squeeze(1)
        )

    assert core.read is not None
    core.read.register_forward_pre_hook(keep)
    return recorded


def test_rnn_with_additive_attention_equals_its_formula():
    core, source, targets = make_case(cell="rnn", hidden=2, attention_hidden=3, directions=1)
    out = core(targets, core.start(source))
    cell, score = core.cells[0], core.read.score
    a = torch.cat((cell.input_weight, cell.state_weight, cell.context_weight), 1)  # A' [x; s; c]
    encoder = core.encoder.rnn
    for row, length in enumerate(LENGTHS):
        h = [torch.zeros(2, dtype=torch.float64)]
        for x in source.items[row, :length]:
            inner = (
                encoder.weight_ih_l0 @ x
                + encoder.weight_hh_l0 @ h[-1]
                + encoder.bias_ih_l0
                + encoder.bias_hh_l0
            )
            h.append(torch.tanh(inner))
        s, states = h[-1], torch.stack(h[1:])

        def context(s: Tensor, states: Tensor) -> Tensor:
            e = torch.stack([score_of_states("additive", score, h_i, s) for h_i in states])
            alpha = e.exp() / e.exp().sum()
            return sum(alpha_i * h_i for alpha_i, h_i in zip(alpha, states, strict=True))

        c = context(s, states)
        for x, hidden in zip(targets[row], out[row], strict=True):
            s = torch.tanh(a @ torch.cat((x, s, c)) + cell.bias)
            c = context(s, states)
            close(
                hidden, torch.tanh(core.readout.weight @ torch.cat((s, c, x)) + core.readout.bias)
            )


def test_encoded_states_keep_mask_and_final_states_when_items_are_replaced():
    core, source, targets = make_case()
    encoded = core.encode(source)
    replaced = encoded._replace(items=encoded.items + 0)
    assert replaced.mask is encoded.mask is not None
    close(core(targets, core.begin(replaced)), core(targets, core.start(source)))
    unpadded = core.encode(Unpadded.of(source.items))
    assert unpadded.mask is unpadded._replace(items=unpadded.items).mask is None


def score_of_states(attention: str, score: nn.Module, h: Tensor, s: Tensor) -> Tensor:
    """Return align(h, s) of the lectures, options 1 and 2, and its other forms."""
    match attention:
        case "additive":
            return score.v @ torch.tanh(score.key_weight @ h + score.query_weight @ s)
        case "concat":
            return score.v @ torch.tanh(score.weight @ torch.cat((s, h)))
        case "general":
            return (score.key_weight @ h) @ (score.query_weight @ s)
        case "dot":
            return h @ s
    return h @ s / len(h) ** 0.5


@pytest.mark.parametrize("value_map", [None, 4], ids=["states", "W_V"])
@pytest.mark.parametrize("attention", ["additive", "concat", "general", "dot", "scaled-dot"])
@every_cell
def test_decoder_is_its_formula_for_every_alignment_and_value(cell, attention, value_map):
    core, source, targets = make_case(
        cell=cell, attention=attention, value_map=value_map, directions=1
    )
    out, layer = core(targets, core.start(source)), core.cells[0]
    encoded = core.encoder(source)
    for row, length in enumerate(LENGTHS):
        states = encoded.states[row, :length]
        values = states if value_map is None else states @ core.value_map.weight.T
        parts = [part[row] for part in encoded.finals[0]]

        def context(s: Tensor, states: Tensor, values: Tensor) -> Tensor:
            e = torch.stack(
                [score_of_states(attention, core.read.score, h, s) for h in states]
            ).exp()
            return sum(e_i / e.sum() * v_i for e_i, v_i in zip(e, values, strict=True))

        c = context(parts[0], states, values)
        for x, hidden in zip(targets[row], out[row], strict=True):
            parts = next_state(cell, layer, x, c, parts)
            c = context(parts[0], states, values)
            close(
                hidden,
                torch.tanh(core.readout.weight @ torch.cat((parts[0], c, x)) + core.readout.bias),
            )


def next_state(
    cell: str, layer: nn.Module, x: Tensor, c: Tensor, parts: list[Tensor]
) -> list[Tensor]:
    """Return the parts of the state after x and c, by the formulas of torch's cells."""
    s, of_s = parts[0], layer.state_weight
    known = layer.input_weight @ x + layer.context_weight @ c + layer.bias
    if cell == "rnn":
        return [torch.tanh(known + of_s @ s)]
    if cell == "gru":
        (r, z, n), (r_s, z_s, n_s) = known.chunk(3), (of_s @ s).chunk(3)
        r, z = torch.sigmoid(r + r_s), torch.sigmoid(z + z_s)
        return [(1 - z) * torch.tanh(n + r * (n_s + layer.state_bias)) + z * s]
    i, f, g, o = (known + of_s @ s).chunk(4)
    memory = torch.sigmoid(f) * parts[1] + torch.sigmoid(i) * torch.tanh(g)
    return [torch.sigmoid(o) * torch.tanh(memory), memory]


@pytest.mark.parametrize("in_order", [True, False])
def test_mapped_values_are_those_of_the_states_with_the_unit_matrix(in_order):
    torch.manual_seed(3)
    plain = Recurrent(width=WIDTH, hidden=HIDDEN, attention_hidden=11, in_order=in_order).double()
    mapped = Recurrent(
        width=WIDTH, hidden=HIDDEN, attention_hidden=11, value_map=HIDDEN, in_order=in_order
    ).double()
    unit = {"value_map.weight": torch.eye(HIDDEN, dtype=torch.float64)}
    mapped.load_state_dict(plain.state_dict() | unit)
    _, source, targets = make_case()
    if in_order:
        close(mapped(targets, mapped.start(source)), plain(targets, plain.start(source)))
    else:
        close(
            mapped.decode_set(targets, mapped.encode(source))[0],
            plain.decode_set(targets, plain.encode(source))[0],
        )


def test_map_of_values_that_nothing_reads_is_refused():
    with pytest.raises(ValueError, match=r"value_map must not be given with attention=none"):
        RecurrentConfig(attention="none", value_map=4)
    for part in ("encodes", "decodes"):
        with pytest.raises(ValueError, match=rf"value_map has no effect with {part}=False"):
            Recurrent(RecurrentConfig(value_map=4), **{part: False})


@every_cell
def test_seq2seq_without_attention_equals_layers_of_torch(cell):
    torch_layer = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[cell]
    core, source, targets = make_case(cell=cell, attention="none", directions=1)
    decoder, cells = torch_layer(WIDTH, HIDDEN, batch_first=True).double(), core.cells[0]
    with torch.no_grad():
        decoder.weight_ih_l0.copy_(cells.input_weight)
        decoder.weight_hh_l0.copy_(cells.state_weight)
        decoder.bias_ih_l0.copy_(cells.bias)
        decoder.bias_hh_l0.zero_()
        if cell == "gru":
            decoder.bias_hh_l0[2 * HIDDEN :] = cells.state_bias
    for row, length in enumerate(LENGTHS):
        _, last = core.encoder.rnn(source.items[row : row + 1, :length])
        states, _ = decoder(targets[row : row + 1], last)
        expected = torch.tanh(core.readout(torch.cat((states, targets[row : row + 1]), -1)))
        close(core(targets, core.start(source))[row], expected[0])


@every_cell
def test_bridge_maps_the_final_states_of_two_directions(cell):
    core, source, _ = make_case(cell=cell, attention="none")
    finals, (bridge,) = core.encoder(source).finals[0], core.bridges
    first = core.start(source).cells[0]
    close(first[0], torch.tanh(bridge.projections[0](finals[0])))
    if cell == "lstm":
        close(first[1], bridge.projections[1](finals[1]))


@pytest.mark.parametrize(
    ("layers", "decoder_layers", "reference"), [(3, 1, [2]), (2, 2, [0, 1]), (2, 4, [0, 0, 0, 1])]
)
def test_decoder_layers_start_from_the_encoders_counted_from_the_top(
    layers, decoder_layers, reference
):
    core, source, _ = make_case(layers=layers, decoder_layers=decoder_layers, directions=1)
    finals = core.encoder(source).finals
    for state, layer in zip(core.start(source).cells, reference, strict=True):
        assert torch.equal(state[0], finals[layer][0])


@pytest.mark.parametrize("attention", READING)
def test_reads_once_before_the_first_step_and_once_per_step(attention):
    core, source, targets = make_case(attention=attention, layers=2)
    recorded = record_weights(core)
    state = core.start(source)
    assert len(recorded) == 1
    core(targets, state)
    assert len(recorded) == 1 + STEPS
    assert (
        len({tuple(weights[1].tolist()) for weights in recorded}) == 1 + STEPS
    )  # different at every step


@pytest.mark.parametrize("attention", READING)
def test_weights_sum_to_one_over_the_row(attention):
    core, source, targets = make_case(attention=attention)
    recorded = record_weights(core)
    core(targets, core.start(source))
    absent = torch.arange(TIME) >= source.lengths[:, None]
    for weights in recorded:
        close(weights.sum(-1), torch.ones(len(LENGTHS), dtype=torch.float64))
        assert weights[absent].eq(0).all()


def test_context_is_read_by_the_state_of_the_top_layer():
    core, source, targets = make_case(layers=2)
    recorded = record_weights(core)
    state = core.start(source)
    for j in range(STEPS):
        _, state = core.step(targets[:, j], state)
        close(state.context, (recorded[-1].unsqueeze(1) @ state.memory.values).squeeze(1))
        reference = attention_weights(
            state.cells[-1][0].unsqueeze(1), state.memory, score=core.read.score
        ).squeeze(1)
        close(recorded[-1], reference)


def test_without_attention_only_the_final_state_is_used():
    core, source, targets = make_case(attention="none", cell="gru")
    assert not any(isinstance(module, Read) for module in core.modules())
    state = core.start(source)
    assert state.memory is None
    assert state.context is None
    inner = state.cells[0][0]
    (gradient,) = torch.autograd.grad(core(targets, state).sum(), [inner], retain_graph=True)
    (through_all,) = torch.autograd.grad(
        core(targets, state).sum(), [core.encoder.rnn.weight_ih_l0], retain_graph=True
    )
    (through_state,) = torch.autograd.grad(inner, [core.encoder.rnn.weight_ih_l0], gradient)
    close(through_state, through_all)


@pytest.mark.parametrize(("attention", "score"), [("additive", Additive), ("general", General)])
def test_keys_are_projected_once_per_source(attention, score, monkeypatch):
    calls, original = [], score.map_keys

    def count_calls(self, keys):
        calls.append(keys.shape)
        return original(self, keys)

    monkeypatch.setattr(score, "map_keys", count_calls)
    core, source, targets = make_case(attention=attention)
    state = core.start(source)
    core(targets, state)
    state = state.select(torch.tensor([2, 1])).reorder(torch.tensor([1, 0]))
    core.step(targets[:2, 0], state)
    assert calls == [(len(LENGTHS), TIME, HIDDEN)]


def test_states_are_immutable():
    core, source, targets = make_case()
    state = core.start(source)
    assert state.reorder(torch.tensor([1, 2, 0])).memory is state.memory
    before = [part.clone() for cell in state.cells for part in cell] + [state.context.clone()]
    core(targets, state)
    core.step(targets[:, 0], state)
    after = [part for cell in state.cells for part in cell] + [state.context]
    for a, b in zip(before, after, strict=True):
        assert torch.equal(a, b)


def test_source_without_items_is_an_empty_memory():
    core, source, targets = make_case()
    source = source._replace(lengths=torch.tensor([4, 0, 7]))
    recorded = record_weights(core)
    out = core(targets, core.start(source))
    assert out.isfinite().all()
    assert all(weights[1].eq(0).all() for weights in recorded)


def test_concat_attention_is_additive_with_one_matrix():
    concat, additive = make_core(attention="concat"), make_core(attention="additive")
    weights = concat.state_dict()
    weight = weights.pop("read.score.weight")
    weights |= {
        "read.score.query_weight": weight[:, :HIDDEN],
        "read.score.key_weight": weight[:, HIDDEN:],
    }
    additive.load_state_dict(weights)
    _, source, targets = make_case()
    close(concat(targets, concat.start(source)), additive(targets, additive.start(source)))


def test_location_attention_does_not_depend_on_the_encoders_states():
    core, source, targets = make_case(attention="location", max_positions=TIME)
    state = core.start(source)
    recorded = record_weights(core)
    for memory in (state.memory, replace(state.memory, keys=torch.randn_like(state.memory.keys))):
        core.step(targets[:, 0], replace(state, memory=memory))
    assert torch.equal(recorded[0], recorded[1])
    close(recorded[0].sum(-1), torch.ones(len(LENGTHS), dtype=torch.float64))


def test_location_attention_rejects_longer_sources():
    core, source, _ = make_case(attention="location", max_positions=TIME - 1)
    with pytest.raises(ValueError, match=r"at most max_keys=6 .*, got 7"):
        core.start(source)


@pytest.mark.parametrize("name", STATE_SCORES)
def test_scores_of_the_table_are_created(name):
    score = load_class(STATE_SCORES[name]).create(ScoreSizes(6, 6, 5, max_keys=9))
    assert type(score).__name__ == STATE_SCORES[name].rpartition(":")[2]
    assert score(torch.randn(2, 3, 6), torch.randn(2, 4, 6)).shape == (2, 3, 4)


def test_own_score_takes_the_place_of_that_of_the_config():
    config = RecurrentConfig(width=6, hidden=8, attention="additive")
    core = Recurrent(config, score=SoftCap(Cosine(), 3.0))
    assert isinstance(core.read.score, SoftCap)
    assert core.read.choice.log_beta is not None  # cosines learn a factor, capped or not
    with pytest.raises(ValueError, match="`score` must be None without an encoder"):
        Recurrent(config, decodes=False, score=Dot())
