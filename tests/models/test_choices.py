"""Choices of models: options, reads of cores, gradient of sampled keys (REINFORCE)."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.choices import Hard, ReinforceSamples, Soft, Sparse, TopK, reinforce
from regard.attention.masks import Padded
from regard.attention.memory import Memory
from regard.attention.scores import Cosine, Dot
from regard.errors import UserError
from regard.layers.read import Read
from regard.models.build import build, build_classifier, build_language_model, build_tagger
from regard.models.config import (
    ClassifierConfig,
    EncoderConfig,
    LanguageModelConfig,
    ModelConfig,
    TaggerConfig,
)
from regard.models.cores.config import (
    ChoiceConfig,
    RecurrentConfig,
    SelfAttentiveConfig,
    TransformerConfig,
)
from regard.models.cores.core import create_choice
from regard.models.cores.recurrent import Recurrent
from regard.models.model import Model
from regard.models.readers.tokens import TokenReader, embedding_table
from regard.models.sampled import advantages, step_wise_choices, surrogate
from regard.models.writers.classes import ClassWriter
from regard.models.writers.numbers import NumberWriter
from tests.helpers import close

VOCAB = 11
CORES: dict[str, Any] = {
    "transformer": TransformerConfig,
    "recurrent": RecurrentConfig,
    "self-attentive": SelfAttentiveConfig,
}
SIZES: dict[str, dict[str, Any]] = {
    "transformer": {"layers": 1, "width": 10, "heads": 2, "feedforward": 14},
    "recurrent": {"width": 6, "hidden": 10, "attention_hidden": 7},
    "self-attentive": {"width": 6, "hidden": 10, "attention_hidden": 7, "self_attention_hidden": 5},
}
ESTIMATORS = ("straight-through", "gumbel", "reinforce")


@dataclass
class Pair:
    source: Any
    target: Any


def core_config(name: str, **options: Any) -> Any:
    return CORES[name](**SIZES[name], **options)


def model_of(config: Any, *, label_smoothing: float = 0.0) -> Model:
    torch.manual_seed(2)
    config, smoothing = ModelConfig(core=config, dropout=0.0), label_smoothing
    model = build(config, source_vocab=VOCAB, target_vocab=VOCAB, label_smoothing=smoothing)
    return model.double()


def batch() -> Pair:
    generator = torch.Generator().manual_seed(7)
    source = torch.randint(4, VOCAB, (3, 5), generator=generator)
    target = torch.randint(4, VOCAB, (3, 4), generator=generator)
    return Pair(Padded(source, torch.tensor([5, 1, 3])), Padded(target, torch.tensor([4, 3, 2])))


def choices_of(model: nn.Module) -> list[Any]:
    return [module.choice for module in model.modules() if isinstance(module, Read)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hard": "gumbel"}, "hard is an option of choice=hard, got choice=soft"),
        ({"choice": "sparse", "top_k": 3}, "top_k is an option of choice=topk, got choice=sparse"),
        ({"choice": "topk", "alpha": 2.0}, "alpha is an option of choice=sparse, got choice=topk"),
        ({"beta": "warm"}, "beta must be a number or learned, got 'warm'"),
        ({"beta": 0.0}, "beta must be above 0"),
        ({"choice": "hard", "beta": "learned"}, "beta must be a number with choice=hard"),
        ({"choice": "hard", "hard": "none", "beta": 2.0}, "beta has no effect with hard=none"),
        ({"choice": "sparse", "alpha": 1.0}, "alpha must be above 1"),
        ({"choice": "topk", "top_k": 0}, "top_k must be from 1"),
    ],
)
@pytest.mark.parametrize("config", [CORES["transformer"], ChoiceConfig])
def test_options_without_effect_are_refused(config, options, message):
    with pytest.raises((ValueError, UserError), match=message):
        config(**options)


@pytest.mark.parametrize(
    ("choice", "kernel", "known"),
    [
        ("hard", "sdpa", "auto, reference, gather"),
        ("sparse", "additive", "auto, reference"),
        ("sparse", "gather", "auto, reference"),
        ("soft", "gather", "auto, reference, sdpa, products, flex, additive"),
    ],
)
@pytest.mark.parametrize("name", CORES)
def test_kernel_that_does_not_compute_the_choice_is_refused(name, choice, kernel, known):
    message = f"kernel must be one of {known} with choice={choice}, got {kernel}"
    with pytest.raises(ValueError, match=message):
        core_config(name, choice=choice, kernel=kernel)


def test_choice_of_the_pooling_query_is_used_and_its_kernel_is_checked():
    query = ChoiceConfig(choice="hard")
    config = ClassifierConfig(core=core_config("transformer"), pool_query=query)
    model = build_classifier(
        config,
        TokenReader(embedding_table(VOCAB, 10)),
        lambda dim, pool: ClassWriter(dim, 3, pool=pool),
    )
    assert isinstance(model.writer.pool.attention.read.choice, Hard)
    with pytest.raises(ValueError, match=r"kernel must be one of .* with choice=hard, got sdpa"):
        ClassifierConfig(core=core_config("transformer", kernel="sdpa"), pool_query=query)


def test_choice_of_a_core_that_reads_nothing_is_refused():
    with pytest.raises(ValueError, match="choice=hard has no effect with attention=none"):
        core_config("recurrent", attention="none", choice="hard")
    config = core_config("recurrent", beta=2.0)
    for kind in (ClassifierConfig, EncoderConfig):
        message = r"beta=2\.0 has no effect: an encoder of core recurrent reads nothing"
        with pytest.raises(ValueError, match=message):
            kind(core=config)
    with pytest.raises(ValueError, match="a decoder of core recurrent reads nothing"):
        LanguageModelConfig(core=config)
    with pytest.raises(ValueError, match="an encoder of core recurrent reads nothing"):
        Recurrent(config, decodes=False)
    core_config("self-attentive", attention="none", choice="hard")  # reads its own past


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"beta": 2.5}, Soft),
        ({"choice": "hard", "hard": "gumbel", "beta": 4.0}, Hard),
        ({"choice": "sparse", "alpha": 1.25}, Sparse),
        ({"choice": "topk", "top_k": 3, "beta": "learned"}, TopK),
    ],
)
def test_every_read_of_a_core_has_the_choice(name, options, kind):
    made = choices_of(model_of(core_config(name, **options)))
    assert len(made) == {"transformer": 3, "recurrent": 1, "self-attentive": 4}[name]
    assert len(set(map(id, made))) == len(made)  # a choice for each read, since it may learn
    for choice in made:
        assert type(choice) is kind
        if isinstance(choice, Soft):
            assert choice.beta == 2.5
        elif isinstance(choice, Hard):
            assert (choice.gradient, choice.temperature) == ("gumbel", 0.25)
        elif isinstance(choice, Sparse):
            assert (choice.alpha, choice.soft.beta) == (1.25, 1.0)
        else:
            close(choice.soft.beta.detach().flatten().unique(), torch.ones(1))
            assert choice.k == 3


def test_beta_of_cosine_scores_is_learned_unless_it_is_a_number():
    learned = create_choice(ChoiceConfig(), Cosine(), 3)
    assert isinstance(learned, Soft)
    close(learned.beta.detach(), torch.full((3, 1, 1), Cosine.initial_factor))
    fixed = create_choice(ChoiceConfig(beta=2.0), Cosine(), 3)
    assert isinstance(fixed, Soft)
    assert fixed.beta == 2.0
    assert fixed.log_beta is None
    hard = create_choice(ChoiceConfig(choice="hard"), Cosine(), 3)
    assert isinstance(hard, Hard)
    assert hard.temperature == pytest.approx(1 / Cosine.initial_factor)
    assert create_choice(ChoiceConfig(beta=1.0), Dot()) is None


@pytest.mark.parametrize("beta", [0.3, "learned"])
def test_beta_multiplies_the_scores_of_the_whole_model(beta):
    plain, pair = model_of(core_config("transformer")).eval(), batch()
    model = model_of(core_config("transformer", beta=beta)).eval()
    factor = 0.3
    if beta == "learned":
        for choice in choices_of(model):
            assert choice.log_beta.shape == (2, 1, 1)
            nn.init.constant_(choice.log_beta, math.log(factor))
    with torch.no_grad():
        for name, weight in plain.named_parameters():  # softmax(beta <q, k>) = softmax(<beta q, k>)
            weight.mul_(factor if ".query." in name else 1)
    close(model(pair.source, pair.target), plain(pair.source, pair.target))


def test_hard_choice_reads_the_value_of_the_best_key():
    model = model_of(core_config("recurrent", choice="hard", attention="dot")).eval()
    states, query = torch.randn(2, 4, 10).double(), torch.randn(2, 1, 10).double()
    read = model.core.read
    out = read(query, Memory(states, states).map_keys_with(read.score))
    best = (states @ query.mT).squeeze(-1).argmax(1)
    assert torch.equal(out.squeeze(1), states[torch.arange(2), best])


def test_bare_argmax_passes_no_gradient_to_the_scores_but_softmax_does():
    scores = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    values = torch.randn(6, 3, dtype=torch.float64)
    one_hot = nn.functional.one_hot(scores.argmax(-1), 6).double()
    assert not (one_hot @ values).requires_grad
    bare = Hard("none").train()
    assert torch.equal(bare(scores), one_hot)
    assert not bare(scores).requires_grad
    moved = scores.detach() + 1e-6 * torch.randn(4, 6)
    assert torch.equal(bare(moved), one_hot)  # constant around almost every point
    soft = Soft()(scores)
    assert (Soft()(moved) - soft).abs().max() > 0
    (soft @ values).square().sum().backward()
    assert scores.grad is not None
    assert bool(scores.grad.any(-1).all())


@pytest.mark.parametrize("kernel", ["auto", "reference", "gather"])
def test_bare_argmax_passes_the_gradient_of_the_values_alone(kernel):
    q, k, v = (torch.randn(2, n, 6, dtype=torch.float64, requires_grad=True) for n in (4, 5, 5))
    out = attend(q, (k, v), choice=Hard("none"), kernel=kernel)
    one_hot = nn.functional.one_hot((q @ k.mT).argmax(-1), 5).double()
    assert torch.equal(out, one_hot @ v)
    of_q, of_k, of_v = torch.autograd.grad(out.sum(), (q, k, v), allow_unused=True)
    assert of_q is None
    assert of_k is None
    assert torch.equal(of_v, one_hot.sum(1)[..., None].expand_as(v))


@pytest.mark.parametrize("name", CORES)
def test_scores_of_hard_reads_without_an_estimator_learn_nothing(name):
    model = model_of(core_config(name, choice="hard", hard="none")).train()
    model.loss(batch()).total.backward()
    fixed = {key for key, weight in model.named_parameters() if weight.grad is None}
    scores = ("query", ".key.", "key_weight", "feedback_weight", "read.score", "add_cross.norm")
    assert fixed
    assert all(any(part in key for part in scores) for key in fixed)


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradients_reach_the_scores_of_hard_reads(name, estimator):
    model = model_of(core_config(name, choice="hard", hard=estimator)).train()
    model.loss(batch()).total.backward()
    count = 0
    for key, weight in model.named_parameters():
        if any(part in key for part in ("query", "key_weight", "read.score", "feedback")):
            assert weight.grad is not None, key
            assert weight.grad.abs().max() > 0, key
            count += 1
    assert count


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_loss_is_a_function_of_the_seed_and_evaluation_of_nothing(name, estimator):
    model, pair = model_of(core_config(name, choice="hard", hard=estimator)), batch()
    plain = model_of(core_config(name))
    assert model.state_dict().keys() == plain.state_dict().keys()  # nothing to save

    def gradient(seed: int) -> Tensor:
        torch.manual_seed(seed)
        total, parameters = model.loss(pair).total, list(model.parameters())
        gradients = torch.autograd.grad(total, parameters, materialize_grads=True)
        return torch.cat([part.flatten() for part in gradients])

    model.train()
    first = gradient(1)
    assert torch.equal(first, gradient(1))
    assert torch.equal(first, gradient(2)) == (estimator == "straight-through")
    model.eval()
    assert torch.equal(gradient(1), gradient(2))


def exact_gradient(logits: Tensor, cost: Tensor) -> Tensor:
    """Return the gradient of the expected cost of two rows: cost[row, key 1, key 2, prediction]."""
    p = logits.softmax(-1)
    joint = p[:, 0, :, None] * p[:, 1, None, :]  # (row, key, key)
    return torch.autograd.grad((joint[..., None] * cost).sum(), logits)[0]


def test_surrogate_has_the_exact_gradient_of_the_expected_cost():
    """Over all 81 ways to sample a key of 3 in 2 steps of 2 rows; cost 1 depends on step 1."""
    logits = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)  # (row, step, key)
    cost = torch.randn(2, 3, 3, 2, dtype=torch.float64) * 5 + 20
    cost[..., 0] = cost[:, :, :1, 0]
    choice, rows = Hard("reinforce"), torch.arange(2)
    expected, mean = exact_gradient(logits, cost), torch.zeros_like(logits)
    for keys in itertools.product(range(3), repeat=4):
        sampled = torch.tensor(keys).view(2, 2)
        log_prob = logits.log_softmax(-1).gather(-1, sampled[..., None]).squeeze(-1)
        samples = ReinforceSamples()
        for step in range(2):
            samples.log_probs.append(log_prob[:, step : step + 1])
            samples.choices.append(choice)
        costs = Padded(cost[rows, sampled[:, 0], sampled[:, 1]], torch.tensor([2, 2]))
        total = surrogate(samples, costs, {choice})
        assert total == 0
        (gradient,) = torch.autograd.grad(total, logits)
        probability = log_prob.detach().sum().exp()
        mean = mean + probability * gradient
    close(mean, expected)


def test_advantage_is_the_cost_to_go_less_that_of_the_other_rows():
    costs = Padded(
        torch.tensor([[1.0, 2.0, 4.0], [3.0, 5.0, 9.0], [7.0, -1.0, -1.0]]), torch.tensor([3, 2, 1])
    )
    expected = [
        [(1 - 5) + (2 - 5) + 4, (2 - 5) + 4, 4],  # no other row has a third prediction
        [(3 - 4) + (5 - 2), 5 - 2, 0],
        [7 - 2, 0, 0],
    ]
    close(advantages(costs), torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize("name", CORES)
def test_reinforce_loss_has_the_gradient_written_out(name):
    """log p of the keys of each read times its step's advantage, in plain loops."""
    config, pair = core_config(name, choice="hard", hard="reinforce"), batch()
    model = model_of(config, label_smoothing=0.1).train()
    parameters = list(model.parameters())
    torch.manual_seed(5)
    actual = torch.autograd.grad(model.loss(pair).total, parameters, materialize_grads=True)

    torch.manual_seed(5)
    with reinforce(model) as samples:
        logits = model(pair.source, pair.target)
    log_p, ids, lengths = logits.log_softmax(-1), pair.target.items, pair.target.lengths.tolist()
    cost = {}
    for row, length in enumerate(lengths):
        for step in range(length - 1):
            of_step = log_p[row, step]
            cost[row, step] = -0.9 * of_step[ids[row, step + 1]] - 0.1 * of_step.mean()
    total = sum(cost.values())

    def advantage(row: int, first: int) -> float:
        result = 0.0
        for step in range(first, lengths[row] - 1):
            rows = [other for other in range(3) if other != row and (other, step) in cost]
            others = [cost[other, step].item() for other in rows]
            result += cost[row, step].item() - (sum(others) / len(others) if others else 0.0)
        return result

    roles = {module.choice: module.role for module in model.modules() if isinstance(module, Read)}
    for choice, role in roles.items():
        of_choice = []
        for other, log_prob in zip(samples.choices, samples.log_probs, strict=True):
            if other is choice:
                of_choice.append(log_prob.sum(1) if log_prob.dim() == 3 else log_prob)  # heads
        log_prob = torch.cat(of_choice, -1)
        of_decoder = "source" not in role.queries
        for row, query in itertools.product(range(3), range(log_prob.shape[1])):
            step = max(0, query - (log_prob.shape[1] - 3)) if of_decoder else 0
            total = total + advantage(row, step) * log_prob[row, query]
    expected = torch.autograd.grad(total, parameters, materialize_grads=True)
    for a, b in zip(actual, expected, strict=True):
        close(a, b)


def test_steps_of_a_decoder_are_told_from_the_queries_of_an_encoder():
    model = model_of(core_config("self-attentive", choice="hard", hard="reinforce"))
    kinds = {(read.role.kind, read.role.queries) for read in model.modules()
             if isinstance(read, Read) and read.choice in step_wise_choices(model)}  # fmt: skip
    assert kinds == {("recurrent", "output"), ("chain", "initial state and decoder input")}


def objective(model: Model, pair: Any) -> tuple[Tensor, Tensor]:
    """Return the loss and the sum of the costs of a model that samples nothing."""
    hidden = model.hidden(pair.source, pair.target)
    costs = model.writer.costs(hidden, pair.target)
    return model.writer.loss(hidden, pair.target)[0], costs.items[: len(costs.lengths)].sum()


def test_costs_of_every_writer_sum_to_its_loss():
    core = core_config("transformer")
    source = Padded(torch.randint(4, VOCAB, (3, 5)), torch.tensor([5, 2, 4]))

    def reader() -> TokenReader:
        return TokenReader(embedding_table(VOCAB, core.width))

    config = ClassifierConfig(core=core, pool_heads=2, dropout=0.0)
    classes = build_classifier(
        config, reader(), lambda dim, pool: ClassWriter(dim, 4, pool=pool, label_smoothing=0.2)
    )
    numbers = build_classifier(config, reader(), lambda dim, pool: NumberWriter(dim, pool=pool))
    tagger = build_tagger(
        TaggerConfig(core=core, dropout=0.0), vocab=VOCAB, num_tags=3, label_smoothing=0.1
    )
    for model, target in (
        (classes, torch.tensor([1, 0, 3])),
        (numbers, torch.randn(3, 1)),
        (tagger, torch.tensor([[0, 1, 2, 2, 0], [1, 1, -1, -1, -1], [2, 0, 0, 0, -1]])),
    ):
        loss, costs = objective(model.train(), Pair(source, target))
        close(loss, costs)
        assert model.writer.costs(model.hidden(source), target).items.shape == (3, 1)


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_training_with_hard_attention_lowers_the_loss(estimator):
    """Reverse three symbols: nothing but cross-attention tells the decoder which."""
    torch.manual_seed(0)
    sizes = {"layers": 1, "width": 24, "heads": 2, "feedforward": 32}
    config = ModelConfig(
        core=TransformerConfig(**sizes, choice="hard", hard=estimator), dropout=0.0
    )
    model = build(config, source_vocab=VOCAB, target_vocab=VOCAB).train()

    def draw() -> Pair:
        ids = torch.randint(4, VOCAB, (64, 3))
        target = torch.cat((torch.ones(64, 1, dtype=torch.int64), ids.flip(1)), 1)
        return Pair(Padded(ids, torch.full((64,), 3)), Padded(target, torch.full((64,), 4)))

    optimizer, losses = torch.optim.Adam(model.parameters(), lr=5e-3), []
    for _ in range(80):
        loss = model.loss(draw())
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()
        losses.append(loss.nll.item() / loss.count)
    guess = math.log(7)  # the loss of guessing one of the seven symbols
    assert sum(losses[-5:]) / 5 < 0.8 * guess < sum(losses[:5]) / 5


def test_language_model_trains_with_sampled_keys():
    core = core_config("transformer", choice="hard", hard="reinforce")
    model = build_language_model(LanguageModelConfig(core=core), vocab=VOCAB).train()
    model.loss(Pair(None, batch().target)).total.backward()
    assert model.core.decoder[0].attention.query.weight.grad.abs().max() > 0
