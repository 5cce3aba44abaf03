"""Synthetic dates, and a model that Transformers trains on them.

The dates are others than those of the recipe `dates`: names of months are invented, in the letters
of many scripts. The tokenizer knows the words of both, as those of public models do.
"""

import random
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import tokenizers
import torch
import transformers as hf
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor

from regard.data.batches import pad
from regard.data.embedded.dates import DatesDataset
from regard.data.embedded.dates_config import DatesConfig

SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
_SCRIPTS = (
    *(("a", 26),) * 6,
    *(("\u0430", 32),) * 2,
    *(("\u03b1", 25), ("\u0561", 38), ("\u05d0", 27), ("\u0627", 36), ("\u0905", 53)),
    *(("\u0985", 53), ("\u0b85", 53), ("\u0c05", 53), ("\u0e01", 58), ("\u1000", 42)),
    *(("\u10d0", 33), ("\u1200", 99), ("\u4e00", 99), ("\uac00", 99)),
)
"""First letter of a script, and the number of letters from it on."""
_ORDERS = ("{d} {m} {y}", "{m} {d}, {y}", "{d}. {m} {y}", "{y} {m} {d}", "{d}.{n}.{y}")
_ORDERS += ("{y}/{n}/{d}", "{w}, {d} {m} {y}", "{y}. {m} {d}., {w}")


def make_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Return written dates and their ISO form."""
    draw, languages = random.Random(seed), _make_languages()
    pairs = []
    for _ in range(count):
        day = date(1900, 1, 1) + timedelta(days=draw.randrange(73_000))
        months, weekdays, orders = draw.choice(languages)
        text = draw.choice(orders).format(
            d=day.day,
            m=months[day.month - 1],
            n=day.month,
            w=weekdays[day.weekday()],
            y=day.year,
        )
        pairs.append((text, day.isoformat()))
    return pairs


def _make_languages() -> list[tuple[list[str], list[str], list[str]]]:
    """Return the names of months and weekdays and the orders of invented languages."""
    draw, languages = random.Random(0), []
    for _ in range(60):
        first, size = draw.choice(_SCRIPTS)
        letters = [chr(ord(first) + number) for number in range(size)]
        names = ["".join(draw.choices(letters, k=draw.randrange(3, 8))) for _ in range(19)]
        languages.append((names[:12], names[12:], draw.sample(_ORDERS, 3)))
    return languages


def make_project_pairs(split: str, count: int) -> list[tuple[str, str]]:
    """Return dates of the recipe `dates` and their ISO form."""
    dates = DatesDataset(DatesConfig(), seed=1)
    examples = (dates.example(split, index=index) for index in range(count))
    return [(example.text, example.iso) for example in examples]


def make_tokenizer(texts: list[str]) -> Any:
    """Return a byte-level tokenizer of Transformers, without case, for which a digit is a token."""
    engine: Any = tokenizers.Tokenizer(models.BPE())
    engine.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    splits = pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.pre_tokenizer = pre_tokenizers.Sequence([*splits])
    engine.decoder = decoders.ByteLevel()
    trainer: Any = trainers.BpeTrainer
    known = [text for text, _ in make_project_pairs("train", 20_000)]
    engine.train_from_iterator(
        [*texts, *known],
        trainer(
            vocab_size=3000,
            special_tokens=[*SPECIALS],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    engine.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 3)]
    )
    names = ("pad_token", "unk_token", "bos_token", "eos_token")
    specials = dict(zip(names, SPECIALS, strict=True))
    return hf.PreTrainedTokenizerFast(tokenizer_object=engine, **specials)


def train_marian(*, steps: int) -> tuple[Any, Any]:
    """Return a Marian of the size of the recipe `dates`, and its tokenizer."""
    pairs = make_pairs(40_000, seed=1)
    tokenizer = make_tokenizer([text for pair in pairs for text in pair])
    sources, targets = (tokenizer(list(side)).input_ids for side in zip(*pairs, strict=True))
    sizes = {
        f"{stack}_{name}": size
        for stack, layers in (("encoder", 3), ("decoder", 2))
        for name, size in (("layers", layers), ("attention_heads", 4), ("ffn_dim", 512))
    }
    config = hf.MarianConfig(
        **sizes,
        vocab_size=len(tokenizer),
        d_model=128,
        max_position_embeddings=128,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=3,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
    )

    def compute_loss(model: Any, rows: list[int]) -> Tensor:
        given, labels = (pad([side[row] for row in rows]) for side in (sources, targets))
        mask = (torch.arange(given.items.shape[1]) < given.lengths[:, None]).long()
        labels = labels.items.masked_fill(labels.items == 0, -100)
        return model(input_ids=given.items, attention_mask=mask, labels=labels).loss

    model = hf.MarianMTModel(config)
    train(model, compute_loss, count=len(pairs), rows=128, steps=steps)
    return model, tokenizer


def train(
    model: Any,
    compute_loss: Callable[[Any, list[int]], Tensor],
    *,
    count: int,
    rows: int,
    steps: int,
) -> None:
    """Train a model on batches of `rows` of `count` examples."""
    draw, rate = random.Random(3), 1.5e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=steps, pct_start=0.15, cycle_momentum=False
    )
    for _ in range(steps):
        loss = compute_loss(model.train(), draw.choices(range(count), k=rows))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()
