"""Models of papers by name, as configs of the papers' sizes. Importing them needs no torch.

regard.recipes.presets lists them with their sources, and the recipes that take them.
"""

from regard.layers.positions.config import LearnedConfig, NoPositionsConfig
from regard.models.config import ClassifierConfig, DetectorConfig, LanguageModelConfig, ModelConfig
from regard.models.cores.config import RecurrentConfig, SelfAttentiveConfig, TransformerConfig


def vaswani_base() -> ModelConfig:
    """Return the base model of vaswani2017, table 3: 6 + 6 blocks of width 512, post-norm."""
    core = TransformerConfig(layers=6, width=512, heads=8, feedforward=2048, norm_order="post")
    return ModelConfig(core=core, dropout=0.1)


def transformer_tiny() -> ModelConfig:
    """Return Transformer-Tiny of wu2021: 4 + 4 blocks of width 128, 4 heads, post-norm."""
    core = TransformerConfig(layers=4, width=128, heads=4, feedforward=256, norm_order="post")
    return ModelConfig(core=core, dropout=0.3)


def bahdanau() -> ModelConfig:
    """Return RNNsearch of bahdanau2015, appendix A.2: GRUs of 1,000 by direction, and decoder.

    Embeddings of 620, additive attention of 1,000. Its output layer of 500 maxout units is a linear
    layer here.
    """
    core = RecurrentConfig(
        cell="gru",
        width=620,
        hidden=1000,
        encoder_hidden=2000,
        attention="additive",
        attention_hidden=1000,
    )
    return ModelConfig(core=core, tie="none", dropout=0.0)


def luong() -> ModelConfig:
    """Return the global model of luong2015, section 4.1: 4 LSTM layers of 1,000, dot, dropout 0.2.

    The context vector is fed to the next step, as input feeding does with the attentional state.
    """
    core = RecurrentConfig(
        cell="lstm", layers=4, directions=1, width=1000, hidden=1000, attention="dot"
    )
    return ModelConfig(core=core, tie="none", dropout=0.2)


def lstmn() -> LanguageModelConfig:
    """Return the LSTM-Network of cheng2016, section 5.1: a layer of 300, embeddings of 150."""
    core = SelfAttentiveConfig(
        cell="lstm", directions=1, width=150, hidden=300, self_attention_hidden=300
    )
    return LanguageModelConfig(core=core)


def gpt() -> LanguageModelConfig:
    """Return GPT of radford2018, section 4.1: 12 blocks of 768, 12 heads, post-norm, dropout 0.1.

    Input and output embeddings are tied, and not scaled.
    """
    core = TransformerConfig(
        layers=12,
        width=768,
        heads=12,
        feedforward=3072,
        activation="gelu-tanh",
        norm_order="post",
        positions=LearnedConfig(max_length=512),
    )
    return LanguageModelConfig(core=core, dropout=0.1)


def detr() -> DetectorConfig:
    """Return DETR's Transformer, carion2020, section 4: 6 + 6 blocks of 256, 8 heads, 100 queries.

    The recipe's stem of convolutions takes the place of a pretrained ResNet-50.
    """
    core = TransformerConfig(
        layers=6,
        width=256,
        heads=8,
        feedforward=2048,
        norm_order="post",
        positions=NoPositionsConfig(),
    )
    return DetectorConfig(core=core, queries="learned", num_queries=100, dropout=0.1)


def vit() -> ClassifierConfig:
    """Return ViT-Base of dosovitskiy2021, table 1: 12 blocks of 768, 12 heads, dropout 0.1.

    Positions are learned by row and column.
    """
    core = TransformerConfig(
        layers=12,
        width=768,
        heads=12,
        feedforward=3072,
        activation="gelu",
        norm_eps=1e-6,
        positions=NoPositionsConfig(),
    )
    return ClassifierConfig(core=core, pool="first", dropout=0.1)
