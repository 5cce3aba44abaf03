"""Settings and edits of models: each engine gives torch's outputs or refuses with a reason."""

import dataclasses
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from torch import nn

from regard.attention.biases import Alibi
from regard.attention.choices import Hard, Soft
from regard.attention.scores import Cosine, InnerProduct, ScaledDot
from regard.engines.compiled import engine as compiled
from regard.engines.lowering import _check_parameters, _unsupported_features
from regard.engines.registry import prepare
from regard.engines.torch import TorchEngine
from regard.layers.blocks import DecoderBlock
from regard.layers.dropout import Dropout
from regard.layers.feedforward import FeedForward
from regard.layers.forms import NoFormError, TextForm, form_of
from regard.layers.multihead import MultiHead
from regard.layers.norms import RMSNorm
from regard.layers.positions.config import (
    AlibiConfig,
    LearnedConfig,
    PositionsConfig,
    RelativeConfig,
    RotaryConfig,
)
from regard.layers.positions.learned import Learned
from regard.layers.positions.sinusoidal import Sinusoidal
from regard.layers.read import Read
from regard.models.config import ModelConfig
from regard.models.cores.config import TransformerConfig
from regard.models.readers.tokens import embedding_projection
from tests.engines.small import (
    SMALL,
    VOCAB,
    Change,
    check,
    encoder_decoder,
    is_close,
    language_model,
    outputs,
    unsupported_reason,
)
from tests.helpers import SEQUENCE_POSITIONS

pytestmark = [
    pytest.mark.usefixtures("no_shape_checks"),
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning"),
]


def literals() -> Iterator[tuple[str, Any]]:
    """Yield every value of a Transformer's fields of choice: literals, booleans, variants."""
    for name, hint in get_type_hints(TransformerConfig).items():
        if hint == PositionsConfig:
            yield from ((name, variant()) for variant in SEQUENCE_POSITIONS)
        elif hint is bool:
            yield from ((name, value) for value in (False, True))
        elif get_origin(hint) is Literal:
            yield from ((name, value) for value in get_args(hint))


OTHERS = {
    "layers": 1, "decoder_layers": 3, "width": 14, "heads": 4, "head_dim": 5, "head_value_dim": 3,
        "feedforward": 33,
    "head_key_dim": 5, "score_hidden": 3, "norm_eps": 1e-3, "kernel": "reference", "key_heads": 1,
        "soft_cap": 2.0,
    "inducing_points": 2, "window": 2, "pattern": "SL", "attention_bias": "qkv",
    "final_norm": False, "layer_scale": 0.1, "registers": 3,
    "beta": 2.0, "hard": "gumbel", "top_k": 2, "alpha": 2.0,
}  # fmt: skip
DENSE = "feedforward", "dense"
NEEDS = {
    "head_key_dim": {"score": "general"}, "score_hidden": {"score": "additive"},
    "shared_positions": {"positions": LearnedConfig()},
    "pattern": {"window": 2},
    "hard": {"choice": "hard"}, "top_k": {"choice": "topk"}, "alpha": {"choice": "sparse"},
}  # fmt: skip
"""Settings without which others are refused."""
SUPPORTED = {
    *(("activation", value) for value in ("relu", "gelu", "gelu-tanh", "silu")),
    *(("norm_order", value) for value in ("pre", "post")),
    *(("norm", value) for value in ("layer", "rms")),
    *((name, value) for name in ("bias", "gated", "output_projection") for value in (True, False)),
    *((name, value) for name in ("embedding_norm", "shared_positions") for value in (True, False)),
    *(("positions", value()) for value in SEQUENCE_POSITIONS),
    *(("score", value) for value in ("scaled-dot", "dot")),
    *(("choice", value) for value in ("soft", "sigmoid")),
    *(("sink", value) for value in ("none", "learned", "zero")),
    *(("qk_norm", value) for value in ("none", "rms", "l2")),
    *(("gate", value) for value in ("none", "head", "element")),
    *(("decay", value) for value in ("item", "head", "none")),
    ("first_norm", True),
}
"""Settings of an encoder-decoder that compiled code supports; changes must be intended."""


