"""Recipe `draw`: text-to-image generation as a sequence of codes, scored by a classifier.

    image -> autoencoder -> grid of codes                    trained first, on the canvases alone
    text  -> core -> codes, row by row                       the encoder-decoder of the text-to-text
    recipes codes -> decoder of the autoencoder -> image

Source: ramesh2021, section 2 (image codes after a text); vandenoord2017 (codes); ho2022
        (classifier-free guidance).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from regard.attention.masks import Padded
from regard.data.batches import EncodedPairs, TokenBatches, pad
from regard.data.embedded.scenes import (
    CanvasDataset,
    SceneDataset,
    is_caption_file,
    load_test_canvases,
    load_training_canvases,
)
from regard.data.text.labels import Labels
from regard.data.tokenizer import BOS, EOS, SPECIALS, UNK, Tokenizer
from regard.decode.config import DrawingConfig
from regard.decode.guidance import sample_guided
from regard.errors import UserError
from regard.look.sample import Axis, Sample
from regard.models.autoencoders.quantized import QuantizedAutoencoder
from regard.models.build import build
from regard.models.cores.config import max_length_of
from regard.models.model import Model
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.answers import ImagesAnswer
from regard.recipes.base.entry import Entry
from regard.recipes.base.pictures import to_picture
from regard.recipes.base.recipe import Examples, Prepared, Recipe, plan_by_count
from regard.recipes.base.run import Run
from regard.recipes.base.scoring import device_of
from regard.recipes.draw.config import DrawEvaluation, DrawPrediction, DrawRunConfig
from regard.recipes.draw.scores import drawing_scores, loss_scores
from regard.recipes.draw.stages import (
    CellClassifier,
    encode_canvases,
    load_autoencoder,
    reconstruct,
    train_autoencoder,
    train_classifier,
)
from regard.trace import Trace
from regard.training.seeds import derive_seed

_TOKENIZER, _LABELS = "tokenizer.json", "labels.json"
_ROWS = 256


class Drawing(NamedTuple):
    """Generated image (channels, height, width) or its path, and the mean log-probability of its
    codes."""

    image: Any
    score: float


class DrawRecipe(Recipe[DrawRunConfig]):
    """Recipe of text-to-image generation."""

    monitored = ("nll", "prompt_accuracy", "item_recall")
    tokenizer: Tokenizer
    labels: Labels | None
    autoencoder: QuantizedAutoencoder
    classifier: CellClassifier | None

    def __init__(self, run: Run, notify: Callable[[str], None], entry: Entry):
        super().__init__(run, notify, entry)
        self.metric = "nll" if is_caption_file(self.config.data.train) else "prompt_accuracy"
        self.higher_is_better = self.metric == "prompt_accuracy"

    def read(self, split: str, other: Any = None) -> Examples[CanvasDataset]:
        data = self.config.data
        if split != "test":
            train, val, _ = self._splits
            canvases = val if split == "val" else train
        else:
            path = data.test if other is None else other.test[0]
            config = data if other is None else replace(data, on_bad=other.on_bad)
            canvases = load_test_canvases(path, config, seed=self.run.seed, **self._canvas_settings)
        indices = canvases.epoch(0)
        own = {"input": lambda i: canvases.text(indices[i]), "skipped": tuple(canvases.left_out())}
        return Examples(canvases, canvases.origin, len(indices), **own)

    @property
    def _canvas_settings(self) -> dict[str, Any]:
        """Classes and shape of the canvases: those that were learned, or of the training data
        before that."""
        if hasattr(self, "autoencoder"):
            return {"labels": self.labels, "shape": self.autoencoder.shape}
        return {"labels": self._splits[2], "shape": self._splits[0].shape}

    def check_examples(self, split: str, examples: Examples[CanvasDataset]) -> None:
        train, own = self.train.data, examples.data
        if own.shape != train.shape:
            raise UserError(
                f"{own.origin}: canvases have the shape {own.shape}, but those of {train.origin} "
                f"have {train.shape}"
            )
        limit = max_length_of(self.config.model.core)
        needed = QuantizedAutoencoder(self.config.autoencoder, train.shape).numbers + 1
        if limit is not None and limit < needed:
            raise UserError(
                f"model.core.positions.max_length must be at least {needed}, one more than the "
                f"codes of a canvas, got "
                f"{limit}; or raise autoencoder.downsampling_layers"
            )

    def learn(self, folder: Path) -> None:
        train, labels = self.train.data, self._splits[2]
        texts = [train.text(i) for i in train.epoch(0)]
        Tokenizer.train(texts, self.config.tokenizer, origin=train.origin).save(folder / _TOKENIZER)
        if labels is not None:
            labels.save(folder / _LABELS)

    def pretrain(self, folder: Path) -> None:
        train, val = self.train.data, self.val.data
        train_autoencoder(folder, self.run, (train, val), self.notify)
        if isinstance(train, SceneDataset) and isinstance(val, SceneDataset):
            train_classifier(folder, self.run, (train, val), self.notify)

    def open(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.load(folder / _TOKENIZER)
        self.labels = Labels.load(folder / _LABELS) if (folder / _LABELS).exists() else None
        self.autoencoder = load_autoencoder(folder.parent, self.config)
        self.classifier = (
            CellClassifier.load(folder.parent, self.config) if self.labels is not None else None
        )

    def batches(self) -> TokenBatches:
        limit = {"batch_tokens": self.config.train.batch_tokens, "seed": self.run.seed}
        return TokenBatches(
            lambda epoch: self.encode(
                self.train.data, epoch=epoch, caption_dropout=self.config.caption_dropout
            ),
            **limit,
            origin=self.train.origin,
        )

    def encode(
        self, drawings: CanvasDataset, *, epoch: int = 0, caption_dropout: float = 0.0
    ) -> EncodedPairs:
        """Return the ids of an epoch's texts, a fraction `caption_dropout` of them empty, and of
        their codes."""
        indices = list(drawings.epoch(epoch))
        stream = np.random.PCG64(np.random.SeedSequence((self.run.seed, 7, epoch)))
        is_dropped = stream.random_raw(len(indices)) / 2.0**64 < caption_dropout
        texts = self.tokenizer.encode_batch(drawings.text(i) for i in indices)
        sources = [[] if is_empty else ids for ids, is_empty in zip(texts, is_dropped, strict=True)]
        codes = encode_canvases(self.autoencoder, drawings, indices)
        return EncodedPairs.from_sequences(
            sources, ([len(SPECIALS) + code for code in row] for row in codes)
        )

    def model(self) -> Model:
        return build(
            self.config.model,
            source_vocab=len(self.tokenizer),
            target_vocab=len(SPECIALS) + self.config.autoencoder.codebook_size,
            label_smoothing=self.config.train.label_smoothing,
            grid=self.autoencoder.grid if self.config.position_embeddings == "grid" else None,
        )

    def describe(self) -> str:
        rows, columns = self.autoencoder.grid
        return f"{len(self.tokenizer):,} words; {rows} x {columns} codes of {self.config.autoencoder.codebook_size}"

    def score(
        self, inference: ActiveModel, examples: Examples[CanvasDataset], options: DrawEvaluation
    ) -> dict[str, Any]:
        model, drawings, decode = inference.model, examples.data, options.decode
        scores: dict[str, Any] = loss_scores(model, self.autoencoder, drawings, self.encode)
        rows, columns = self.autoencoder.grid
        signature = f"{rows} x {columns} codes, guidance {decode.guidance:g}, temperature {decode.temperature:g}"
        scores |= {"signature": signature, "samples": []}
        if self.classifier is None or not isinstance(drawings, SceneDataset):
            return scores
        texts = self.tokenizer.encode_batch(drawings.text(i) for i in drawings.epoch(0))
        drawn, _ = self.draw(
            model, texts, decode, seeds=[derive_seed(decode.seed, i) for i in range(len(texts))]
        )
        return scores | drawing_scores(drawings, self.classifier, self.autoencoder, drawn)

    def draw(
        self,
        model: Model,
        texts: Sequence[Sequence[int]],
        decode: DrawingConfig,
        *,
        seeds: Sequence[int],
    ) -> tuple[NDArray[np.uint8], list[float]]:
        """Generate canvases (texts, channels, height, width) for texts given as ids.

        Returns also the mean log-probability of the codes of each.
        """
        codes, scores = self.sample_codes(model, texts, decode, seeds=seeds)
        return reconstruct(self.autoencoder, codes), scores

    def sample_codes(
        self,
        model: Model,
        texts: Sequence[Sequence[int]],
        decode: DrawingConfig,
        *,
        seeds: Sequence[int],
        trace: Trace | None = None,
    ) -> tuple[Tensor, list[float]]:
        """Sample codes (texts, positions) for texts as ids; return also their mean
        log-probabilities."""
        parts, scores = [], []
        for i in range(0, len(texts), _ROWS):
            if trace is not None:
                trace.begin_segment(range(i, min(i + _ROWS, len(texts))))
            source = _pad(texts[i : i + _ROWS], device_of(model))
            settings = {
                "config": decode,
                "length": self.autoencoder.numbers,
                "seeds": seeds[i : i + _ROWS],
            }
            sampled = sample_guided(
                model,
                source,
                empty_source=(EOS,),
                bos=BOS,
                banned=range(len(SPECIALS)),
                trace=trace,
                **settings,
            )
            parts.append(sampled.tokens.cpu() - len(SPECIALS))
            scores += sampled.log_prob.tolist()
        return torch.cat(parts), scores

    def prepare(self, inputs: Sequence[str], first: int) -> Prepared:
        prepared, limit = Prepared(len(inputs)), max_length_of(self.config.model.core)
        for owner, text in enumerate(inputs):
            number, ids = first + owner, self.tokenizer.encode(text.strip())
            if not ids:
                raise UserError(f"input {number} is empty: there is nothing to draw")
            if limit is not None and len(ids) >= limit:
                raise UserError(
                    f"input {number} is too long: {len(ids)} words; the limit is {limit - 1}"
                )
            if UNK in ids:
                unknown = ", ".join(map(repr, self.tokenizer.unknown(text.strip())[:10]))
                prepared.notes.append(
                    f"input {number}: never seen in training, so read as unknown: {unknown}"
                )
            prepared.add(owner, (ids, number), text.strip())
        return prepared

    def plan(self, rows: Sequence[Any]) -> list[range]:
        return plan_by_count(rows, _ROWS)

    def answer(
        self,
        inference: ActiveModel,
        rows: Sequence[Any],
        options: DrawPrediction,
        trace: Trace | None = None,
    ) -> list[tuple[list[Drawing], list[int]]]:
        ranks = [
            (rank, row) for rank in range(options.n_best) for row in rows
        ]  # the first images come first in traces
        seeds = [
            derive_seed(options.decode.seed, number - 1, *([rank] if rank else []))
            for rank, (_, number) in ranks
        ]
        codes, scores = self.sample_codes(
            inference.model,
            [ids for _, (ids, _) in ranks],
            options.decode,
            seeds=seeds,
            trace=trace,
        )
        drawings = [
            Drawing(*pair)
            for pair in zip(reconstruct(self.autoencoder, codes), scores, strict=True)
        ]
        return [(drawings[i :: len(rows)], codes[i].tolist()) for i in range(len(rows))]

    def join(
        self, prepared: Prepared, answers: Sequence[Any], options: DrawPrediction
    ) -> list[list[Drawing]]:
        return [drawings for drawings, _ in answers]

    def values(self, answers: list[list[Drawing]]) -> NDArray[np.uint8]:
        return np.stack([first.image for first, *_ in answers])

    def rank_texts(self, answer: list[Drawing]) -> list[Any]:
        return answer

    def lines(self, answer: list[Drawing]) -> list[str]:
        return [answer[0].image]

    def json(self, answer: list[Drawing]) -> ImagesAnswer:
        return {"images": [{"file": drawing.image, "score": drawing.score} for drawing in answer]}

    def files(self, inputs: Sequence[str], options: DrawPrediction, first: int) -> list[list[Path]]:
        paths = drawing_paths(inputs, options.out, first=first, count=options.n_best)
        for path in (path for row in paths for path in row):
            if path.exists() and not options.force:
                raise FileExistsError(f"{path} exists; it is replaced only with --force")
            if path.parent != Path() and not path.parent.is_dir():
                raise UserError(f"{path}: the folder {path.parent} does not exist")
        return paths

    def save(self, answer: list[Drawing], files: list[Path]) -> list[Drawing]:
        for drawing, path in zip(answer, files, strict=True):
            _save(drawing.image, path)
        return [
            Drawing(str(path), drawing.score) for drawing, path in zip(answer, files, strict=True)
        ]

    def sample(
        self, inference: ActiveModel, prepared: Prepared, row: int, answers: Sequence[Any]
    ) -> Sample:
        text = prepared.facts[row]
        words = (*self.tokenizer.tokens(text), SPECIALS[EOS])
        return Sample(
            title=text,
            axes={"source": Axis(labels=words, kind="token")},
            pictures={"drawn": to_picture(answers[row][0][0].image)},
            tokens=lambda ids: [str(number - len(SPECIALS)) for number in ids],
            begin=SPECIALS[BOS],
            output=Axis.grid(*self.autoencoder.grid, picture="drawn", kind="code"),
        )

    def log_prob(self, model: Any, prepared: Prepared, row: int, answer: Any) -> Tensor:
        device = device_of(model)
        source = _pad([prepared.rows[row][0]], device)
        target = pad([[BOS, *(len(SPECIALS) + code for code in answer[1])]]).to(device)
        logits = model(source, target)[0].float()
        logits = logits.index_fill(1, torch.arange(len(SPECIALS), device=device), -torch.inf)
        return logits.log_softmax(-1).gather(1, target.items[0, 1:, None]).sum()

    @cached_property
    def _splits(self) -> tuple[CanvasDataset, CanvasDataset, Labels | None]:
        return load_training_canvases(self.config.data, seed=self.run.seed)


def drawing_paths(
    texts: Sequence[str], out: Path | None, *, first: int, count: int
) -> list[list[Path]]:
    """Return the paths for drawings: `out`, or the text with dashes and .png; with numbers if there
    are several.

    Raises: UserError if the suffix is not a supported image format.
    """
    if out is not None and out.suffix.lower() not in (
        ".png",
        ".bmp",
        ".gif",
        ".webp",
        ".tif",
        ".tiff",
    ):
        raise UserError(f"{out}: images can be saved as .png, .bmp, .gif, .webp or .tiff")
    rows = []
    for number, text in enumerate(texts, start=first):
        stem = re.sub(r"[^\w]+", "-", text.strip()).strip("-")[:60] or "drawing"
        path = Path(f"{stem}.png") if out is None else out
        parts = [str(number)] if len(texts) > 1 or first > 1 else []
        names = [
            "-".join([path.stem, *parts, *([str(rank)] if count > 1 else [])])
            for rank in range(1, count + 1)
        ]
        rows.append([path.with_name(name + path.suffix) for name in names])
    return rows


def _save(image: NDArray[np.uint8], path: Path) -> None:
    pixels = image[0] if image.shape[0] == 1 else image.transpose(1, 2, 0)
    unfinished = path.with_name(f".{path.name}.new{path.suffix}")
    Image.fromarray(pixels).save(unfinished)
    unfinished.replace(path)


def _pad(texts: Sequence[Sequence[int]], device: torch.device) -> Padded:
    source = pad([[*ids, EOS] for ids in texts])
    return Padded(source.items.to(device), source.lengths.to(device))
