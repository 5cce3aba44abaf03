"""JoeyNMT models, with their own batches, padding id and loss."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers.material import inputs_and_targets
from regard.data.batches import PairBatch

__all__ = ["model"]


def model(
    vocab: int, encoder: dict[str, Any], decoder: dict[str, Any], *, width: int, smoothing: float
) -> tuple[nn.Module, Callable[[PairBatch], Tensor]]:
    """Return a model with one tied table, and its loss as a mean over tokens."""
    from joeynmt.batch import Batch as JoeyBatch  # noqa: PLC0415  # imported only if needed
    from joeynmt.model import build_model  # noqa: PLC0415
    from joeynmt.vocabulary import Vocabulary  # noqa: PLC0415

    names = {
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "sep_token": None,
    }
    ids = {"unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3, "sep_id": None, "lang_tags": []}
    logging.disable(logging.INFO)  # silence its log of every model
    vocabulary = Vocabulary([f"t{i}" for i in range(vocab - 4)], SimpleNamespace(**names, **ids))
    table = {"embeddings": {"embedding_dim": width, "scale": True, "dropout": 0.0}}
    settings = {
        "initializer": "xavier_uniform",
        "embed_initializer": "xavier_uniform",
        "bias_initializer": "zeros",
    }
    settings |= {"tied_embeddings": True, "tied_softmax": True}
    settings |= {"encoder": encoder | table, "decoder": decoder | table}
    joey_model = build_model(settings, vocabulary, vocabulary)
    joey_model.loss_function = ("crossentropy", smoothing)

    def mean_loss(batch: PairBatch) -> Tensor:
        source, inputs, targets = inputs_and_targets(batch)
        order = batch.source.lengths.argsort(
            descending=True
        )  # its recurrent encoder wants the longest first
        sorted_batch = (source[order], torch.cat((inputs[:, :1], targets), 1)[order])
        source, target = (torch.where(ids < 2, 1 - ids, ids) for ids in sorted_batch)
        joey_batch = JoeyBatch(
            src=source,
            src_length=batch.source.lengths[order],
            src_prompt_mask=None,
            trg=target,
            trg_prompt_mask=None,
            indices=torch.arange(len(source)),
            device=torch.device("cpu"),
            pad_index=1,
            eos_index=3,
        )
        total, *_ = joey_model(return_type="loss", **vars(joey_batch))
        return total / joey_batch.ntokens

    return joey_model, mean_loss