def test_each_setting_of_a_transformer_is_tested() -> None:
    names = {field.name for field in dataclasses.fields(TransformerConfig)}
    assert names == {name for name, _ in literals()} | set(OTHERS)


@pytest.mark.parametrize(("field", "value"), [*literals(), *OTHERS.items(), DENSE])
@pytest.mark.parametrize("make", [encoder_decoder, language_model])
def test_each_value_of_each_setting_gives_the_outputs_of_torch_or_is_refused(
    make, field, value
) -> None:
    if make is language_model and field in ("inducing_points", "decoder_layers"):
        return  # the core refuses them: there is no encoder
    if make is language_model and (field, value) == ("shared_positions", False):
        return
    needs = NEEDS.get(field, {})
    if field == "decay":
        needs = {"pattern": "D" if make is language_model else "L/D"}
    reason = check(make(dataclasses.replace(SMALL, **needs | {field: value})))
    if field in ("pattern", "registers", "decay"):
        assert reason is None
    if field == "layer_scale":
        assert "add_attention has a layer scale, which only torch runs" in str(reason)
    if (field, value) == DENSE:
        assert "feedforward is a DenseLayer, which only torch runs" in str(reason)
    if make is encoder_decoder and field not in OTHERS:
        assert (reason is None) == ((field, value) in SUPPORTED)


@pytest.mark.parametrize("make", [encoder_decoder, language_model])
@pytest.mark.parametrize("positions", [RotaryConfig(), RelativeConfig()])
def test_blocks_without_positions_run_beside_others(make, positions) -> None:
    core = dataclasses.replace(SMALL, positions=positions, window=3, pattern="NS", head_dim=8)
    assert check(make(core)) is None


@pytest.mark.parametrize("tie", get_args(get_type_hints(ModelConfig)["tie"]))
def test_each_way_to_tie_tables_gives_the_outputs_of_torch(tie) -> None:
    assert check(encoder_decoder(tie=tie)) is None


@pytest.mark.parametrize(("dim", "scale"), [(None, "one"), (5, "root"), (17, "one")])
@pytest.mark.parametrize(
    "make", [encoder_decoder, language_model, partial(encoder_decoder, tie="all")]
)
def test_embeddings_of_each_size_and_scale_give_the_outputs_of_torch(make, dim, scale) -> None:
    assert check(make(embedding_dim=dim, embedding_scale=scale)) is None


@pytest.mark.parametrize("make", [encoder_decoder, language_model])
@pytest.mark.parametrize("tie", ["target", "none"])
def test_biases_of_logits_give_the_outputs_of_torch(make, tie) -> None:
    model, plain = make(tie=tie, output_bias=True), make(tie=tie)
    assert check(model) is None
    assert outputs(TorchEngine(model)) != outputs(TorchEngine(plain))
    model.writer.output_bias = nn.Parameter(torch.zeros(VOCAB + 1))
    assert "has weights of shape (14,) where (13,) is expected" in str(unsupported_reason(model))


@pytest.mark.parametrize("kind", ["all", "qkv", "none"])
@pytest.mark.parametrize("make", [encoder_decoder, language_model])
def test_biases_of_attention_give_the_outputs_of_torch(make, kind) -> None:
    for bias in (True, False):
        model = make(dataclasses.replace(SMALL, bias=bias, attention_bias=kind))
        attention = model.core.decoder[1].attention
        assert (attention.key.bias is None, attention.output.bias is None) == (
            kind == "none",
            kind != "all",
        )
        assert (model.core.decoder[0].feedforward.expand.bias is None) != bias
        assert check(model) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model.reader, "scale", 3.0),
        lambda model: setattr(model.reader, "projection", embedding_projection(5, 12)),
    ],
    ids=["scale", "projection"],
)
def test_readers_of_one_table_may_differ(change) -> None:
    model = encoder_decoder(tie="all", embedding_dim=5)
    change(model)
    assert check(model) is None


