"""Chains: each word has the weights of the read at it, over the words before it, in the order of reading."""

import pytest
import torch

from regard.data.batches import pad
from regard.errors import UserError
from regard.look.chain import Chain, chains, reads_its_past
from regard.look.record import record
from regard.models.build import build_classifier, build_language_model
from regard.models.config import ClassifierConfig, LanguageModelConfig, RecurrentConfig, SelfAttentiveConfig
from regard.models.writes.classes import ClassWriter
from tests.helpers import close

CORE = {"width": 6, "hidden": 8, "self_attention_hidden": 5, "layers": 2}
IDS, LABELS = [5, 4, 9, 6], list("abcd")


@pytest.mark.parametrize("cell", ["rnn", "lstm"])
def test_language_model_has_a_chain_a_layer_with_the_weights_of_its_steps(cell):
    core = SelfAttentiveConfig(**CORE, cell=cell)
    model = build_language_model(LanguageModelConfig(core=core), vocab=11).eval()
    found = chains(model, lambda: model(torch.tensor([IDS])), LABELS, title="toy")
    assert [(chain.layer, chain.direction, chain.title) for chain in found] == [(1, "", "toy"), (2, "", "toy")]
    with record(model) as maps, torch.no_grad():
        state = model.begin(1)
        for token in IDS:
            _, state = model.step(torch.tensor([token]), state)
    own = int(cell == "rnn")  # whose read comes when the word's state is made
    for chain, name in zip(found, ["core.cells.0.read", "core.cells.1.read"], strict=True):
        assert list(chain.labels) == LABELS
        assert not chain.weights.triu(own).any()
        close(chain.weights.sum(1), torch.tensor([float(own), 1, 1, 1]))
        for call, row in zip(maps[name], chain.weights[1 - own :], strict=True):
            close(row[: call.shape[-1]], call[0, 0])


def test_encoder_has_a_chain_for_each_direction():
    core = SelfAttentiveConfig(**CORE)
    model = build_classifier(
        ClassifierConfig(core=core, pool_heads=2), vocab=11, writes=lambda dim: ClassWriter(dim, 2)
    ).eval()
    found = chains(model, lambda: model(pad([IDS])), LABELS)
    assert {(chain.layer, chain.direction) for chain in found} == {
        (layer, end) for layer in (1, 2) for end in ("from the start", "from the end")
    }
    assert {"".join(chain.labels) for chain in found if chain.direction == "from the end"} == {"dcba"}
    turned = chains(model, lambda: model(pad([IDS[::-1]])), LABELS[::-1])
    ours, theirs = ([c.weights for c in some if c.layer == 1] for some in (found, turned))
    assert all((a - b).abs().max() > 1e-6 for a, b in zip(ours, theirs, strict=True))


def test_model_that_does_not_read_its_past_is_refused():
    core = RecurrentConfig(width=6, hidden=8)
    model = build_language_model(LanguageModelConfig(core=core), vocab=11).eval()
    assert not reads_its_past(model)
    with pytest.raises(UserError, match="do not read their own past"):
        chains(model, lambda: model(torch.tensor([IDS])), LABELS)


def test_one_word_is_no_chain_and_labels_must_match():
    model = build_language_model(LanguageModelConfig(core=SelfAttentiveConfig(**CORE)), vocab=11).eval()
    with pytest.raises(UserError, match="needs two pieces of text at least, but there is 1"):
        chains(model, lambda: model(torch.tensor([[5]])), ["a"])
    with pytest.raises(ValueError, match="there are 2 labels, but 3 reads of up to 3 states"):
        chains(model, lambda: model(torch.tensor([IDS])), ["a", "b"])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.zeros(2, 3), r"= \(2, 2\), but are \(2, 3\)"),
        (torch.ones(2, 2), "zero for words that come later"),
        (torch.full((2, 2), float("nan")), "must be finite"),
    ],
)
def test_weights_that_are_no_chain_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        Chain(labels=["a", "b"], weights=weights)
