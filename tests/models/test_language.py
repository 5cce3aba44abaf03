"""Language models: causality, steps equal to forward, the loss of next tokens."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from regard.attention.masks import Unpadded
from regard.data.batches import Batch, pad
from regard.models.build import build_language_model
from regard.models.config import (
    LanguageModelConfig,
    LearnedConfig,
    RecurrentConfig,
    RelativeConfig,
    SelfAttentiveConfig,
    TransformerConfig,
)
from regard.models.model import Model
from tests.helpers import close, without_gradient

CORES = {
    "learned": TransformerConfig(layers=2, width=12, heads=3, feedforward=17, positions=LearnedConfig(max_length=20)),
    "relative": TransformerConfig(layers=1, width=12, heads=3, feedforward=17, positions=RelativeConfig(), key_heads=1),
    "window": TransformerConfig(layers=2, width=12, heads=3, feedforward=17, window=3),
    "gru": RecurrentConfig(width=12, hidden=14, layers=2),
    "lstm": RecurrentConfig(width=12, hidden=14, cell="lstm", attention="dot"),
    "self-attentive-rnn": SelfAttentiveConfig(width=12, hidden=14, cell="rnn", self_attention_hidden=5, layers=2),
    "self-attentive-lstm": SelfAttentiveConfig(width=12, hidden=14, self_attention_hidden=5, layers=2),
    "self-attentive-released": SelfAttentiveConfig(width=12, hidden=14, self_attention_hidden=5, form="released"),
    "self-attentive-recency": SelfAttentiveConfig(
        width=12, hidden=14, self_attention_hidden=5, layers=2, self_attention_recency="learned"
    ),
}


@pytest.fixture(params=CORES)
def model(request: pytest.FixtureRequest) -> Model:
    torch.manual_seed(1)
    return build_language_model(LanguageModelConfig(core=CORES[request.param]), vocab=9).double().eval()


def logits_of(model: Model, tokens: Tensor) -> Tensor:
    """Return the logits after each token: the targets are the tokens and one more, which is not read."""
    return model(target=Unpadded.of(functional.pad(tokens, (0, 1))))


def test_steps_equal_forward(model):
    tokens = torch.randint(9, (3, 7))
    all_logits, state = logits_of(model, tokens), model.start(rows=3)
    for time in range(7):
        logits, state = model.step(tokens[:, time], state)
        close(logits, all_logits[:, time])


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


def test_every_parameter_has_a_gradient_and_there_is_no_source(model):
    model.loss(Batch(None, Unpadded.of(torch.randint(9, (2, 15))), (0, 1))).total.backward()
    # Softmax ignores what all keys add to all scores of a query.
    names = {name for name, _ in model.named_parameters() if name.endswith("attention.key.bias")}
    assert without_gradient(model) == names
    assert not any("cross" in name or "encoder" in name for name, _ in model.named_parameters())


def test_rows_of_a_state_are_selected(model):
    tokens = torch.randint(9, (3, 4))
    state = model.start(rows=3)
    for time in range(3):
        _, state = model.step(tokens[:, time], state)
    index = torch.tensor([2, 0])
    logits, _ = model.step(tokens[index, 3], state.select(index))
    close(logits, logits_of(model, tokens)[index, 3])