def put(path: str, name: str, value: Any) -> Change:
    """Return a change that sets an attribute of a submodule."""
    return lambda model: setattr(
        attrgetter(path)(model), name, value() if callable(value) else value
    )


def modify(path: str, change: Callable[[torch.Tensor], Any]) -> Change:
    """Return a change of a parameter in place."""

    def apply(model: Any) -> None:
        with torch.no_grad():
            change(model.get_parameter(path))

    return apply


class Root(nn.Module):
    """Norm of an unknown class."""

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        return items * items.pow(2).mean(-1, keepdim=True).rsqrt()


def set_all(kind: type, **values: Any) -> Change:
    """Return a change that sets attributes of all submodules of a class."""

    def apply(model: Any) -> None:
        for module in model.modules():
            if type(module) is kind:
                vars(module).update(values)

    return apply


def share_block(model: Any) -> None:
    model.core.encoder[1] = model.core.encoder[0]


def share_part(model: Any) -> None:
    model.core.encoder[1].feedforward = model.core.encoder[0].feedforward


def load_weights(model: Any) -> None:
    torch.manual_seed(9)
    weights = model.state_dict()
    for name, weight in weights.items():
        weights[name] = weight + 0.1 * torch.randn_like(weight)
    model.load_state_dict(weights)


def quantize(model: Any) -> None:
    torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, inplace=True)


def in_inference_mode(*sizes: int) -> nn.Parameter:
    with torch.inference_mode():
        return nn.Parameter(torch.randn(sizes), requires_grad=False)


def set_self_attention_bias(model: Any, bias: nn.Module) -> None:
    for block in (*model.core.encoder, *model.core.decoder):
        block.attention.read.bias = bias


