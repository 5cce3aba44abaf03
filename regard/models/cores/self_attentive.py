"""Self-attentive core: recurrent layers that attend to all their past states.

    own past         h~_t, c~_t = read(h_1 .. h_{t-1}) by x_t, in place of h_{t-1}, c_{t-1}    lstm
                     c_t        = read(h_1 .. h_t) by h_t, in place of h_t                 rnn, gru
    with a source    in addition, the top layer reads the encoder's states, as in the recurrent core

The encoder has such layers as well. With a source this is shallow attention fusion, and the past
starts with the final state of the encoder; in a language model it starts empty. Cells:
regard.layers.recurrent.self_attentive. Decoder: regard.models.cores.recurrent_decoder.

Source: lectures, B.11 (rnn); cheng2016, sections 3.1 (lstm) and 3.3 (shallow fusion).
"""

from functools import partial
from typing import final

from regard.layers.read import INPUT_AFTER_STATE, Role
from regard.layers.recurrent.self_attentive import SelfAttentiveCell
from regard.layers.recurrent.self_attentive_encoder import SelfAttentiveEncoder
from regard.models.cores.config import SelfAttentiveConfig
from regard.models.cores.core import create_choice
from regard.models.cores.recurrent_decoder import RecurrentDecoderCore


@final
class SelfAttentive(RecurrentDecoderCore[SelfAttentiveConfig]):
    """Encoder and decoder of cells that read their own past: `SelfAttentive(hidden=128)`.

    With encodes=False, the decoder reads only its own past.
    """

    config_class = SelfAttentiveConfig
    unsupported_slide_reason = None

    def create_encoder(self, config: SelfAttentiveConfig, dropout: float) -> SelfAttentiveEncoder:
        hidden = config.encoder_size // config.directions
        return SelfAttentiveEncoder(
            config.width,
            config.encoder_size,
            cell=lambda input_dim, role: _cell(config, input_dim, hidden, role),
            layers=config.layers,
            directions=config.directions,
            dropout=dropout,
        )

    def create_cell(
        self, config: SelfAttentiveConfig, layer: int, input_dim: int, context_dim: int
    ) -> SelfAttentiveCell:
        if not self.in_order:
            past = "queries"
        elif self.encodes:
            past = INPUT_AFTER_STATE  # the past begins with the state from the encoder
        else:
            past = "decoder input"
        role = Role("chain", layer, queries=past, keys=past)
        return _cell(config, input_dim, config.hidden, role, context_dim)


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
