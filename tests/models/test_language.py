"""Language models: formula of GPT, causality, steps equal forward, loss of next tokens."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from regard.attention.masks import Unpadded
from regard.attention.memory import Memory
from regard.data.batches import Batch, pad
from regard.decode.config import SampleConfig
from regard.decode.sample import sample
from regard.layers.positions.config import (
    AlibiConfig,
    LearnedConfig,
    NoPositionsConfig,
    RelativeConfig,
    RotaryConfig,
)
from regard.models.build import build_language_model
from regard.models.config import LanguageModelConfig
from regard.models.cores.config import (
    CoreConfig,
    RecurrentConfig,
    SelfAttentiveConfig,
    TransformerConfig,
)
from regard.models.cores.transformer import Transformer
from regard.models.model import Model
from tests.helpers import close, without_gradient

TRANSFORMER = {"layers": 2, "width": 12, "heads": 3, "feedforward": 17}
SELF_ATTENTIVE = {"width": 12, "hidden": 14, "self_attention_hidden": 5, "layers": 2}
CORES = {
    "learned": TransformerConfig(**TRANSFORMER, positions=LearnedConfig(max_length=20)),
    "relative": TransformerConfig(**TRANSFORMER, positions=RelativeConfig(), key_heads=1),
    "window": TransformerConfig(**TRANSFORMER, window=3),
    "gru": RecurrentConfig(width=12, hidden=14, layers=2),
    "lstm": RecurrentConfig(width=12, hidden=14, cell="lstm"),
    "self-attentive-rnn": SelfAttentiveConfig(**SELF_ATTENTIVE, cell="rnn"),
    "self-attentive-lstm": SelfAttentiveConfig(**SELF_ATTENTIVE),
    "self-attentive-released": SelfAttentiveConfig(**SELF_ATTENTIVE, form="released"),
    "self-attentive-recency": SelfAttentiveConfig(
        **SELF_ATTENTIVE, self_attention_recency="learned"
    ),
}


@pytest.fixture(params=CORES)
def model(request: pytest.FixtureRequest) -> Model:
    torch.manual_seed(1)
    config = LanguageModelConfig(core=CORES[request.param])
    return build_language_model(config, vocab=9).double().eval()


def logits_of(model: Model, tokens: Tensor) -> Tensor:
    """Return the logits after each token: targets have one more token, which is not read."""
    return model(target=Unpadded.of(functional.pad(tokens, (0, 1))))


def gpt(model: Any, tokens: Tensor, order: str) -> Tensor:
    """Return P (rows, time, vocab) of the lectures, D.12 and D.13, in plain torch:

    h_0 = U W_e + W_p      h_l = block(h_{l-1})      P = softmax(h_n W_e^T)      U one-hot
    """
    embedding, decoder = model.writer.inputs.table.weight, model.core.decoder
    time, is_later = tokens.shape[1], torch.ones(tokens.shape[1], tokens.shape[1]).triu(1).bool()

    def normalize(norm: Any, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) / (variance + 1e-5).sqrt() * norm.weight + norm.bias

    def multi_head(attention: Any, x: Tensor) -> Tensor:
        maps = (attention.query, attention.key, attention.value)
        query, key, value = ((x @ m.weight.T + m.bias).reshape(*x.shape[:2], 3, 4) for m in maps)
        scores = torch.einsum("rihd,rjhd->rhij", query, key) / math.sqrt(4)
        weights = scores.masked_fill(is_later, -math.inf).softmax(-1)
        read = torch.einsum("rhij,rjhd->rihd", weights, value).reshape(x.shape)
        return read @ attention.output.weight.T + attention.output.bias

    def feed_forward(ff: Any, x: Tensor) -> Tensor:
        inner = x @ ff.expand.weight.T + ff.expand.bias
        inner = inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
        return inner @ ff.contract.weight.T + ff.contract.bias

    h = functional.one_hot(tokens, 11).double() @ embedding + model.core.positions.weight[:time]
    for block in decoder:
        first, second = block.add_attention.norm, block.add_feedforward.norm
        if order == "post":  # the lectures' block
            middle = normalize(first, h + multi_head(block.attention, h))
            h = normalize(second, middle + feed_forward(block.feedforward, middle))
        else:
            middle = h + multi_head(block.attention, normalize(first, h))
            h = middle + feed_forward(block.feedforward, normalize(second, middle))
    if order == "pre":
        h = normalize(model.core.decoder_norm, h)
    return (h @ embedding.T).softmax(-1)


def perturbed(core: CoreConfig) -> Any:
    """Return a language model whose weights are all random, the same for the same sizes."""
    torch.manual_seed(5)
    model = build_language_model(LanguageModelConfig(core=core), vocab=11).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return model


@pytest.mark.parametrize("order", ["post", "pre"])
def test_gpt_is_the_formula_of_the_lectures(order):
    options = {"layers": 3, "activation": "gelu", "norm_order": order}
    core = TransformerConfig(**TRANSFORMER | options, positions=LearnedConfig())
    model, tokens = perturbed(core), torch.randint(11, (2, 7))
    with torch.no_grad():
        close(logits_of(model, tokens).softmax(-1), gpt(model, tokens, order))


class Recorded:
    """Language model that keeps the last logits it gave."""

    def __init__(self, model: Any):
        self.model, self.start, self.slide = model, model.start, model.slide
        self.last = torch.empty(0)

    def steps(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        self.last, state = self.model.steps(tokens, state)
        return self.last, state


@pytest.mark.parametrize("order", ["post", "pre"])
def test_the_last_context_is_that_of_the_lectures(order):
    """Each token past k is drawn from P of exactly the last k tokens, at positions 0 to k - 1."""
    positions, k = LearnedConfig(max_length=5), 5
    options = {"activation": "gelu", "norm_order": order, "positions": positions}
    core = TransformerConfig(**TRANSFORMER, **options)
    model = Recorded(perturbed(core))
    text, config = [3, 1, 4], SampleConfig(length=11, temperature=1, context="last")
    for token in sample(model, text, config, window=k, seed=1, banned=[]):
        with torch.no_grad():
            expected = gpt(model.model, torch.tensor([text[-k:]]), order)[:, -1]
        close(model.last.softmax(-1), expected)
        text = [*text, token]


@pytest.mark.parametrize("window", [None, 3, 9])
@pytest.mark.parametrize(
    "positions", [RotaryConfig(), AlibiConfig(), RelativeConfig(), NoPositionsConfig()]
)
def test_a_sliding_context_is_a_window_over_the_whole_text(positions, window):
    core = TransformerConfig(**TRANSFORMER, positions=positions, window=window)
    model = perturbed(core)
    narrow = perturbed(replace(core, window=min(5, window or 5)))
    tokens, state = torch.randint(11, (2, 13)), model.start(rows=2)
    with torch.no_grad():
        expected = logits_of(narrow, tokens)
        for time in range(13):
            logits, state = model.step(tokens[:, time], state)
            state = model.slide(state, 5) if time == 0 else state
            close(logits, expected[:, time])
    config = SampleConfig(length=13, temperature=0, context="slide")
    text = list(sample(model, [3, 1], config, window=5, seed=1, banned=[]))
    assert text == list(sample(narrow, [3, 1], config, window=None, seed=1, banned=[]))


@pytest.mark.parametrize("name", [name for name in CORES if name.startswith("self-attentive")])
def test_a_sliding_context_is_the_last_states_of_a_self_attentive_core(name):
    model, k = perturbed(CORES[name]), 3
    # An rnn adds its new state before it reads.
    last = k if model.core.cells[0].reads_first else k - 1
    tokens, state, cut = torch.randint(11, (2, 9)), model.start(rows=2), model.start(rows=2)

    def cut_by_hand(past: Any) -> Any:
        old = past.memory
        memory = Memory(old.keys[:, -last:], old.values[:, -last:], mapped_by=old.mapped_by)
        return past._replace(memory=memory)

    with torch.no_grad():
        for time in range(9):
            logits, state = model.step(tokens[:, time], state)
            state = model.slide(state, k) if time == 0 else state
            expected, cut = model.step(tokens[:, time], cut)
            close(logits, expected)
            cells = tuple(map(cut_by_hand, cut.core.cells))
            cut = replace(cut, core=replace(cut.core, cells=cells))


def test_cores_that_cannot_drop_keys_and_values_are_refused_with_the_reason():
    for name, reason in {"learned": "its positions are added", "gru": "no keys and values"}.items():
        model = perturbed(CORES[name])
        _, state = model.step(torch.tensor([1]), model.start())
        with pytest.raises(ValueError, match=reason):
            model.slide(state, 3)
    model = perturbed(CORES["relative"])
    with pytest.raises(ValueError, match="state must be one after a target"):
        model.slide(model.start(), 3)


def test_the_default_language_model_is_the_gpt_of_the_lectures_but_for_the_order_of_norms():
    core = LanguageModelConfig().core
    assert isinstance(core, TransformerConfig)
    assert isinstance(core.positions, LearnedConfig)
    assert core.norm_order == "pre"
    model: Any = build_language_model(LanguageModelConfig(), vocab=2000)
    assert model.writer.inputs.scale == 1
    assert model.writer.output_table is model.writer.inputs.table
    # N(0, 0.02), as published: five standard deviations of the estimate.
    assert abs(model.writer.inputs.table.weight.std() - 0.02) < 5 * 0.02 / math.sqrt(2 * 2000 * 128)


def test_steps_equal_forward(model):
    tokens = torch.randint(9, (3, 7))
    all_logits, state = logits_of(model, tokens), model.start(rows=3)
    for time in range(7):
        logits, state = model.step(tokens[:, time], state)
        close(logits, all_logits[:, time])


@torch.no_grad()
def test_tokens_read_at_once_are_those_of_steps(model):
    tokens = torch.randint(9, (3, 12))
    all_logits = logits_of(model, tokens)
    for sizes in ((5, 1, 1, 4, 1), (1, 7, 3, 1), (2, 10), (12,)):
        state, end = model.start(rows=3), 0
        for size in sizes:
            logits, state = model.steps(tokens[:, end : end + size], state)
            end += size
            close(logits, all_logits[:, end - 1])
            assert state.position == end


class OneByOne(Recorded):
    """Language model that takes a step for each token."""

    def steps(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        for token in tokens.unbind(1):
            self.last, state = self.model.step(token, state)
        return self.last, state


@pytest.mark.usefixtures("no_shape_checks")  # the same calls as above
@pytest.mark.parametrize("context", ["restart", "last", "slide"])
@pytest.mark.parametrize("name", [*CORES, "rotary"])
def test_prompts_read_at_once_give_the_tokens_of_steps(name, context):
    core = CORES.get(name, TransformerConfig(**TRANSFORMER, positions=RotaryConfig()))
    model, found = perturbed(core), []
    if context == "slide" and model.core.unsupported_slide_reason is not None:
        return
    config = SampleConfig(length=9, temperature=1, top_k=7, context=context)
    for reader in (Recorded(model), OneByOne(model)):
        for prompt in ([4], [1, 2, 3, 4], [5, 6, 7, 8, 9, 1, 2, 3, 4]):
            tokens = sample(reader, prompt, config, window=6, seed=1, banned=[0])
            found.append((list(tokens), reader.last))
    for (tokens, logits), (expected, expected_logits) in zip(found[:3], found[3:], strict=True):
        assert tokens == expected
        close(logits, expected_logits)


class OwnStep(Transformer):
    """Core whose step is not that of its base class."""

    def step(self, target: Tensor, state: Any) -> tuple[Tensor, Any]:
        hidden, state = super().step(1.5 * target, state)
        return 2 * hidden, state


@torch.no_grad()
def test_tokens_read_at_once_take_the_step_of_a_subclass():
    model, tokens = perturbed(TransformerConfig(**TRANSFORMER)), torch.randint(9, (3, 5))
    model.core.__class__ = OwnStep
    state = model.start(rows=3)
    for token in tokens.unbind(1):
        expected, state = model.step(token, state)
    close(model.steps(tokens, model.start(rows=3))[0], expected)


def test_no_token_depends_on_a_later_one(model):
    tokens = torch.randint(9, (2, 7))
    changed = tokens.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 9
    logits, changed_logits = logits_of(model, tokens), logits_of(model, changed)
    close(logits[:, :4], changed_logits[:, :4])
    assert (logits[:, 4] - changed_logits[:, 4]).abs().max() > 1e-6


def test_loss_is_the_sum_over_known_next_tokens(model):
    batch = Batch(None, pad([[1, 2, 3, 4], [5, 6]]), (0, 4))
    loss = model.loss(batch)
    log_p = model(target=batch.target).log_softmax(-1)
    expected = -(log_p[0, 0, 2] + log_p[0, 1, 3] + log_p[0, 2, 4] + log_p[1, 0, 6])
    close(loss.total.detach(), expected.detach())
    assert loss.count == model.count(batch) == 4
    with torch.device("meta"):  # a default device of the user, which no tensor may take
        assert model.loss(batch).total == loss.total


def test_every_parameter_has_a_gradient_and_there_is_no_source(model):
    model.loss(Batch(None, Unpadded.of(torch.randint(9, (2, 15))), (0, 1))).total.backward()
    # Softmax ignores what all keys add to all scores of a query.
    names = {name for name, _ in model.named_parameters() if name.endswith("attention.key.bias")}
    assert without_gradient(model) == names
    assert not any("cross" in name or "encoder" in name for name, _ in model.named_parameters())
