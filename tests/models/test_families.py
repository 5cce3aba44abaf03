"""Models with the settings of public families equal those of Transformers, in each engine."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.rules import NO_RULES
from regard.engines.compiled.engine import _Generation
from regard.engines.registry import prepare
from regard.engines.torch import TorchEngine
from regard.layers.positions.config import (
    LearnedConfig,
    RelativeConfig,
    RotaryConfig,
)
from regard.models.build import (
    build,
    build_classifier,
    build_language_model,
    build_tagger,
    build_token_reader,
)
from regard.models.config import (
    ClassifierConfig,
    LanguageModelConfig,
    ModelConfig,
    TaggerConfig,
    TextClassifierConfig,
)
from regard.models.cores.config import TransformerConfig
from regard.models.model import Model
from regard.models.readers.images import ImageReader
from regard.models.writers.classes import ClassWriter

WIDTH, HIDDEN, VOCAB, TIME = 24, 40, 17, 11
SIZES = {"layers": 2, "width": WIDTH, "heads": 4, "feedforward": HIDDEN}
BLOCK = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "feedforward.gate": "mlp.gate_proj",
    "feedforward.expand": "mlp.up_proj",
    "feedforward.contract": "mlp.down_proj",
    "add_attention.norm": "input_layernorm",
    "add_feedforward.norm": "post_attention_layernorm",
}


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def randomize(model: nn.Module) -> Any:
    """Spread all weights, so that none is 0 or 1."""
    torch.manual_seed(3)
    for name, weight in model.named_parameters():
        weight.copy_(torch.randn_like(weight) * 0.3 + (1 if "norm" in name.lower() else 0))
    return model.eval()


def load(
    ours: nn.Module,
    theirs: nn.Module,
    names: dict[str, str],
    change: Callable[[str, Tensor], Tensor] = lambda name, weight: weight,
) -> None:
    """Copy changed weights by the names of modules or parameters; all of ours must be given."""
    given = {name: change(name, weight) for name, weight in theirs.state_dict().items()}
    state = {}
    for name, other in names.items():
        if other in given:
            state[name] = given[other]
        for kind in ("weight", "bias"):
            if f"{other}.{kind}" in given:
                state[f"{name}.{kind}"] = given[f"{other}.{kind}"]
    ours.load_state_dict(state)


def blocks(ours: str, theirs: str, names: dict[str, str]) -> dict[str, str]:
    return {
        f"{ours}.{layer}.{name}": f"{theirs}.{layer}.{other}"
        for layer in range(2)
        for name, other in names.items()
    }


def compiled_logits(model: Model, tokens: Tensor, first: int, compute_type: str) -> Tensor:
    """Return the logits after each token from number `first` on; those before are read at once."""
    engine: Any = prepare("compiled", model, compute_type=compute_type)
    workspace, count = engine._workspaces.get(), len(tokens)
    texts, config = tokens[:, : first + 1].tolist(), SampleConfig(length=TIME, temperature=0)
    options: dict[str, Any] = {"window": None, "banned": [], "rules": NO_RULES}
    batch = _Generation(workspace, texts, [0] * count, config, **options)
    for row, text in enumerate(texts):
        batch.prefill(row, text)
    logits = np.zeros((TIME - first, count, VOCAB), np.float32)
    for time in range(first, TIME):
        batch.tokens[:] = tokens[:, time].numpy()
        batch.step(np.full(count, time), logits[time - first], 0, 1)
    return torch.from_numpy(logits).transpose(0, 1)


def check_language_model(model: Model, expected: Tensor, tokens: Tensor) -> None:
    """Check the logits of all tokens at once, step by step, and by compiled code."""
    model.eval()
    core = model.core
    hidden = core(model.writer.embed(tokens), core.begin(None, rows=len(tokens)))
    steps, state = [], model.start(rows=len(tokens))
    for time in range(tokens.shape[1]):
        logits, state = model.step(tokens[:, time], state)
        steps.append(logits)
    found = {"at once": model.decoder(hidden), "steps": torch.stack(steps, 1)}
    for first in (0, 6):
        found[f"compiled from {first}"] = compiled_logits(model, tokens, first, "float32")
        error = compiled_logits(model, tokens, first, "int8") - expected[:, first:]
        assert 0 < error.std() < 0.1 * expected.std()
    most = float(expected.abs().max())
    for name, logits in found.items():
        error = (logits - expected[:, -logits.shape[1] :]).abs().max()
        assert error <= 1e-5 * most, (name, error, most)


def their_config(kind: type, **options: Any) -> Any:
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "attn_implementation": "eager",
    }
    return kind(**sizes | options)


@pytest.mark.parametrize("tie", ["target", "none"])
@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_rotary_families(family: str, tie: Any) -> None:
    config = their_config(
        getattr(transformers, f"{family}Config"),
        rms_norm_eps=0.1,
        tie_word_embeddings=tie == "target",
        head_dim=8 if family == "Qwen3" else WIDTH // 4,
    )
    theirs = randomize(getattr(transformers, f"{family}ForCausalLM")(config))
    core = TransformerConfig(
        **SIZES,
        key_heads=2,
        activation="silu",
        gated=True,
        norm="rms",
        norm_eps=0.1,
        bias=False,
        attention_bias="qkv" if family == "Qwen2" else None,
        head_dim=8 if family == "Qwen3" else None,
        qk_norm="rms" if family == "Qwen3" else "none",
        positions=RotaryConfig(),
    )
    ours = build_language_model(LanguageModelConfig(core=core, tie=tie), vocab=VOCAB)
    names = {
        "writer.inputs.table": "model.embed_tokens",
        "writer.output_table": "lm_head",
        "core.decoder_norm": "model.norm",
    }
    norms = {f"attention.{name}_norm": f"self_attn.{name[0]}_norm" for name in ("query", "key")}
    block = BLOCK | (norms if family == "Qwen3" else {})
    load(ours, theirs, names | blocks("core.decoder", "model.layers", block))
    tokens = torch.randint(VOCAB, (3, TIME))
    check_language_model(ours, theirs(tokens).logits, tokens)


def check_encoder_decoder(model: Model, theirs: Any) -> None:
    """Check the logits of padded sources at once and step by step, and greedy search compiled."""
    model.eval()
    source, target = torch.randint(3, VOCAB, (3, 7)), torch.randint(3, VOCAB, (3, TIME))
    lengths = torch.tensor([7, 2, 5])
    mask = (torch.arange(7) < lengths[:, None]).long()
    expected = theirs(source, attention_mask=mask, decoder_input_ids=target[:, :-1]).logits
    actual = model(Padded(source, lengths), Padded(target, torch.full((3,), TIME)))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    state = model.start(Padded(source, lengths))
    for time in range(TIME - 1):
        logits, state = model.step(target[:, time], state)
        torch.testing.assert_close(logits, expected[:, time], rtol=1e-5, atol=1e-5)
    sources = [row[:n].tolist() for row, n in zip(source, lengths.tolist(), strict=True)]
    decode, ids = DecodeConfig(beam=1, n_best=1, max_length=9), {"bos": 1, "eos": 2, "pad": 0}
    found = TorchEngine(model).search(sources, config=decode, **ids)
    exact = prepare("compiled", model).search(sources, config=decode, **ids)
    rounded = prepare("compiled", model, compute_type="int8").search(sources, config=decode, **ids)
    for (one,), (other,), (third,) in zip(found, exact, rounded, strict=True):
        assert other.tokens == one.tokens
        assert other.log_prob == pytest.approx(one.log_prob, abs=1e-5 * len(one.tokens))
        if third.tokens == one.tokens:
            assert third.log_prob == pytest.approx(one.log_prob, rel=0.1)
    pairs = zip(found, rounded, strict=True)
    assert any(one.tokens == third.tokens for (one,), (third,) in pairs)


def test_gpt2() -> None:
    """A layer maps items to queries, keys and values, and weights are (in, out)."""
    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_embd=WIDTH,
        n_inner=HIDDEN,
        n_layer=2,
        n_head=4,
        n_positions=20,
        layer_norm_epsilon=1e-3,
        attn_implementation="eager",
    )
    theirs = randomize(transformers.GPT2LMHeadModel(config))
    given = {name: x.mT if x.dim() == 2 else x for name, x in theirs.state_dict().items()}
    core = TransformerConfig(
        **SIZES, activation="gelu-tanh", norm_eps=1e-3, positions=LearnedConfig(max_length=20)
    )
    ours = build_language_model(LanguageModelConfig(core=core), vocab=VOCAB)
    tables = ("writer.inputs.table.weight", "writer.output_table.weight")
    state = dict.fromkeys(tables, given["transformer.wte.weight"].mT)
    state["core.positions.weight"] = given["transformer.wpe.weight"].mT
    for kind in ("weight", "bias"):
        state[f"core.decoder_norm.{kind}"] = given[f"transformer.ln_f.{kind}"]
        for layer in range(2):
            at, block = f"transformer.h.{layer}", f"core.decoder.{layer}"
            three = given[f"{at}.attn.c_attn.{kind}"].chunk(3)
            for name, part in zip(("query", "key", "value"), three, strict=True):
                state[f"{block}.attention.{name}.{kind}"] = part
            for name, other in {
                "attention.output": "attn.c_proj",
                "feedforward.expand": "mlp.c_fc",
                "feedforward.contract": "mlp.c_proj",
                "add_attention.norm": "ln_1",
                "add_feedforward.norm": "ln_2",
            }.items():
                state[f"{block}.{name}.{kind}"] = given[f"{at}.{other}.{kind}"]
    ours.load_state_dict(state)
    tokens = torch.randint(VOCAB, (3, TIME))
    check_language_model(ours, theirs(tokens).logits, tokens)


BART = {f"attention.{name}": f"self_attn.{name[0]}_proj" for name in ("query", "key", "value")}
BART |= {
    "attention.output": "self_attn.out_proj",
    "add_attention.norm": "self_attn_layer_norm",
    "feedforward.expand": "fc1",
    "feedforward.contract": "fc2",
    "add_feedforward.norm": "final_layer_norm",
}
CROSS = {
    name.replace("attention", "cross"): other.replace("self", "encoder")
    for name, other in BART.items()
    if "attention" in name
}
TABLES = ("reader.table", "writer.inputs.table", "writer.output_table")


@pytest.mark.parametrize("family", ["Bart", "MBart", "Blenderbot", "Marian", "Pegasus"])
def test_encoder_decoder_families(family: str) -> None:
    """Sines of Marian are in the first half of the width, cosines in the second: a permutation."""
    has_sines, is_pre = family in ("Marian", "Pegasus"), family not in ("Bart", "Marian")
    has_embedding_norm = family in ("Bart", "MBart")
    sizes = {"layers": 2, "attention_heads": 4, "ffn_dim": HIDDEN}
    options = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in sizes.items()}
    config = getattr(transformers, f"{family}Config")(
        **options,
        vocab_size=VOCAB,
        d_model=WIDTH,
        max_position_embeddings=20,
        activation_function="swish" if family == "Marian" else "gelu",
        scale_embedding=has_sines,
        pad_token_id=0,
        decoder_start_token_id=0,
        attn_implementation="eager",
    )
    kinds = {"Marian": "MarianMTModel"}
    kind = kinds.get(family, f"{family}ForConditionalGeneration")
    theirs = getattr(transformers, kind)(config)
    sines = {name: x.clone() for name, x in theirs.named_parameters() if "embed_positions" in name}
    randomize(theirs)
    theirs.final_logits_bias.normal_()
    for name, weight in sines.items():
        if has_sines:
            theirs.get_parameter(name).copy_(weight)
    core = TransformerConfig(
        **SIZES,
        activation="silu" if family == "Marian" else "gelu",
        norm_order="pre" if is_pre else "post",
        embedding_norm=has_embedding_norm,
        **({} if has_sines else {"positions": LearnedConfig(max_length=20)}),
        shared_positions=has_sines,
    )
    scale: Any = "root" if has_sines else "one"
    ours = build(
        ModelConfig(core=core, embedding_scale=scale, output_bias=True),
        source_vocab=VOCAB,
        target_vocab=VOCAB,
    )
    names = dict.fromkeys(TABLES, "model.shared") | {"writer.output_bias": "final_logits_bias"}
    names |= blocks("core.encoder", "model.encoder.layers", BART)
    names |= blocks("core.decoder", "model.decoder.layers", BART | CROSS)
    for side in ("encoder", "decoder"):
        if not has_sines:
            positions = "positions" if side == "encoder" else "decoder_positions"
            names[f"core.{positions}"] = f"model.{side}.embed_positions"
        if has_embedding_norm:
            names[f"core.{side}_embedding_norm"] = f"model.{side}.layernorm_embedding"
        if is_pre:
            names[f"core.{side}_norm"] = f"model.{side}.layer_norm"
    order = torch.arange(WIDTH).view(2, -1).T.flatten() if has_sines else torch.arange(WIDTH)

    def change(name: str, weight: Tensor) -> Tensor:
        if name == "final_logits_bias":
            return weight[0]
        if "embed_positions" in name:
            return weight[len(weight) - 20 :]  # without the rows of the offset
        is_output = "out_proj" in name or "fc2" in name or "norm" in name
        if is_output or not name.endswith("weight"):
            return weight[order] if is_output else weight
        return weight[:, order]

    load(ours, theirs, names, change)
    check_encoder_decoder(ours, theirs)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_t5(version: str) -> None:
    is_gated = version == "1.1"
    config = transformers.T5Config(
        vocab_size=VOCAB,
        d_model=WIDTH,
        d_kv=5,
        d_ff=HIDDEN,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=6,
        relative_attention_max_distance=9,
        feed_forward_proj="gated-gelu" if is_gated else "relu",
        tie_word_embeddings=False,
    )
    theirs = randomize(transformers.T5ForConditionalGeneration(config))
    core = TransformerConfig(
        **SIZES,
        head_dim=5,
        score="dot",
        activation="gelu-tanh" if is_gated else "relu",
        gated=is_gated,
        norm="rms",
        norm_eps=1e-6,
        bias=False,
        positions=RelativeConfig(buckets=6, max_distance=9),
    )
    ours = build(
        ModelConfig(core=core, tie="none", embedding_scale="one"),
        source_vocab=VOCAB,
        target_vocab=VOCAB,
    )
    names = {
        "reader.table": "shared",
        "writer.inputs.table": "shared",
        "writer.output_table": "lm_head",
    }
    feedforward = {"contract": "wo", "gate": "wi_0", "expand": "wi_1"}
    feedforward = feedforward if is_gated else {"contract": "wo", "expand": "wi"}
    for side, last in (("encoder", 1), ("decoder", 2)):
        parts = {"attention": "0.SelfAttention", "cross": "1.EncDecAttention"}
        for part, other in parts.items() if side == "decoder" else [*parts.items()][:1]:
            block = {f"{part}.{name}": f"layer.{other}.{name[0]}"
                     for name in ("query", "key", "value", "output")}  # fmt: skip
            block[f"add_{part}.norm"] = f"layer.{other[0]}.layer_norm"
            names |= blocks(f"core.{side}", f"{side}.block", block)
        block = {f"feedforward.{name}": f"layer.{last}.DenseReluDense.{other}"
                 for name, other in feedforward.items()}  # fmt: skip
        block["add_feedforward.norm"] = f"layer.{last}.layer_norm"
        names |= blocks(f"core.{side}", f"{side}.block", block)
        names[f"core.{side}_norm"] = f"{side}.final_layer_norm"
        for layer in range(2):
            table = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            names[f"core.{side}.{layer}.attention.read.bias.table"] = table

    def change(name: str, weight: Tensor) -> Tensor:
        return weight.T if "relative_attention_bias" in name else weight

    load(ours, theirs, names, change)
    check_encoder_decoder(ours, theirs)


BERT = {f"attention.{name}": f"attention.self.{name}" for name in ("query", "key", "value")}
BERT |= {
    "attention.output": "attention.output.dense",
    "add_attention.norm": "attention.output.LayerNorm",
    "feedforward.expand": "intermediate.dense",
    "feedforward.contract": "output.dense",
    "add_feedforward.norm": "output.LayerNorm",
}
DISTIL = {f"attention.{name}": f"attention.{name[0]}_lin" for name in ("query", "key", "value")}
DISTIL |= {
    "attention.output": "attention.out_lin",
    "add_attention.norm": "sa_layer_norm",
    "feedforward.expand": "ffn.lin1",
    "feedforward.contract": "ffn.lin2",
    "add_feedforward.norm": "output_layer_norm",
}
HEADS: dict[str, tuple[Any, dict[str, str]]] = {
    "Bert": ("tanh", {"writer.dense": "bert.pooler.dense", "writer.output": "classifier"}),
    "Roberta": (
        "tanh",
        {"writer.dense": "classifier.dense", "writer.output": "classifier.out_proj"},
    ),
    "DistilBert": ("relu", {"writer.dense": "pre_classifier", "writer.output": "classifier"}),
}


@pytest.mark.parametrize("task", ["Sequence", "Token"])
@pytest.mark.parametrize("family", HEADS)
def test_encoders_of_text(family: str, task: str) -> None:
    sizes: dict[str, Any] = {
        "hidden_size": WIDTH,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "layer_norm_eps": 1e-2,
    }
    eps, model = 1e-2, family.lower()
    if family == "DistilBert":
        sizes = {"dim": WIDTH, "hidden_dim": HIDDEN, "n_layers": 2, "n_heads": 4}
        eps, model = 1e-12, "distilbert"
    config = getattr(transformers, f"{family}Config")(
        **sizes,
        vocab_size=VOCAB,
        max_position_embeddings=20,
        pad_token_id=1,
        num_labels=3,
        attn_implementation="eager",
    )
    theirs = randomize(getattr(transformers, f"{family}For{task}Classification")(config))
    skipped = 2 if family == "Roberta" else 0  # rows of positions before the first
    core = TransformerConfig(
        **SIZES,
        activation="gelu",
        norm_order="post",
        norm_eps=eps,
        embedding_norm=True,
        positions=LearnedConfig(max_length=20 - skipped),
    )
    names = {
        "reader.table": f"{model}.embeddings.word_embeddings",
        "core.positions": f"{model}.embeddings.position_embeddings",
        "core.encoder_embedding_norm": f"{model}.embeddings.LayerNorm",
    }
    if task == "Token":
        options = TaggerConfig(core=core, embedding_scale="one", head_norm=False)
        ours, names["writer.output"] = build_tagger(options, vocab=VOCAB, num_tags=3), "classifier"
    else:
        head, own = HEADS[family]
        options = TextClassifierConfig(
            core=core, embedding_scale="one", pool="cls", head=head, head_norm=False
        )
        reader = build_token_reader(options, VOCAB)
        writer = options.writer_options()
        ours = build_classifier(
            options, reader, lambda n, pool: ClassWriter(n, 3, pool=pool, **writer)
        )
        names |= own
    is_distil = family == "DistilBert"
    layers = "transformer.layer" if is_distil else "encoder.layer"
    names |= blocks("core.encoder", f"{model}.{layers}", DISTIL if is_distil else BERT)

    def change(name: str, weight: Tensor) -> Tensor:
        if "position_embeddings" not in name:
            return weight
        types = theirs.state_dict().get(f"{model}.embeddings.token_type_embeddings.weight")
        return weight[skipped:] if types is None else weight[skipped:] + types[0]

    load(ours, theirs, names, change)
    ours.eval()
    lengths = torch.tensor([TIME, 4, 7])
    tokens = torch.randint(2, VOCAB, (3, TIME))
    mask = torch.arange(TIME) < lengths[:, None]
    tokens[~mask] = 1
    expected = theirs(tokens, attention_mask=mask.long()).logits.softmax(-1)
    actual = ours(Padded(tokens, lengths))
    if task == "Token":
        expected, actual = expected[mask], actual[mask]
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


VIT = {f"attention.{name}": f"attention.{name[0]}_proj" for name in ("query", "key", "value")}
VIT |= {
    "attention.output": "attention.o_proj",
    "feedforward.expand": "mlp.fc1",
    "feedforward.contract": "mlp.fc2",
    "add_attention.norm": "layernorm_before",
    "add_feedforward.norm": "layernorm_after",
}


@pytest.mark.parametrize("family", ["ViT", "DeiT", "Dinov2"])
def test_encoders_of_images(family: str) -> None:
    is_dino = family == "Dinov2"
    options = {"mlp_ratio": 2} if is_dino else {"intermediate_size": 2 * WIDTH}
    config = getattr(transformers, f"{family}Config")(
        **options,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        layer_norm_eps=1e-2,
        image_size=12,
        patch_size=4,
        num_labels=3,
        attn_implementation="eager",
    )
    theirs = randomize(getattr(transformers, f"{family}ForImageClassification")(config))
    model = family.lower()
    core = TransformerConfig(
        **SIZES | {"feedforward": 2 * WIDTH},
        activation="gelu",
        norm_eps=1e-2,
        positions=LearnedConfig(max_length=11 if family == "DeiT" else 10),
        layer_scale=1.0 if family == "Dinov2" else None,
    )
    settings = ClassifierConfig(
        core=core, pool="first", head_norm=False, distillation_token=family == "DeiT"
    )
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    reader = ImageReader((3, 12, 12), WIDTH, patch=4, positions=False, mean=mean, std=std)
    options = settings.writer_options()
    ours = build_classifier(
        settings, reader, lambda dim, pool: ClassWriter(dim, 3, pool=pool, **options)
    )
    names = {
        "reader.stem": f"{model}.embeddings.patch_embeddings.projection",
        "core.positions.weight": f"{model}.embeddings.position_embeddings",
        "writer.pool.token": f"{model}.embeddings.cls_token",
        "writer.pool.distillation": f"{model}.embeddings.distillation_token",
        "core.encoder_norm": f"{model}.layernorm",
        "writer.output": "classifier",
    }
    if family == "Dinov2":
        block = VIT | {
            "add_attention.norm": "norm1",
            "add_feedforward.norm": "norm2",
            "add_attention.scale": "layer_scale1.lambda1",
            "add_feedforward.scale": "layer_scale2.lambda1",
        }
        # Its head reads the class token and the mean of the patches; here the class token alone.
        theirs.classifier.weight[:, WIDTH:] = 0
        names |= blocks("core.encoder", f"{model}.encoder.layer", block)
    else:
        names |= blocks("core.encoder", f"{model}.layers", VIT)

    def change(name: str, weight: Tensor) -> Tensor:
        if name == "classifier.weight":
            return weight[:, :WIDTH]
        return weight.squeeze(0).squeeze(0) if "embeddings." in name else weight

    load(ours, theirs, names, change)
    pixels = torch.rand(2, 3, 12, 12)
    normal = (pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    expected = theirs(normal).logits.softmax(-1)
    torch.testing.assert_close(ours.eval()(pixels), expected, rtol=1e-5, atol=1e-5)
