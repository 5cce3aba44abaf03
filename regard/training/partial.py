"""Training of a part of the parameters, or of each layer or kind at a rate of its own.

    embeddings   of inputs and targets, positions, norms behind them    distance  L + 1
    block n      of a stack of L blocks                                           L + 1 - n
    the rest     heads, norms behind the last block                               0

With layer decay f, the learning rate of a parameter is multiplied by f^distance. Encoder and
decoder are counted from the last block of each.

Source: layer decay clark2020, appendix A; bao2022, appendix H. Adapters: regard.layers.lora.
"""

from torch import nn

from regard.errors import UserError
from regard.layers.lora import add_adapters
from regard.layers.positions.base import PositionalEncoding
from regard.models.cores.transformer import Transformer
from regard.models.model import Model
from regard.models.readers.reader import Reader
from regard.models.writers.tokens import TokenWriter
from regard.training.config import TrainConfig


def restrict_training(model: nn.Module, config: TrainConfig, *, seed: int) -> None:
    """Freeze what `config` does not train, and add its adapters, in place.

    Raises: UserError if the model has no such parts, or nothing is left to train.
    """
    if config.lora is not None:
        core, model = _transformer_of("lora", model)
        model.requires_grad_(False)
        if not isinstance(model.writer, TokenWriter):
            model.writer.requires_grad_(True)
        add_adapters(core, config.lora, seed=seed)
    if config.freeze is not None:
        core, model = _transformer_of("freeze", model)
        stack = core.encoder if core.encodes else core.decoder
        count = 0 if isinstance(config.freeze, str) else config.freeze
        if count > len(stack):
            kind = "encoder" if core.encodes else "decoder"
            raise UserError(
                f"train.freeze must be reader, or at most {len(stack)}, the number of blocks of "
                f"the {kind}, got {count}"
            )
        for part in [*_input_parts(model, core), *stack[:count]]:
            part.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("train.freeze and train.lora leave no parameter to train")


def distances_from_top(model: nn.Module) -> dict[int, int]:
    """Return the distance of each parameter from the output, by its id; 0 if it is not there."""
    core, model = _transformer_of("layer_decay", model)
    stacks = core.encoder, core.decoder
    lowest = max(map(len, stacks)) + 1
    kinds = Reader | PositionalEncoding
    parts = [part for part in model.modules() if isinstance(part, kinds)]
    distances = {}
    for part in [*parts, core.encoder_embedding_norm, core.decoder_embedding_norm]:
        distances |= {id(parameter): lowest for parameter in part.parameters()}
    for stack in stacks:
        for distance, block in enumerate(reversed(stack), start=1):
            for parameter in block.parameters():
                distances.setdefault(id(parameter), distance)
    return distances


def hidden_matrices(model: nn.Module) -> set[int]:
    """Return the ids of the weights of the linear layers of a Transformer's blocks."""
    core, _ = _transformer_of("optimizer muon", model)
    parts = [part for block in [*core.encoder, *core.decoder] for part in block.modules()]
    return {id(part.weight) for part in parts if isinstance(part, nn.Linear)}


def _input_parts(model: Model, core: Transformer) -> list[nn.Module]:
    """Return the parts before the first block; of a model without a reader, those of targets."""
    if model.reader is not None:
        return [model.reader, core.positions, core.encoder_embedding_norm]
    norm = core.decoder_embedding_norm
    return [*model.writer.predictor_modules(), core.target_positions, norm]


def has_transformer(model: nn.Module) -> bool:
    """Return True if the core of the model is a Transformer."""
    return isinstance(model, Model) and isinstance(model.core, Transformer)


def _transformer_of(setting: str, model: nn.Module) -> tuple[Transformer, Model]:
    if isinstance(model, Model) and isinstance(model.core, Transformer):
        return model.core, model
    raise UserError(f"train.{setting} is for models with a Transformer: this model has none")
