"""Every setting, and whatever is done to a model: an engine answers as torch does, or refuses and says why."""

import dataclasses
import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from torch import nn

from regard.attention.choices import Soft
from regard.attention.hard import Hard
from regard.attention.positional import Alibi
from regard.attention.scores import InnerProduct, ScaledDot
from regard.attention.scores_more import Cosine
from regard.engines.compiled import engine as compiled
from regard.engines.lowering import _check_whole, irregular
from regard.engines.reference import TorchEngine
from regard.engines.registry import prepare, refusal
from regard.layers.blocks import DecoderBlock
from regard.layers.dropout import Dropout
from regard.layers.feedforward import FeedForward
from regard.layers.forms import NoFormError, TextForm, form_of
from regard.layers.multihead import MultiHead
from regard.layers.positions import Learned, Sinusoidal
from regard.layers.read import Read
from regard.models.config import ModelConfig, TransformerConfig
from tests.engines.small import (
    ENGINES,
    SMALL,
    VOCAB,
    Change,
    asked,
    check,
    near,
    speaker,
    translator,
)

pytestmark = [
    pytest.mark.usefixtures("unchecked"),
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning"),
]


def literals() -> Iterator[tuple[str, Any]]:
    """Every value of every field of a Transformer that is one of several."""
    for name, hint in get_type_hints(TransformerConfig).items():
        if get_origin(hint) is Literal:
            yield from ((name, value) for value in get_args(hint))


OTHERS = {
    "layers": 1, "decoder_layers": 3, "width": 14, "heads": 4, "head_dim": 5, "head_value_dim": 3, "feedforward": 33,
    "max_positions": 12, "kernel": "reference", "key_heads": 1, "soft_cap": 2.0, "inducing_points": 2, "window": 2,
}  # fmt: skip
RUN = {
    "compiled": {
        *(("activation", value) for value in ("relu", "gelu")),
        *(("norm", value) for value in ("pre", "post")),
        *(("positions", value) for value in ("sinusoidal", "learned", "alibi", "relative", "none")),
        *(("score", value) for value in ("scaled-dot", "dot")),
    },
    "ctranslate2": {
        *(("activation", value) for value in ("relu", "gelu")),
        *(("norm", value) for value in ("pre", "post")),
        *(("positions", value) for value in ("sinusoidal", "learned", "none")),
        *(("score", value) for value in ("scaled-dot", "dot")),
    },
}
"""What each engine runs of an encoder-decoder: it must not become less unnoticed."""


def test_each_setting_of_a_transformer_is_tried() -> None:
    names = {field.name for field in dataclasses.fields(TransformerConfig)}
    assert names == {name for name, _ in literals()} | set(OTHERS)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(("field", "value"), [*literals(), *OTHERS.items()])
@pytest.mark.parametrize("make", [translator, speaker])
def test_each_value_of_each_setting_is_answered_as_by_torch_or_refused(make, field, value, name) -> None:
    reason = check(make(dataclasses.replace(SMALL, **{field: value})), name)
    if make is translator and field not in OTHERS:
        assert (reason is None) == ((field, value) in RUN[name])


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("tie", get_args(get_type_hints(ModelConfig)["tie"]))
def test_each_way_to_tie_tables_is_answered_as_by_torch(tie, name) -> None:
    assert check(translator(tie=tie), name) is None


def of(path: str, name: str, value: Any) -> Change:
    """Another attribute of a part."""
    return lambda model: setattr(attrgetter(path)(model), name, value() if callable(value) else value)


def weights(path: str, change: Callable[[torch.Tensor], Any]) -> Change:
    def work(model: Any) -> None:
        with torch.no_grad():
            change(model.get_parameter(path))

    return work


class Root(nn.Module):
    """A norm of another kind."""

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        return items * items.pow(2).mean(-1, keepdim=True).rsqrt()


