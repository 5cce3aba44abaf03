"""Small folders of Transformers with random weights of odd sizes, and their models."""

import importlib
import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers as hf
from tokenizers import models, pre_tokenizers, trainers

import regard
from regard.exchange.imported import import_folder

VOCAB, POSITIONS = 61, 23
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
_TOKENS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
_GPT2 = {
    "vocab_size": VOCAB,
    "n_positions": POSITIONS,
    "n_embd": 20,
    "n_layer": 3,
    "n_head": 5,
    "n_inner": 37,
    **_TOKENS,
}
_LLAMA = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "intermediate_size": 37,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
    **_TOKENS,
}
_MARIAN = {
    "vocab_size": VOCAB,
    "d_model": 20,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 5,
    "decoder_attention_heads": 5,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
    "max_position_embeddings": POSITIONS,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": None,
    **_TOKENS,
}
_T5 = {
    "vocab_size": VOCAB,
    "d_model": 20,
    "d_kv": 6,
    "d_ff": 37,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
    **_TOKENS,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 50.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 3.0,
    "original_max_position_embeddings": 16,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 90.0,
    "factor": 4.0,
    "beta_fast": 3.0,
    "original_max_position_embeddings": 16,
}
_LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}
_BERT = {
    "vocab_size": VOCAB,
    "hidden_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "intermediate_size": 37,
    "max_position_embeddings": POSITIONS,
    "id2label": {0: "bad", 1: "good", 2: "neither"},
    "pad_token_id": 0,
}
_DISTIL = {
    "vocab_size": VOCAB,
    "dim": 20,
    "n_layers": 3,
    "n_heads": 5,
    "hidden_dim": 37,
    "max_position_embeddings": POSITIONS,
    "id2label": _BERT["id2label"],
}
CLASSIFIERS: dict[str, tuple[str, Any]] = {
    "bert": ("BertForSequenceClassification", hf.BertConfig(**_BERT)),
    "bert-tags": (
        "BertForTokenClassification",
        hf.BertConfig(**_BERT | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
    ),
    "roberta": (
        "RobertaForSequenceClassification",
        hf.RobertaConfig(**_BERT | {"pad_token_id": 1, "layer_norm_eps": 1e-5}),
    ),
    "roberta-tags": (
        "RobertaForTokenClassification",
        hf.RobertaConfig(**_BERT | {"pad_token_id": 1, "num_hidden_layers": 1}),
    ),
    "distilbert": ("DistilBertForSequenceClassification", hf.DistilBertConfig(**_DISTIL)),
    "distilbert-tags": (
        "DistilBertForTokenClassification",
        hf.DistilBertConfig(vocab_size=VOCAB, dim=20, n_layers=1, n_heads=5, hidden_dim=37),
    ),
}
BASES: dict[str, tuple[str, Any]] = {
    "bert": ("BertModel", hf.BertConfig(**_BERT)),
    "bert-mlm": ("BertForMaskedLM", hf.BertConfig(**_BERT)),
    "bert-pretraining": ("BertForPreTraining", hf.BertConfig(**_BERT)),
    "roberta": ("RobertaModel", hf.RobertaConfig(**_BERT | {"pad_token_id": 1})),
    "roberta-mlm": ("RobertaForMaskedLM", hf.RobertaConfig(**_BERT | {"pad_token_id": 1})),
    "distilbert": ("DistilBertModel", hf.DistilBertConfig(**_DISTIL)),
    "distilbert-mlm": ("DistilBertForMaskedLM", hf.DistilBertConfig(**_DISTIL)),
}
"""Models without a classifier."""
_IMAGES = {
    "hidden_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "image_size": 12,
    "patch_size": 4,
    "id2label": {0: "cat", 1: "dog", 2: "owl"},
}
_VIT = _IMAGES | {"intermediate_size": 37}
_DINOV2 = _IMAGES | {"mlp_ratio": 3, "hidden_act": "gelu_new", "layerscale_value": 0.5}
IMAGES: dict[str, tuple[str, Any]] = {
    "vit": ("ViTForImageClassification", hf.ViTConfig(**_VIT)),
    "vit-gray": ("ViTForImageClassification", hf.ViTConfig(**_VIT, num_channels=1)),
    "deit": ("DeiTForImageClassification", hf.DeiTConfig(**_VIT)),
    "deit-teacher": ("DeiTForImageClassificationWithTeacher", hf.DeiTConfig(**_VIT)),
    "dinov2": ("Dinov2ForImageClassification", hf.Dinov2Config(**_DINOV2)),
}
IMAGE_BASES: dict[str, tuple[str, Any]] = {
    "vit": ("ViTModel", hf.ViTConfig(**_VIT)),
    "deit": ("DeiTModel", hf.DeiTConfig(**_VIT)),
    "dinov2": ("Dinov2Model", hf.Dinov2Config(**_DINOV2)),
}
_MODERN = _BERT | _TOKENS | {"local_attention": 4, "intermediate_size": 23}
CLASSIFIERS |= {
    "modernbert": (
        "ModernBertForSequenceClassification",
        hf.ModernBertConfig(**_MODERN | {"num_hidden_layers": 5, "classifier_pooling": "mean"}),
    ),
    "modernbert-biases": (
        "ModernBertForSequenceClassification",
        hf.ModernBertConfig(
            **_MODERN, norm_bias=True, mlp_bias=True, attention_bias=True, classifier_bias=True
        ),
    ),
    "modernbert-tags": (
        "ModernBertForTokenClassification",
        hf.ModernBertConfig(**_MODERN | {"hidden_activation": "silu", "local_attention": 7}),
    ),
}
BASES |= {
    "modernbert": ("ModernBertModel", hf.ModernBertConfig(**_MODERN)),
    "modernbert-mlm": ("ModernBertForMaskedLM", hf.ModernBertConfig(**_MODERN)),
}
CASES: dict[str, Any] = {
    "gpt2": hf.GPT2Config(**_GPT2),
    "gpt2-relu": hf.GPT2Config(
        **_GPT2, activation_function="relu", layer_norm_epsilon=1e-3, scale_attn_weights=False
    ),
    "llama": hf.LlamaConfig(**_LLAMA),
    "llama3": hf.LlamaConfig(
        **_LLAMA,
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
        head_dim=10,
        rope_parameters=_LLAMA3,
    ),
    "llama-linear": hf.LlamaConfig(**_LLAMA, attention_bias=True, rope_parameters=_LINEAR),
    "qwen2": hf.Qwen2Config(**_LLAMA, rms_norm_eps=1e-4),
    "qwen3": hf.Qwen3Config(**_LLAMA, head_dim=10, rope_parameters=_YARN),
    "t5": hf.T5Config(**_T5, feed_forward_proj="relu"),
    "marian": hf.MarianConfig(**_MARIAN, activation_function="swish", scale_embedding=True),
    "pegasus": hf.PegasusConfig(**_MARIAN, activation_function="relu"),
}


def create_t5(seed: int) -> Any:
    """Return a T5 v1.1 with an output layer of its own."""
    config = hf.T5Config(**_T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    torch.manual_seed(seed)
    model = hf.T5ForConditionalGeneration(config)
    model.lm_head.weight = torch.nn.Parameter(torch.zeros(VOCAB, 20))
    return randomize(model, std=0.3)


def create_marian(vocab: int, seed: int, *, source_vocab: int | None = None) -> Any:
    """Return a Marian with the ids of opus-mt: </s> 0, <unk> 1, and <pad> last, the start.

    source_vocab: size of the vocabulary of sources, if it is another one.
    """
    ids = {"pad_token_id": vocab - 1, "eos_token_id": 0, "decoder_start_token_id": vocab - 1}
    sizes = {
        "vocab_size": source_vocab or vocab,
        "decoder_vocab_size": vocab,
        "share_encoder_decoder_embeddings": source_vocab is None,
    }
    config = hf.MarianConfig(
        **_MARIAN | {"bos_token_id": None, "max_position_embeddings": 64} | ids | sizes
    )
    torch.manual_seed(seed)
    model = hf.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.requires_grad:
                value.add_(0.25 * torch.randn_like(value))
            if "encoder_attn" in name:
                value.mul_(4)
    model.generation_config.suppress_tokens = [vocab - 1]
    return model


def create_model(case: str, seed: int) -> Any:
    """Return a model of Transformers with random weights."""
    if case in CLASSIFIERS:
        return create(*CLASSIFIERS[case], seed, std=0.6)
    return create(_ARCHITECTURES[type(CASES[case])], CASES[case], seed, std=0.3)


def create(architecture: str, config: Any, seed: int, *, std: float = 0.6) -> Any:
    """Return a model of an architecture with random weights."""
    torch.manual_seed(seed)
    model = getattr(hf, architecture)._from_config(config, attn_implementation="eager")
    return randomize(model, std=std)


def randomize(model: Any, *, std: float) -> Any:
    """Return a model in evaluation, with normal parameters."""
    with torch.no_grad():
        for value in model.parameters():
            if value.requires_grad:
                value.normal_(std=std)
        for name, value in model.named_buffers():
            if name == "final_logits_bias":
                value.normal_()
    return model.eval()


_ARCHITECTURES = {
    hf.GPT2Config: "GPT2LMHeadModel",
    hf.LlamaConfig: "LlamaForCausalLM",
    hf.Qwen2Config: "Qwen2ForCausalLM",
    hf.Qwen3Config: "Qwen3ForCausalLM",
    hf.T5Config: "T5ForConditionalGeneration",
    hf.MarianConfig: "MarianMTModel",
    hf.PegasusConfig: "PegasusForConditionalGeneration",
}


def save_model(model: Any, folder: Path) -> Path:
    """Save a model of Transformers with a tokenizer, and return the folder."""
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def save_opus(folder: Path, texts: list[str], num_targets: int = 50) -> None:
    """Save a Marian with tokenizers of sentencepiece, as opus-mt has.

    num_targets: number of pieces of targets; with another one than 50, there are two vocabularies.
    """
    spm = importlib.import_module("sentencepiece")
    folder.mkdir()
    config: dict[str, Any] = {"tokenizer_class": "MarianTokenizer"}
    for name, size in (("source", 50), ("target", num_targets)):
        with (folder / f"{name}.spm").open("wb") as file:
            spm.SentencePieceTrainer.train(
                sentence_iterator=iter(texts),
                model_writer=file,
                vocab_size=size,
                **{"pad_id": -1, "bos_id": -1, "eos_id": 0, "unk_id": 1, "minloglevel": 2},
            )
        pieces = spm.SentencePieceProcessor(model_file=str(folder / f"{name}.spm"))
        names = [*(pieces.id_to_piece(number) for number in range(size)), "<pad>"]
        vocabulary = json.dumps({name: number for number, name in enumerate(names)})
        if name == "source":
            (folder / "vocab.json").write_text(vocabulary)
        elif size != 50:
            (folder / "target_vocab.json").write_text(vocabulary)
            config["separate_vocabs"] = True
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    own = None if num_targets == 50 else 51
    create_marian(num_targets + 1, 3, source_vocab=own).save_pretrained(folder)


def save_gpt2(folder: Path, texts: list[str]) -> Any:
    """Save a GPT-2 with vocab.json and merges.txt, and return the model."""
    engine: Any = tokenizers.Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer: Any = trainers.BpeTrainer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    engine.train_from_iterator(texts, trainer(vocab_size=300, initial_alphabet=alphabet))
    vocabulary = {**engine.get_vocab(), "<|endoftext|>": engine.get_vocab_size()}
    merges = json.loads(engine.to_str())["model"]["merges"]
    torch.manual_seed(1)
    end = len(vocabulary) - 1
    ids = {"vocab_size": len(vocabulary), "bos_token_id": end, "eos_token_id": end}
    sizes = {"n_positions": 150, "pad_token_id": None}
    model = randomize(hf.GPT2LMHeadModel(hf.GPT2Config(**_GPT2 | sizes | ids)), std=0.3)
    model.save_pretrained(folder)
    models.BPE(vocab=vocabulary, merges=[tuple(pair) for pair in merges]).save(str(folder))
    return model


def write_tokenizer(folder: Path, size: int = VOCAB) -> None:
    """Write a tokenizer.json of words, t4, t5, ..."""
    words = [*SPECIALS, *[f"t{number}" for number in range(len(SPECIALS), size)]]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.save(str(folder / "tokenizer.json"))
    names = ("pad_token", "unk_token", "bos_token", "eos_token")
    config = dict(zip(names, SPECIALS, strict=True))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def import_model(folder: Path, out: Path, **options: Any) -> Any:
    """Import a folder, and return the run."""
    import_folder(folder, out, notify=lambda _: None, **options)
    return regard.load(out)
