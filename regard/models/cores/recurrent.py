"""Recurrent core: plain rnn, gru or lstm cells as encoder and decoder.

Formulas and sources are in regard.models.cores.recurrent_decoder.
"""

from typing import final

from regard.layers.recurrent.cells import CELLS, Cell
from regard.layers.recurrent.encoder import RecurrentEncoder
from regard.models.cores.config import RecurrentConfig
from regard.models.cores.recurrent_decoder import RecurrentDecoderCore


@final
class Recurrent(RecurrentDecoderCore[RecurrentConfig]):
    """Encoder and decoder of config.cell: `Recurrent(width=96, hidden=128)`.

    Parts: encoder; read, the attention, or None; value_map, W_V, or None; cells, the cell of each
    decoder layer; readout, W_o.
    """

    config_class = RecurrentConfig
    unsupported_slide_reason = (
        "a recurrent core has no keys and values: its state, of a fixed size, is of all tokens so "
        "far"
    )

    def create_encoder(self, config: RecurrentConfig, dropout: float) -> RecurrentEncoder:
        return RecurrentEncoder(
            config.width,
            config.encoder_size,
            cell=config.cell,
            layers=config.layers,
            directions=config.directions,
            dropout=dropout,
        )

    def create_cell(
        self, config: RecurrentConfig, layer: int, input_dim: int, context_dim: int
    ) -> Cell:
        return CELLS[config.cell](input_dim, config.hidden, context_dim=context_dim)