FF = "core.decoder.1.feedforward"
NORM = "core.decoder.1.add_cross.norm"
OWN = "core.encoder.1.attention"
EDITS: dict[str, tuple[Change, bool]] = {
    # The change, and True if the compiled engine supports the changed model.
    "another eps": (put(NORM, "eps", 40.0), True),
    "no shift of a norm": (put(NORM, "bias", None), True),
    "no shift and no scale": (put("core.encoder.1.add_attention", "norm", partial(nn.LayerNorm, 12,
        bias=False)), True),
    "no bias of queries": (put(f"{OWN}.query", "bias", None), True),
    "no bias of a feed-forward network": (put(f"{FF}.expand", "bias", None), True),
    "RMSNorm": (put("core.encoder.0.add_attention", "norm", lambda: nn.RMSNorm(12)), False),
    "a norm of an unknown class": (put("core.encoder.0.add_attention", "norm", Root), False),
    "a norm of other items": (put(NORM.removesuffix(".norm"), "norm", lambda: nn.LayerNorm(11,
        bias=False)), False),
    "no norm": (put("core.encoder.0.add_attention", "norm", nn.Identity), False),
    "no last norm": (put("core", "decoder_norm", nn.Identity), True),
    "a last norm of an unknown class": (put("core", "decoder_norm", Root), False),
    "a norm of the embeddings": (put("core", "decoder_embedding_norm", lambda: nn.LayerNorm(12,
        bias=False)), True),
    "a norm of the embeddings of another kind": (put("core", "encoder_embedding_norm",
        lambda: nn.RMSNorm(12)), False),
    "positions of the decoder": (put("core", "decoder_positions", lambda: Learned(30, 12)), True),
    "sines of another size in the decoder": (put("core", "decoder_positions",
        lambda: Sinusoidal(14)), False),
    "another activation in one block": (put(FF, "activation", "gelu"), False),
    "another activation": (set_all(FeedForward, activation="gelu"), True),
    "an unknown activation": (set_all(FeedForward, activation="tanh"), False),
    "another order in one place": (put("core.decoder.1.add_cross", "order", "post"), False),
    "an unknown order": (put("core.decoder.1.add_cross", "order", "sandwich"), False),
    "a window": (set_all(DecoderBlock, window=2), True),
    "a window of one decoder block": (put("core.decoder.1", "window", 2), True),
    "a window of one encoder block": (put("core.encoder.1", "window", 2), True),
    "an empty window": (set_all(DecoderBlock, window=0), False),
    "cross-attention without a residual connection": (put("core.decoder.1", "add_cross", None),
        False),
    "one head": (set_all(MultiHead, num_heads=1, key_heads=1), True),
    "other heads": (set_all(MultiHead, num_heads=3, key_heads=3), True),
    "heads of one block": (lambda model: set_all(MultiHead, num_heads=3,
        key_heads=3)(model.core.encoder[1]), False),
    "heads that do not divide": (put(OWN, "num_heads", 5), False),
    "more numbers of queries": (put(OWN, "query", lambda: nn.Linear(12, 14)), False),
    "fewer numbers to an output": (put(OWN, "output", lambda: nn.Linear(10, 12)), False),
    "no heads of keys": (put(OWN, "key_heads", 0), False),
    "another score": (put(f"{OWN}.read", "score", Cosine), False),
    "another choice": (lambda model: setattr(model.core.encoder[0].attention.read.choice,
        "_fixed_beta", 2.0), True),
    "a choice with a replaced property": (set_all(Soft, beta=2.0), False),
    "a positional bias in one block": (put("core.encoder.1.attention.read", "bias",
        lambda: Alibi(2)), True),
    "a positional bias of cross-attention": (put("core.decoder.1.cross.read", "bias",
        lambda: Alibi(2)), False),
    "a positional bias for other heads": (lambda model: set_self_attention_bias(model, Alibi(3)),
        False),
    "sines of another size": (put("core", "positions", lambda: Sinusoidal(14)), False),
    "learned positions of another size": (put("core", "positions", lambda: Learned(30, 13)), False),
    "outputs that are sets": (put("core", "in_order", False), False),
    "a shared block": (share_block, True),
    "a shared part": (share_part, True),
    "one block less": (lambda model: model.core.encoder.__delitem__(1), True),
    "no decoder": (lambda model: setattr(model.core, "decoder", nn.ModuleList()), False),
    "a norm in place of a table": (put("reader", "table", lambda: nn.LayerNorm(12)), False),
    "a table that cuts": (put("reader.table", "max_norm", 0.5), False),
    "another scale of a table": (put("reader", "scale", 3.0), True),
    "a map of embeddings of another size": (put("reader", "projection",
        lambda: embedding_projection(11, 12)), False),
    "a map of embeddings with a bias": (put("writer", "output_projection", lambda: nn.Linear(12,
        12)), False),
    "tables tied": (lambda model: setattr(model.reader, "table", model.writer.output_table), True),
    "a larger output": (put("writer", "output_table", lambda: nn.Embedding(VOCAB + 1, 12)), False),
    "a narrow table": (put("writer.inputs", "table", lambda: nn.Embedding(VOCAB, 11)), False),
    "a wider hidden layer": (put("core.encoder.1", "feedforward", lambda: FeedForward(12, 70)),
        True),
    "a linear map of torch": (put(FF, "contract", lambda: nn.Linear(20, 12)), True),
    "another size of a linear map": (put(FF, "contract", lambda: nn.Linear(21, 12)), False),
    "another input of a linear map": (put(FF, "expand", lambda: nn.Linear(11, 20)), False),
    "one bias for all": (put(f"{FF}.contract", "bias", lambda: nn.Parameter(torch.randn(1))),
        False),
    "sparse weights": (put(f"{FF}.contract", "weight", lambda: nn.Parameter(torch.randn(12,
        20).to_sparse())), False),
    "a norm in place of a map": (put(FF, "contract", lambda: nn.LayerNorm(20)), False),
    "weights changed in place": (modify(f"{OWN}.query.weight", lambda weight: weight.mul_(1.7)),
        True),
    "weights loaded": (load_weights, True),
    "weights of inference mode": (put(f"{OWN}.query", "weight", lambda: in_inference_mode(12, 12)),
        True),
    "NaN among the weights": (modify(f"{FF}.contract.bias",
        lambda weight: weight.fill_(float("nan"))), False),
    "double precision": (lambda model: model.double(), False),
    "one weight in half precision": (lambda model: model.core.decoder[0].feedforward.bfloat16(),
        False),
    "the meta device": (lambda model: model.to("meta"), False),
    "training": (lambda model: model.train(), False),
    "train mode without dropout": (lambda model: (set_all(Dropout, p=0.0)(model), model.train()),
        True),
    "one part in training": (put("core.encoder.0.add_attention.dropout", "training", True), False),
    "dynamic int8 of torch": (quantize, True),
}  # fmt: skip


