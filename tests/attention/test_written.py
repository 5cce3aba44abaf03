"""Memories that are written: three forms of one recurrence, and the dictionary that it keeps."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from regard.attention.attend import attend
from regard.attention.choices import Proportional
from regard.attention.masks import causal, padding
from regard.attention.memory import DeltaMemory, FadingMemory, LinearState, Memory, WrittenMemory
from regard.attention.scores import FeatureMap
from regard.ops import dispatch
from regard.ops.delta_rule import CHUNK, Writes, by_chunks, implied_weights, recur, write
from tests.helpers import NEEDS_NATIVE, close

BATCH, HEADS, DIM, VALUE_DIM = 3, 2, 7, 5
WIDE = torch.float64
KINDS = pytest.mark.parametrize("kind", [FadingMemory, DeltaMemory])


def make_writes(
    kind: type[WrittenMemory], time: int, dtype: torch.dtype = WIDE
) -> tuple[Tensor, Writes, Tensor]:
    """Draw queries, pairs and a state, all of which have gradients."""
    lead = BATCH, HEADS
    query, keys = (normalize(torch.randn(*lead, time, DIM, dtype=WIDE), dim=-1) for _ in range(2))
    values, decay, strength = (torch.randn(*lead, time, n, dtype=WIDE) for n in (VALUE_DIM, 1, 1))
    gates = [logsigmoid(decay)] + [strength.sigmoid()] * (kind is DeltaMemory)
    state = torch.randn(*lead, DIM, VALUE_DIM, dtype=WIDE)
    query, keys, values, *gates, state = (
        x.to(dtype).requires_grad_() for x in (query, keys, values, *gates, state)
    )
    return query, Writes(keys, values, *gates), state


def gates_of(writes: Writes, time: slice = slice(None)) -> dict[str, Tensor]:
    gates = {"log_decay": writes.log_decay[..., time, 0]}
    if writes.strength is not None:
        gates["strength"] = writes.strength[..., time, 0]
    return gates


def gradients(out: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    weighting = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return torch.autograd.grad((out * weighting).sum(), inputs, materialize_grads=True)


@KINDS
@pytest.mark.parametrize("time", [0, 1, CHUNK, 2 * CHUNK + 3])
def test_chunks_and_implied_weights_equal_the_formula(kind, time):
    query, writes, state = make_writes(kind, time)
    inputs = [x for x in (query, *writes, state) if x is not None]
    formula, end = recur(query, writes, state)
    chunks, chunks_end = by_chunks(query, writes, state)
    close(chunks, formula)
    close(chunks_end, end)
    pairs = (
        gradients(torch.cat((o, s), -2), inputs) for o, s in ((chunks, chunks_end), (formula, end))
    )
    for actual, expected in zip(*pairs, strict=True):
        close(actual, expected)
    from_empty = recur(query, writes, torch.zeros_like(state))[0]
    close(implied_weights(query, writes) @ writes.values, from_empty)


@NEEDS_NATIVE
@KINDS
@pytest.mark.parametrize("time", [1, 9, 70])
def test_compiled_loops_equal_the_formula_and_leave_the_old_state(monkeypatch, kind, time):
    query, writes, state = make_writes(kind, time, torch.float32)
    before, formula = state.detach().clone(), recur(query, writes, state)
    ran = []
    find = dispatch.native

    def spy(*arguments):
        ran.append(find(*arguments))
        return ran[-1]

    monkeypatch.setattr("regard.ops.delta_rule.native", spy)
    assert write(query, writes, state)[0].requires_grad
    assert not any(ran)
    with torch.no_grad():
        for actual, expected in zip(write(query, writes, state), formula, strict=True):
            close(actual, expected)
    assert ran[-1] is not None
    assert torch.equal(state, before)


@KINDS
def test_any_course_equals_all_pairs_at_once(kind):
    """In pieces, of reordered rows, with a decay for each head, kept pairs or none."""
    query, writes, _ = make_writes(kind, 12)
    gates = gates_of(writes) | {"log_decay": torch.tensor([[-0.1], [-2.0]], dtype=WIDE)}
    options = {"key_dim": DIM, "value_dim": VALUE_DIM, "dtype": WIDE}
    whole, end = kind.empty((BATCH, HEADS), **options).step(query, *writes[:2], **gates)
    memory, outs = kind.empty((BATCH, HEADS), **options, keeps_writes=True), []
    rows = torch.tensor([2, 0, 0])
    for first, last in ((0, 5), (5, 6), (6, 12)):
        some = {name: x[..., first:last] if x.dim() > 2 else x for name, x in gates.items()}
        items = [x[..., first:last, :] for x in (query, *writes[:2])]
        out, longer = memory.step(*items, **some)
        close(out, whole[..., first:last, :])
        twice = memory.select(rows).step(*(x[rows] for x in items), **{
            name: x[rows] if x.dim() > 2 else x for name, x in some.items()
        })  # fmt: skip
        close(twice[0], out[rows])
        close(twice[1].weights(items[0][rows]), longer.weights(items[0])[rows])
        memory = longer
        outs.append(out)
    close(memory.state, end.state)
    assert (memory.length, end.length) == (12, 12)
    close(memory.read(query[..., -1:, :]), whole[..., -1:, :])
    close(memory.weights(query[..., 9:, :]) @ writes.values, whole[..., 9:, :])
    with pytest.raises(ValueError, match="weights need all pairs"):
        end.weights(query)
    assert memory.crop(12) is memory
    empty = memory.crop(0)
    close(empty.step(query, *writes[:2], **gates)[0], whole)
    with pytest.raises(ValueError, match=f"size of a {kind.__name__} must be 0 or 12"):
        memory.crop(5)


@KINDS
@pytest.mark.parametrize("side", ["left", "right"])
def test_hidden_pairs_are_absent(kind, side):
    query, writes, _ = make_writes(kind, 9)
    hidden = torch.tensor([0, 9, 4])
    mask = ~padding(hidden) if side == "left" else padding(9 - hidden)
    empty = kind.empty((BATCH, HEADS), key_dim=DIM, value_dim=VALUE_DIM, dtype=WIDE)
    out, memory = empty.step(query, *writes[:2], **gates_of(writes), mask=mask)
    seen = slice(4, 9) if side == "left" else slice(0, 5)
    items = [x[2:, :, seen, :] for x in (query, *writes[:2])]
    gates = {name: x[2:] for name, x in gates_of(writes, seen).items()}
    one = kind.empty((1, HEADS), key_dim=DIM, value_dim=VALUE_DIM, dtype=WIDE)
    short, end = one.step(*items, **gates)
    close(out[2:, :, seen], short)
    close(memory.state[2:], end.state)
    assert memory.state[1].abs().max() == 0
    grads = gradients(memory.state, [writes.keys, writes.values, writes.log_decay])
    assert all(grad[1].abs().max() == 0 for grad in grads)
    with pytest.raises(ValueError, match="must be the same for every query"):
        empty.extend(*writes[:2], mask=causal())


def test_delta_rule_is_put_of_a_dictionary():
    keys, values = torch.eye(6, dtype=WIDE)[[0, 3, 1, 3, 0]], torch.randn(5, 4, dtype=WIDE)
    empty = Memory(torch.zeros(0, 6, dtype=WIDE), torch.zeros(0, 4, dtype=WIDE))
    store = empty.put(keys, values)
    memory = DeltaMemory.empty((), key_dim=6, value_dim=4, dtype=WIDE).extend(keys, values)
    close(memory.read(keys), store[keys])
    close(memory.read(torch.eye(6, dtype=WIDE)[[2]]), store.get(torch.eye(6, dtype=WIDE)[[2]], 0.0))


def test_64_pairs_are_recalled_after_changes_where_sums_fail():
    """Each key is written four times; what is read must be nearest to its last value."""
    keys, score = normalize(torch.randn(64, 192), dim=-1), FeatureMap()
    written = DeltaMemory.empty((), key_dim=192, value_dim=32)
    pairs = Memory(torch.zeros(0, 192), torch.zeros(0, 32)).map_keys_with(score)
    sums = LinearState.of(pairs)
    for _ in range(4):
        values = torch.randn(64, 32).sign()
        written = written.extend(keys, values)
        sums = sums.extend(score.map_keys(keys), values)

    def recall(reads: Tensor) -> float:
        return ((reads @ values.T).argmax(-1) == torch.arange(64)).float().mean().item()

    assert recall(written.read(keys)) > 0.95
    assert recall(attend(keys, sums, score=score, choice=Proportional())) < 0.3


@pytest.mark.usefixtures("no_shape_checks")
def test_pairs_that_do_not_fit_are_refused():
    memory, items = FadingMemory.empty((2,), key_dim=3), torch.randn(2, 4, 3)
    for keys, values, message in (
        (items, items[..., [0, 0, 0, 0]], r"values must be \(2, new, 3\), got \(2, 4, 4\)"),
        (items[0], items, r"query must be \(2, new, 3\), got \(4, 3\)"),
    ):
        with pytest.raises(ValueError, match=message):
            memory.extend(keys, values)
    with pytest.raises(ValueError, match="strength must be None for a FadingMemory"):
        memory.extend(items, items, strength=torch.ones(2, 4))


@pytest.mark.parametrize("time", [1, 150])
def test_gated_delta_rule_equals_that_of_transformers(time):
    peer = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    query, writes, state = make_writes(DeltaMemory, time, torch.float32)
    query, keys, values, log_decay, strength, state = (x.detach() for x in (query, *writes, state))
    memory = DeltaMemory(state)
    out, memory = memory.step(
        query / DIM**0.5, keys, values, log_decay=log_decay[..., 0], strength=strength[..., 0]
    )
    items = [x.transpose(1, 2) for x in (query, keys, values, log_decay[..., 0], strength[..., 0])]
    for peer_of in (peer.torch_chunk_gated_delta_rule, peer.torch_recurrent_gated_delta_rule):
        theirs, end = peer_of(*items, initial_state=state, output_final_state=True)
        close(out.transpose(1, 2), theirs)
        close(memory.state, end)
