"""The optimizers, their state by names of parameters, and the learning-rate schedule.

    adam, adamw   all parameters
    muon          weights of the linear layers of a Transformer's blocks: along the semi-orthogonal
                  matrix next to the averaged gradient, times 4 lr 0.2 sqrt(max(rows, columns)),
                  whose root mean square is 0.8 lr; the rest by AdamW

lr(step) = peak * min(step / warmup, decay(step)); a warm-up that is shortened while it lasts goes
on linearly from the rate that it has reached

Source: muon jordan2024, with the factor of liu2025, by torch.optim.Muon.
"""

import math
from collections.abc import Mapping, Sequence

from torch import Tensor, nn, optim

from regard.layers.lora import ADAPTER_RATE, ADAPTERS
from regard.training.config import TrainConfig
from regard.training.partial import distances_from_top, has_transformer, hidden_matrices
from regard.training.progress import Progress
from regard.training.tensors import distribute_like

_MUON_RATE = 4.0
"""Factor of the rate of matrices that Muon changes: the best rates are then about those of AdamW
(benchmarks/README.md)."""


def build_optimizers(model: nn.Module, config: TrainConfig) -> list[optim.Optimizer]:
    """Return the optimizers of a model's parameters; weight decay for non-embedding matrices.

    Each group has its `scale`, a factor of the learning rate.

    Raises: UserError if muon is asked for and the model has no Transformer.
    """
    embeddings = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)
    }
    hidden = hidden_matrices(model) if uses_muon(model, config) else set()
    distances = distances_from_top(model) if config.layer_decay < 1 else {}
    groups: dict[tuple[bool, float, float], list[Tensor]] = {}
    for name, parameter in trainable_parameters(model).items():
        decays = parameter.ndim >= 2 and id(parameter) not in embeddings
        decay = config.weight_decay if decays else 0.0
        scale = config.layer_decay ** distances.get(id(parameter), 0)
        scale *= ADAPTER_RATE if name.endswith(ADAPTERS) else 1
        if id(parameter) in hidden:
            scale, decay = scale * _MUON_RATE, decay / _MUON_RATE  # decays by lr decay, as others
        key = id(parameter) in hidden, decay, scale
        groups.setdefault(key, []).append(parameter)
    plain, orthogonal = [], []
    for (is_hidden, decay, scale), parameters in groups.items():
        options = {"params": parameters, "weight_decay": decay, "scale": scale}
        (orthogonal if is_hidden else plain).append(options)
    optimizers: list[optim.Optimizer] = []
    if plain:
        kind = optim.Adam if config.optimizer == "adam" else optim.AdamW
        betas = tuple(config.betas)
        optimizers.append(kind(plain, lr=config.lr, betas=betas, eps=config.eps, fused=True))
    if orthogonal:
        optimizers.append(optim.Muon(orthogonal, lr=config.lr, adjust_lr_fn="match_rms_adamw"))
    return optimizers


def uses_muon(model: nn.Module, config: TrainConfig) -> bool:
    """Return True if Muon changes the matrices of the model."""
    return config.optimizer == "muon" or (config.optimizer == "auto" and has_transformer(model))


def optimizer_tensors(optimizers: Sequence[optim.Optimizer], model: nn.Module) -> dict[str, Tensor]:
    """Return the state as `exp_avg/NAME`, `exp_avg_sq/NAME`, `step/NAME`, or `momentum_buffer/NAME`
    of muon; empty before a step."""
    tensors = {}
    for name, parameter in trainable_parameters(model).items():
        for optimizer in optimizers:
            for kind, value in optimizer.state.get(parameter, {}).items():
                tensors[f"{kind}/{name}"] = value
    return tensors


def load_optimizer_tensors(
    optimizers: Sequence[optim.Optimizer], model: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Load the state that `optimizer_tensors` returned, sharded like the parameters."""
    names = {id(parameter): name for name, parameter in trainable_parameters(model).items()}
    loaded: dict[str, dict[str, Tensor]] = {name: {} for name in names.values()}
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        loaded[name][kind] = value
    for optimizer in optimizers:
        state, number = {}, 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                state[number] = {
                    kind: value if kind == "step" else distribute_like(value, like=parameter)
                    for kind, value in loaded[names[id(parameter)]].items()
                }
                number += 1
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