RANDOM = ("training", "one part in training", "the meta device")
"""Edits after which the outputs of torch are random, or an error."""


@pytest.mark.parametrize("edit", EDITS)
def test_changed_model_gives_the_outputs_of_torch_or_is_refused(edit) -> None:
    change, is_run = EDITS[edit]
    model = encoder_decoder()
    engine = prepare("compiled", model)
    before = outputs(engine)
    assert is_close(before, outputs(TorchEngine(model)))
    change(model)
    assert outputs(engine) == before  # a snapshot
    if edit in RANDOM:
        reason = str(unsupported_reason(model))
        assert "training" in reason or "meta" in reason
        return
    assert (check(model) is None) == is_run


def test_auto_uses_torch_with_a_warning_if_the_model_is_not_supported(monkeypatch) -> None:
    monkeypatch.setattr(compiled, "is_optimized_cpu", lambda: True)
    model = encoder_decoder()
    assert prepare("auto", model).name == "compiled"
    EDITS["RMSNorm"][0](model)
    with pytest.warns(UserWarning, match="engine 'torch' is used, which is slower"):
        engine = prepare("auto", model)
    assert engine.name == "torch"


def test_parameter_that_is_not_in_the_form_is_refused() -> None:
    model = encoder_decoder()
    form = form_of(model, TextForm)
    _check_parameters(form, model)
    part = dataclasses.replace(form.core, encoder=form.core.encoder[:1])
    with pytest.raises(NoFormError, match=r"a parameter core\.encoder\.1\.\S+ that is not in its"):
        _check_parameters(dataclasses.replace(form, core=part), model)


@pytest.mark.parametrize("name", ["map_query", "map_keys"])
def test_score_that_maps_queries_or_keys_is_no_inner_product(name) -> None:
    assert Read().form(4).score == InnerProduct(0.5)
    mapping = type("Mapping", (ScaledDot,), {name: lambda self, vectors: 2 * vectors})
    assert Read(score=mapping()).form(4).score is None


def test_hard_choice_has_no_temperature() -> None:
    assert Read(choice=Soft(0.5)).form(4).beta == 0.5
    assert Read(choice=Hard()).form(4).beta is None


@pytest.mark.parametrize(("order", "final"), [("pre", False), ("post", True)])
@pytest.mark.parametrize("make", [encoder_decoder, language_model])
def test_last_norms_independent_of_the_order_give_the_outputs_of_torch(make, order, final) -> None:
    model = make(dataclasses.replace(SMALL, norm_order=order, final_norm=final))
    assert (type(model.core.decoder_norm) is nn.LayerNorm) == final
    assert check(model) is None


def test_norms_of_queries_and_keys_are_refused_where_no_compiled_code_has_them() -> None:
    core = dataclasses.replace(SMALL, qk_norm="rms")
    model = language_model(core)
    model.core.decoder[0].attention.key_norm = nn.LayerNorm(6)
    assert "queries and keys are not both RMSNorm" in str(unsupported_reason(model))
    model = language_model(core)
    model.core.decoder[0].attention.query_norm = None
    assert "queries and keys are not both RMSNorm" in str(unsupported_reason(model))
    model.core.decoder[0].attention.key_norm = None
    assert check(model) is None  # one block has norms
    for options in ({"beta": 2.0}, {"beta": "learned"}):
        model = language_model(dataclasses.replace(core, **options))
        assert "has a beta, and its queries are normal" in str(unsupported_reason(model))
    model = language_model(core)
    model.core.decoder[1].attention.query_norm = nn.RMSNorm(5)
    assert "weights of shape (5,) where (6,) is expected" in str(unsupported_reason(model))


