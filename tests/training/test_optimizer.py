from typing import Literal

import pytest
import torch
from torch import nn, optim

from regard.training.optimizer import build_optimizers, load_optimizer_tensors, optimizer_tensors
from tests.helpers import close
from tests.training.toy import ToyModel, settings


def step(model: nn.Module, *optimizers: optim.Optimizer, seed: int) -> None:
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    for optimizer in optimizers:
        optimizer.step()


@pytest.mark.parametrize(("name", "kind"), [("adam", optim.Adam), ("adamw", optim.AdamW)])
def test_step_equals_the_plain_loop(
    name: Literal["adam", "adamw"], kind: type[optim.Optimizer]
) -> None:
    linear, reference = (nn.Linear(3, 5, bias=False).double() for _ in range(2))
    reference.load_state_dict(linear.state_dict())
    config = settings(optimizer=name, lr=0.1, betas=(0.7, 0.8), eps=1e-3, weight_decay=0.3)
    options = {"lr": 0.1, "betas": (0.7, 0.8), "eps": 1e-3, "weight_decay": 0.3, "foreach": False}
    [optimizer], plain = build_optimizers(linear, config), kind(reference.parameters(), **options)
    for seed in (1, 2, 3):
        step(linear, optimizer, seed=seed)
        step(reference, plain, seed=seed)
    close(linear.weight, reference.weight)


def test_only_matrices_other_than_embeddings_decay() -> None:
    model = ToyModel()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    [optimizer] = build_optimizers(model, settings(lr=0.5, weight_decay=0.2))
    optimizer.step()
    for name, value in model.named_parameters():
        decays = name in ("layers.0.weight", "layers.1.weight")
        close(value.detach(), before[name] * (0.9 if decays else 1.0))


def test_frozen_parameters_are_left_out() -> None:
    model = ToyModel()
    model.norm.requires_grad_(False)
    [optimizer] = build_optimizers(model, settings())
    optimized = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert len(optimized) == len(list(model.parameters())) - 2


def test_state_is_loaded_into_another_optimizer() -> None:
    model, other = ToyModel(), ToyModel()
    first, second = (build_optimizers(toy, settings(weight_decay=0.1)) for toy in (model, other))
    assert optimizer_tensors(first, model) == {}
    step(model, *first, seed=1)
    state = {name: value.clone() for name, value in optimizer_tensors(first, model).items()}
    assert state["step/embed.weight"] == 1
    assert not [name for name in state if "out.weight" in name]
    other.load_state_dict(model.state_dict())
    load_optimizer_tensors(second, other, state)
    for toy, optimizers in ((model, first), (other, second)):
        step(toy, *optimizers, seed=2)
    assert all(
        torch.equal(*pair) for pair in zip(model.parameters(), other.parameters(), strict=True)
    )
