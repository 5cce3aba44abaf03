"""Recurrent core: plain rnn, gru or lstm cells as encoder and decoder.

    s_j = cell([x'_j; c_{j-1}], s_{j-1})        rnn: s_j = tanh(A' [x'_j; s_{j-1}; c_{j-1}] + b)

The decoder and its attention are in regard.models.cores.recurrent_decoder.

Source: lectures, B.1 to B.8; sutskever2014 (attention none); bahdanau2015 (additive); luong2015
        (the rest).
"""

from typing import Any, final

from regard.attention.scores.base import Score
from regard.layers.recurrent.cells import CELLS, Cell
from regard.layers.recurrent.encoder import RecurrentEncoder
from regard.models.cores.config import RecurrentConfig
from regard.models.cores.core import config_of
from regard.models.cores.recurrent_decoder import RecurrentDecoderCore


@final
class Recurrent(RecurrentDecoderCore):
    """Encoder and decoder of config.cell.

    Of a config or of its fields: `Recurrent(width=96, hidden=128)`; RecurrentConfig documents them.
    dropout: in training, on the encoder's states, between layers, and on the input of the readout.
    decodes=False: the encoder alone. encodes=False: the decoder alone, without attention.
    in_order=False: the decoder decodes sets of queries.
    score: score of the encoder's states; that of the config if not given.
    """

    def __init__(
        self,
        config: RecurrentConfig | None = None,
        *,
        dropout: float = 0.0,
        encodes: bool = True,
        decodes: bool = True,
        in_order: bool = True,
        score: Score | None = None,
        **fields: Any,
    ):
        config = config_of(RecurrentConfig, config, fields)

        def cell(_layer: int, input_dim: int, context_dim: int) -> Cell:
            return CELLS[config.cell](input_dim, config.hidden, context_dim=context_dim)

        encoder = None
        if encodes:
            encoder = RecurrentEncoder(
                config.width,
                config.encoder_size,
                cell=config.cell,
                layers=config.layers,
                directions=config.directions,
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
