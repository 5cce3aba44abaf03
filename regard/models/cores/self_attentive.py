"""Self-attentive core: recurrent layers that attend to all their past states.

    own past         h~_t, c~_t = read(h_1 .. h_{t-1}) by x_t, in place of h_{t-1}, c_{t-1}    lstm
                     c_t        = read(h_1 .. h_t) by h_t, in place of h_t                 rnn, gru
    with a source    in addition, the top layer reads the encoder's states, as in the recurrent core

The encoder has such layers as well. With a source this is shallow attention fusion: the cells read
the past, the decoder reads the source, and its context vector is part of the next input; the past
starts with the final state of the encoder. A language model has no source, and its past starts
empty. Cells: regard.layers.recurrent.self_attentive. Decoder:
              regard.models.cores.recurrent_decoder.

Source: lectures, B.11 (rnn); cheng2016, sections 3.1 (lstm) and 3.3 (shallow fusion).
"""

from functools import partial
from typing import Any, final

from regard.attention.scores.base import Score
from regard.layers.read import INPUT_AFTER_STATE, Role
from regard.layers.recurrent.self_attentive import SelfAttentiveCell
from regard.layers.recurrent.self_attentive_encoder import SelfAttentiveEncoder
from regard.models.cores.config import SelfAttentiveConfig
from regard.models.cores.core import config_of, create_choice
from regard.models.cores.recurrent_decoder import RecurrentDecoderCore


@final
class SelfAttentive(RecurrentDecoderCore):
    """Encoder and decoder of cells that read their own past.

    Of a config or of its fields: `SelfAttentive(width=96, hidden=128)`; SelfAttentiveConfig
    documents them. dropout: in training, on the encoder's states, between layers, and on the input
    of the readout. decodes=False: the encoder alone. encodes=False: the decoder alone, which reads
    only its own past. in_order=False: the decoder decodes sets of queries.
    score: score of the encoder's states; that of the config if not given.
    """

    def __init__(
        self,
        config: SelfAttentiveConfig | None = None,
        *,
        dropout: float = 0.0,
        encodes: bool = True,
        decodes: bool = True,
        in_order: bool = True,
        score: Score | None = None,
        **fields: Any,
    ):
        config = config_of(SelfAttentiveConfig, config, fields)
        directions = config.directions
        # The past of a decoder begins with the state from the encoder, where nothing is read.
        past = (INPUT_AFTER_STATE if encodes else "decoder input") if in_order else "queries"

        def cell(layer: int, input_dim: int, context_dim: int) -> SelfAttentiveCell:
            return _cell(
                config,
                input_dim,
                config.hidden,
                Role("chain", layer, queries=past, keys=past),
                context_dim,
            )

        def encoder_cell(input_dim: int, role: Role) -> SelfAttentiveCell:
            return _cell(config, input_dim, config.encoder_size // directions, role)

        encoder = None
        if encodes:
            encoder = SelfAttentiveEncoder(
                config.width,
                config.encoder_size,
                cell=encoder_cell,
                layers=config.layers,
                directions=directions,
                dropout=dropout,
            )
        super().__init__(
            config,
            encoder=encoder,
            cell=cell,
            dropout=dropout,
            decodes=decodes,
            in_order=in_order,
            score=score,
        )


def _cell(
    config: SelfAttentiveConfig, input_dim: int, hidden: int, role: Role, context_dim: int = 0
) -> SelfAttentiveCell:
    return SelfAttentiveCell(
        input_dim,
        hidden,
        hidden if config.self_attention == "dot" else config.self_attention_hidden,
        cell=config.cell,
        context_dim=context_dim,
        score=config.self_attention,
        choice=partial(create_choice, config),
        feeds_back=config.form == "paper",
        recency=config.self_attention_recency,
        kernel=config.kernel,
        role=role,
    )