def each(kind: type, **values: Any) -> Change:
    """Other attributes of all parts of a class."""

    def work(model: Any) -> None:
        for module in model.modules():
            if type(module) is kind:
                vars(module).update(values)

    return work


def shared(model: Any) -> None:
    model.core.encoder[1] = model.core.encoder[0]


def same_part(model: Any) -> None:
    model.core.encoder[1].feedforward = model.core.encoder[0].feedforward


def loaded(model: Any) -> None:
    torch.manual_seed(9)
    model.load_state_dict(
        {name: weight + 0.1 * torch.randn_like(weight) for name, weight in model.state_dict().items()}
    )


def quantized(model: Any) -> None:
    torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, inplace=True)


def in_inference_mode(*sizes: int) -> nn.Parameter:
    with torch.inference_mode():
        return nn.Parameter(torch.randn(sizes), requires_grad=False)


def every_self_attention(model: Any, bias: nn.Module) -> None:
    for block in (*model.core.encoder, *model.core.decoder):
        block.attention.read.bias = bias


FF, NORM, OWN = "core.decoder.1.feedforward", "core.decoder.1.add_cross.norm", "core.encoder.1.attention"
EDITS: dict[str, tuple[Change, bool]] = {
    # What is done, and whether compiled code runs the model then.
    "another eps": (of(NORM, "eps", 40.0), True),
    "another eps of all": (each(nn.LayerNorm, eps=9.0), True),
    "no shift of a norm": (of(NORM, "bias", None), True),
    "no shift and no scale": (of("core.encoder.1.add_attention", "norm", partial(nn.LayerNorm, 12, bias=False)), True),
    "no offsets of queries": (of(f"{OWN}.query", "bias", None), True),
    "no offsets of a feed-forward network": (of(f"{FF}.expand", "bias", None), True),
    "RMSNorm": (of("core.encoder.0.add_attention", "norm", lambda: nn.RMSNorm(12)), False),
    "a norm of one's own": (of("core.encoder.0.add_attention", "norm", Root), False),
    "a norm of other items": (of(NORM.removesuffix(".norm"), "norm", lambda: nn.LayerNorm(11, bias=False)), False),
    "a bare norm of other items": (
        of(NORM.removesuffix(".norm"), "norm", lambda: nn.LayerNorm(11, elementwise_affine=False)), False,
    ),
    "no norm": (of("core.encoder.0.add_attention", "norm", nn.Identity), False),
    "no last norm": (of("core", "decoder_norm", nn.Identity), False),
    "no last norm of the encoder": (of("core", "encoder_norm", nn.Identity), False),
    "another activation in one block": (of(FF, "activation", "gelu"), False),
    "another activation": (each(FeedForward, activation="gelu"), True),
    "an unknown activation": (each(FeedForward, activation="tanh"), False),
    "another order in one place": (of("core.decoder.1.add_cross", "order", "post"), False),
    "an unknown order": (of("core.decoder.1.add_cross", "order", "sandwich"), False),
    "a window": (each(DecoderBlock, window=2), True),
    "a window in one block": (of("core.decoder.1", "window", 2), False),
    "a window of nothing": (each(DecoderBlock, window=0), False),
    "a source that is not added": (of("core.decoder.1", "add_cross", None), False),
    "one head": (each(MultiHead, num_heads=1, key_heads=1), True),
    "other heads": (each(MultiHead, num_heads=3, key_heads=3), True),
    "other heads in one block": (lambda model: each(MultiHead, num_heads=3, key_heads=3)(model.core.encoder[1]), False),
    "heads that do not divide": (of(OWN, "num_heads", 5), False),
    "heads of all that do not divide": (each(MultiHead, num_heads=5, key_heads=5), False),
    "more numbers of queries": (of(OWN, "query", lambda: nn.Linear(12, 14)), False),
    "fewer numbers to an output": (of(OWN, "output", lambda: nn.Linear(10, 12)), False),
    "no heads of keys": (of(OWN, "key_heads", 0), False),
    "another score": (of(f"{OWN}.read", "score", Cosine), False),
    "another choice": (lambda model: setattr(model.core.encoder[0].attention.read.choose, "_given", 2.0), False),
    "a choice behind its property": (each(Soft, beta=2.0), False),
    "positions in one block": (lambda model: setattr(model.core.encoder[1].attention.read, "bias", Alibi(2)), False),
    "positions of the source": (lambda model: setattr(model.core.decoder[1].cross.read, "bias", Alibi(2)), False),
    "positions for other heads": (lambda model: every_self_attention(model, Alibi(3)), False),
    "other sines": (lambda model: model.core.positions._table.mul_(2), False),
    "sines of another size": (of("core", "positions", lambda: Sinusoidal(14)), False),
    "learned positions of another size": (of("core", "positions", lambda: Learned(30, 13)), False),
    "answers that are sets": (of("core", "in_order", False), False),
    "a shared block": (shared, False),
    "a shared part": (same_part, True),
    "one block less": (lambda model: model.core.encoder.__delitem__(1), True),
    "no decoder": (lambda model: setattr(model.core, "decoder", nn.ModuleList()), False),
    "a norm in place of a table": (of("reads", "table", lambda: nn.LayerNorm(12)), False),
    "a table that cuts": (of("reads.table", "max_norm", 0.5), False),
    "another scale of a table": (of("reads.table", "embedding_dim", 3), True),
    "tables tied": (lambda model: setattr(model.reads, "table", model.writes.output_table), True),
    "a larger output": (of("writes", "output_table", lambda: nn.Embedding(VOCAB + 1, 12)), False),
    "a narrow table": (of("writes.inputs", "table", lambda: nn.Embedding(VOCAB, 11)), False),
    "a wider hidden layer": (of("core.encoder.1", "feedforward", lambda: FeedForward(12, 70)), True),
    "a linear map of torch": (of(FF, "contract", lambda: nn.Linear(20, 12)), True),
    "another size of a linear map": (of(FF, "contract", lambda: nn.Linear(21, 12)), False),
    "another input of a linear map": (of(FF, "expand", lambda: nn.Linear(11, 20)), False),
    "one offset for all": (of(f"{FF}.contract", "bias", lambda: nn.Parameter(torch.randn(1))), False),
    "sparse weights": (of(f"{FF}.contract", "weight", lambda: nn.Parameter(torch.randn(12, 20).to_sparse())), False),
    "a norm in place of a map": (of(FF, "contract", lambda: nn.LayerNorm(20)), False),
    "weights changed in place": (weights(f"{OWN}.query.weight", lambda weight: weight.mul_(1.7)), True),
    "weights replaced": (of(f"{OWN}.query", "weight", lambda: nn.Parameter(torch.randn(12, 12))), True),
    "weights under the same parameter": (of(f"{OWN}.query.weight", "data", lambda: torch.randn(12, 12)), True),
    "weights loaded": (loaded, True),
    "weights of inference mode": (of(f"{OWN}.query", "weight", lambda: in_inference_mode(12, 12)), True),
    "NaN among the weights": (weights(f"{FF}.contract.bias", lambda weight: weight.fill_(float("nan"))), False),
    "infinity among the weights": (weights(f"{FF}.contract.bias", lambda weight: weight[0].fill_(float("inf"))), False),
    "double precision": (lambda model: model.double(), False),
    "half precision": (lambda model: model.bfloat16(), False),
    "one weight in half precision": (lambda model: model.core.decoder[0].feedforward.bfloat16(), False),
    "no memory behind it": (lambda model: model.to("meta"), False),
    "training": (lambda model: model.train(), False),
    "train mode without dropout": (lambda model: (each(Dropout, p=0.0)(model), model.train()), True),
    "one part in training": (of("core.encoder.0.add_attention.dropout", "training", True), False),
    "dynamic int8 of torch": (quantized, True),
}  # fmt: skip


