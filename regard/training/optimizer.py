"""The optimizer, its state by names of parameters, and the learning-rate schedule.

lr(step) = peak * min(step / warmup, decay(step)); a warm-up that is shortened while it lasts goes
on linearly from the rate that it has reached
"""

import math
from collections.abc import Mapping

from torch import Tensor, nn, optim

from regard.layers.lora import ADAPTER_RATE, ADAPTERS
from regard.training.config import TrainConfig
from regard.training.partial import distances_from_top
from regard.training.progress import Progress
from regard.training.tensors import distribute_like


def build_optimizer(model: nn.Module, config: TrainConfig) -> optim.Optimizer:
    """Return Adam or AdamW over a model's parameters; weight decay for non-embedding matrices.

    Each group has its `scale`, a factor of the learning rate.
    """
    embeddings = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)
    }
    distances = distances_from_top(model) if config.layer_decay < 1 else {}
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for name, parameter in trainable_parameters(model).items():
        decays = parameter.ndim >= 2 and id(parameter) not in embeddings
        scale = config.layer_decay ** distances.get(id(parameter), 0)
        scale *= ADAPTER_RATE if name.endswith(ADAPTERS) else 1
        groups.setdefault((config.weight_decay if decays else 0.0, scale), []).append(parameter)
    options = [
        {"params": parameters, "weight_decay": decay, "scale": scale}
        for (decay, scale), parameters in groups.items()
    ]
    kind = optim.AdamW if config.optimizer == "adamw" else optim.Adam
    return kind(options, lr=config.lr, betas=tuple(config.betas), eps=config.eps, fused=True)


def optimizer_tensors(optimizer: optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the state as `exp_avg/NAME`, `exp_avg_sq/NAME`, `step/NAME`; empty before a step."""
    return {
        f"{kind}/{name}": value
        for name, parameter in trainable_parameters(model).items()
        for kind, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(
    optimizer: optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Load the state that `optimizer_tensors` returned, sharded like the parameters."""
    names = {id(parameter): name for name, parameter in trainable_parameters(model).items()}
    loaded: dict[str, dict[str, Tensor]] = {name: {} for name in names.values()}
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        loaded[name][kind] = value
    state = {}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in enumerate(parameters):
        state[number] = {
            kind: value if kind == "step" else distribute_like(value, like=parameter)
            for kind, value in loaded[names[id(parameter)]].items()
        }
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def learning_rate(config: TrainConfig, progress: Progress, *, batches: int) -> float:
    """Return the learning rate of the step that follows; `batches` are those of its epoch."""
    done = progress.completed_fraction(config, batches=batches)
    now, warmup_end = progress.step + 1, progress.warmup_end
    warmup = progress.warmup_steps or config.warmup
    if 0 < config.warmup < 1:
        now, warmup_end = done, config.warmup
    if now <= warmup:
        return config.lr * progress.warmup_rate(now, warmup)
    if config.schedule == "inverse_sqrt":
        return config.lr * math.sqrt((warmup or 1) / now)
    decayed = min(max((done - warmup_end) / (1 - warmup_end), 0.0), 1.0) if warmup_end < 1 else 1.0
    if config.schedule == "cosine":
        return config.lr * (1 + math.cos(math.pi * decayed)) / 2
    if config.schedule == "linear":
        return config.lr * (1 - decayed)
    return config.lr


def trainable_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that require gradients, by name, tied ones once."""
    return {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }
