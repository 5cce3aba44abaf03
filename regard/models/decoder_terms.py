"""Contributions of the parts of a Transformer decoder to the logits of its target tokens, exactly.

    h_t = x_t + sum over blocks of self-attention_t + cross-attention_t + feed-forward_t
    logit_t(y_t) - mean over v of logit_t(v) = sum over parts p of c_pt + c_t
    c_pt = d_t . term_pt

where h_t are the items of the decoder. At the statistics of the input that it normalizes, each norm
is linear: LayerNorm(x) = (x - mean(x)) gamma / s + beta with s = sqrt(variance + eps), and
RMSNorm(x) = x gamma / s. It is applied to every term: once at the end (norm order pre), or after
each sum (post). c_t is what the shifts beta and biases of the logits add. d_t is the output
embedding of y_t minus the mean of all. The contributions are exact for this input; a part depends
on the parts before it.

Source: elhage2021 (direct logit attribution; norms at their own statistics).
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.residual import Residual
from regard.models.cores.transformer import Transformer
from regard.models.model import Model
from regard.models.writers.tokens import TokenWriter
from regard.models.writers.vector import NoTermsError, check_sum

_NAMES = {
    "add_attention": "self-attention",
    "add_cross": "cross-attention",
    "add_feedforward": "feed-forward",
}


class DecoderTerms(NamedTuple):
    """Terms of the logit of each target token, minus the mean logit over the vocabulary."""

    parts: tuple[str, ...]
    terms: Float[Tensor, "batch part steps"]
    bias: Float[Tensor, "batch steps"]
    """What the shifts of the norms and biases of the logits add."""

    @property
    def total(self) -> Float[Tensor, "batch steps"]:
        """Return the logits, minus their mean over the vocabulary."""
        return self.terms.sum(1) + self.bias


def explain_decoder(model: Model, source: Any, target: Padded) -> DecoderTerms:
    """Return contributions to the logits of target tokens after the first (teacher forcing).

    Raises: NoTermsError if the core is no Transformer that decodes in order, a norm is no LayerNorm
            or RMSNorm, or the terms do not sum to the logits, as with a hook or a subclass that
            changes them.
    """
    core, writer = model.core, model.writer
    if not (isinstance(core, Transformer) and isinstance(writer, TokenWriter)):
        raise NoTermsError(f"the core {type(core).__name__} is no Transformer that decodes tokens")
    stream = _DecoderItems()
    with ExitStack() as hooks:
        for layer, block in enumerate(core.decoder, start=1):
            for name, part in _NAMES.items():
                residual = getattr(block, name, None)
                if not isinstance(residual, Residual | None):
                    raise NoTermsError(f"{name} of layer {layer} is no Residual")
                if residual is not None:
                    stream.follow(residual, f"layer {layer}: {part}", hooks)
        logits = model(source, target)
    stream.normalize(core.decoder_norm)
    tokens, table = target.items[:, 1:], writer.output_table.weight
    projection = writer.output_projection
    logits = logits[:, : tokens.shape[1]]
    direction = table[tokens] - table.mean(0)
    if projection is not None:
        direction = direction @ projection.weight.T
    terms = torch.stack([(term * direction).sum(-1) for _, term in stream.terms], 1)
    bias = (stream.bias * direction).sum(-1)
    if writer.output_bias is not None:
        bias = bias + writer.output_bias[tokens] - writer.output_bias.mean()
    found = DecoderTerms(tuple(name for name, _ in stream.terms), terms, bias)
    expected = logits.gather(-1, tokens[..., None]).squeeze(-1) - logits.mean(-1)
    check_sum(found.total, terms.abs().sum(1) + bias.abs(), expected)
    return found


class _DecoderItems:
    """Items of a decoder as a sum of terms, in the order in which its parts add them."""

    def __init__(self) -> None:
        self.terms: list[tuple[str, Tensor]] = []
        self.bias: Tensor = torch.zeros(())
        """Sum of what the shifts of norms add."""

    def follow(self, residual: Residual, name: str, hooks: ExitStack) -> None:
        """Add the output of a part of the decoder to the terms whenever it runs."""
        outputs: list[Tensor] = []

        def before(
            _: nn.Module, arguments: tuple[Tensor, Callable[[Tensor], Tensor]]
        ) -> tuple[Any, ...]:
            items, part = arguments
            if not self.terms:
                self.terms.append(("embedding", items))

            def record_output(given: Tensor) -> Tensor:
                output = part(given)
                outputs.append(output if residual.scale is None else output * residual.scale)
                return output

            return items, record_output

        def after(module: nn.Module, _: Any, __: Any) -> None:
            assert isinstance(module, Residual)
            if module.order == "none":
                self.terms, self.bias = [], torch.zeros(())
            self.terms.append((name, outputs.pop()))
            if module.order == "post":
                self.normalize(module.norm)

        hooks.enter_context(residual.register_forward_pre_hook(before))
        hooks.enter_context(residual.register_forward_hook(after))

    def normalize(self, norm: nn.Module) -> None:
        if isinstance(norm, nn.Identity):
            return
        items = torch.stack([term for _, term in self.terms]).sum(0) + self.bias
        is_centered, shift = isinstance(norm, nn.LayerNorm), None
        if isinstance(norm, nn.LayerNorm):
            scale = 1 / (items.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
            shift = norm.bias
        elif isinstance(norm, nn.RMSNorm):
            eps = torch.finfo(items.dtype).eps if norm.eps is None else norm.eps
            scale = 1 / (items.square().mean(-1, keepdim=True) + eps).sqrt()
        else:
            raise NoTermsError(f"the norm {type(norm).__name__} is neither LayerNorm nor RMSNorm")

        def scale_term(term: Tensor) -> Tensor:
            term = term - term.mean(-1, keepdim=True) if is_centered else term
            return term * scale if norm.weight is None else term * scale * norm.weight

        self.terms = [(name, scale_term(term)) for name, term in self.terms]
        self.bias = scale_term(self.bias.to(items.device).expand_as(items))
        if shift is not None:
            self.bias = self.bias + shift