RANDOM = ("training", "one part in training", "no memory behind it")
"""Edits after which torch itself answers at random, or not at all."""


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("edit", EDITS)
def test_a_model_that_was_changed_is_answered_as_by_torch_or_refused(edit, name) -> None:
    change, is_run = EDITS[edit]
    model = translator()
    engine = prepare(name, model)
    before = asked(engine)
    assert near(before, asked(TorchEngine(model)))
    change(model)
    assert asked(engine) == before  # a snapshot
    if edit in RANDOM:
        assert "training" in str(refusal(name, model)) or "meta" in str(refusal(name, model))
        return
    reason = check(model, name)
    if name == "compiled":
        assert (reason is None) == is_run


@pytest.mark.parametrize("edit", [edit for edit in EDITS if edit not in RANDOM])
def test_auto_answers_as_torch_does_and_warns_if_torch_answers(edit, monkeypatch) -> None:
    monkeypatch.setattr(compiled, "is_at_home", lambda: True)
    change, is_run = EDITS[edit]
    model = translator()
    change(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = prepare("auto", model)
    assert engine.name == ("compiled" if is_run else "torch")
    told = ["engine 'torch' is used, which is slower" in str(one.message) for one in caught]
    assert told.count(True) == (not is_run)
    assert near(asked(engine), asked(TorchEngine(model)))


def test_a_parameter_that_no_form_holds_is_refused() -> None:
    model = translator()
    form = form_of(model, TextForm)
    _check_whole(form, model)
    part = dataclasses.replace(form.core, encoder=form.core.encoder[:1])
    with pytest.raises(NoFormError, match=r"has a parameter core\.encoder\.1\.\S+ that takes no part"):
        _check_whole(dataclasses.replace(form, core=part), model)


@pytest.mark.parametrize("name", ["map_query", "map_keys"])
def test_a_score_that_maps_queries_or_keys_is_no_product_of_them_as_they_are(name) -> None:
    assert Read().form(4).score == InnerProduct(0.5)
    mapping = type("Mapping", (ScaledDot,), {name: lambda self, vectors: 2 * vectors})
    assert Read(score=mapping()).form(4).score is None


def test_a_hard_choice_has_no_temperature() -> None:
    assert Read(choose=Soft(0.5)).form(4).beta == 0.5
    assert Read(choose=Hard()).form(4).beta is None


@pytest.mark.parametrize(
    ("order", "norm", "reason"),
    [
        ("pre", nn.Identity, "of pre-norm blocks do not end in a norm"),
        ("post", lambda: nn.LayerNorm(12), "of post-norm blocks end in a norm"),
    ],
)
def test_a_stack_that_ends_otherwise_is_told(order, norm, reason) -> None:
    model = translator(dataclasses.replace(SMALL, norm=order))
    model.core.encoder_norm = norm()
    assert reason in str(refusal("compiled", model))


def test_capped_scores_are_no_plain_inner_products() -> None:
    form = form_of(speaker(), TextForm)
    block = form.core.decoder[0]
    read = dataclasses.replace(block.attention.read, score=InnerProduct(1.0, cap=2.0))
    block = dataclasses.replace(block, attention=dataclasses.replace(block.attention, read=read))
    core = dataclasses.replace(form.core, decoder=(block, *form.core.decoder[1:]))
    assert [*irregular(form)] == []
    assert "not a plain inner product" in next(irregular(dataclasses.replace(form, core=core)))


def test_engine_answers_in_a_forked_process() -> None:
    engine = prepare("compiled", translator())
    right = asked(engine)
    child = os.fork()
    if child == 0:
        os._exit(0 if near(asked(engine), right) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("name", ENGINES)
def test_a_language_model_with_an_encoder_is_refused(name) -> None:
    model = speaker()
    model.core.encoder = translator().core.encoder
    assert "has an encoder and reads no source" in str(refusal(name, model))