@pytest.mark.parametrize("order", ["pre", "post"])
def test_self_attention_alone_may_normalize_queries_and_keys(order) -> None:
    core = dataclasses.replace(SMALL, qk_norm="rms", norm_order=order)
    model = encoder_decoder(core)
    for block in model.core.decoder:
        block.cross.query_norm = block.cross.key_norm = None
    assert check(model) is None
    assert check(language_model(core)) is None


def test_changed_memories_that_are_written_are_refused() -> None:
    def reason_after(name: str, value: Any) -> str:
        model = language_model(dataclasses.replace(SMALL, pattern="D"))
        setattr(model.core.decoder[1].attention, name, value)
        return str(unsupported_reason(model))

    assert "has a strength that misfits a DeltaMemory" in reason_after("strength", None)
    assert "has a parameter core.decoder.1.attention.decay" in reason_after("decay_logit", None)
    assert "read from a memory is not RMSNorm" in reason_after("norm", nn.LayerNorm(6))
    assert "weights of shape (5,) where (6,) is expected" in reason_after("norm", RMSNorm(5))
    assert "(3, 12) where (2, 12) is" in reason_after("strength", nn.Linear(12, 3))
    model = encoder_decoder(dataclasses.replace(SMALL, pattern="L/D"))
    model.core.encoder[0].attention = model.core.decoder[0].attention
    assert check(model) is not None


def test_capped_score_is_not_a_plain_inner_product() -> None:
    form = form_of(language_model(), TextForm)
    block = form.core.decoder[0]
    read = dataclasses.replace(block.attention.read, score=InnerProduct(1.0, cap=2.0))
    block = dataclasses.replace(block, attention=dataclasses.replace(block.attention, read=read))
    core = dataclasses.replace(form.core, decoder=(block, *form.core.decoder[1:]))
    assert [*_unsupported_features(form)] == []
    capped = dataclasses.replace(form, core=core)
    assert "not a plain inner product" in next(_unsupported_features(capped))


def test_engine_works_in_a_forked_process() -> None:
    engine = prepare("compiled", encoder_decoder(), workers=2)  # threads, which no fork copies
    expected = outputs(engine)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if is_close(outputs(engine), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_language_model_with_an_encoder_is_refused() -> None:
    model = language_model()
    model.core.encoder = encoder_decoder().core.encoder
    assert "has an encoder and reads no source" in str(unsupported_reason(model))


@pytest.mark.parametrize("make", [encoder_decoder, language_model])
@pytest.mark.parametrize(
    "options", [{"beta": 3.0}, {"beta": "learned"}, {"beta": "learned", "bias": False}]
)
def test_beta_gives_the_outputs_of_torch(options, make) -> None:
    model = make(dataclasses.replace(SMALL, **options))
    if options["beta"] == "learned":  # heads differ
        for key, weight in model.named_parameters():
            if key.endswith("log_beta"):
                weight.data.copy_(torch.tensor([1.2, -0.9]).view(2, 1, 1))
    assert check(model) is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"choice": "hard"}, "read.choice is a Hard, which only torch runs"),
        ({"choice": "sparse"}, "read.choice is a Sparse, which only torch runs"),
        ({"choice": "topk", "top_k": 2}, "read.choice is a TopK, which only torch runs"),
        ({"beta": 2.0, "positions": AlibiConfig()}, "a beta, by which its positional bias is mult"),
        ({"beta": "learned", "positions": AlibiConfig()}, "a beta, by which its positional bias"),
    ],
)
def test_other_choices_are_refused(options, reason) -> None:
    model = language_model(dataclasses.replace(SMALL, **options))
    assert reason in str(unsupported_reason(model))
