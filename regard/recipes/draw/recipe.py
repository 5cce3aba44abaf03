"""Recipe `draw`: text-to-image generation as a sequence of codes, scored by a classifier.

    image -> autoencoder -> grid of codes             trained first, on the canvases alone
    text  -> core -> codes, row by row                the encoder-decoder of text-to-text recipes
    codes -> decoder of the autoencoder -> image

Source: ramesh2021, section 2 (image codes after a text); vandenoord2017 (codes); ho2022
        (classifier-free guidance).
"""

import math
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain
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
    load_test_canvases,
    load_training_canvases,
)
from regard.data.tables import is_table
from regard.data.text.labels import Labels
from regard.data.tokenizer import BOS, EOS, SOURCE_ENDS, SPECIALS, Tokenizer, load_tokenizer
from regard.decode.guidance import sample_guided
from regard.decode.teacher import trace_outputs
from regard.errors import UserError
from regard.look.sample import Axis, Sample
from regard.models.autoencoders.quantized import QuantizedAutoencoder
from regard.models.build import build
from regard.models.cores.config import max_length_of
from regard.models.model import Model
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.config import check_positions
from regard.recipes.base.entry import Entry
from regard.recipes.base.pictures import InputShape, to_picture
from regard.recipes.base.recipe import Answer, Dataset, Example, Prompt, Recipe, View
from regard.recipes.base.run import Run
from regard.recipes.base.scoring import device_of, loss_per_token
from regard.recipes.draw import stages
from regard.recipes.draw.classifier import ROWS, ConvolutionalClassifier
from regard.recipes.draw.config import DrawRunConfig
from regard.recipes.draw.scores import drawing_scores
from regard.system.files import one_path
from regard.system.writing import replace_atomically
from regard.trace import Trace
from regard.training.seeds import derive_seed
from regard.training.tensors import load_weights

_TOKENIZER, _LABELS = "tokenizer.json", "labels.json"
_ENDINGS = (".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")


class Drawing(NamedTuple):
    """Generated image (channels, height, width) or its path, and mean log p of its codes."""

    image: Any
    score: float


class DrawRecipe(Recipe[DrawRunConfig]):
    """Recipe of text-to-image generation."""

    batch_rows = ROWS
    tokenizer: Tokenizer
    labels: Labels | None
    autoencoder: QuantizedAutoencoder
    classifier: ConvolutionalClassifier | None

    def __init__(self, run: Run, notify: Callable[[str], None], entry: Entry):
        super().__init__(run, notify, entry)
        train = self.config.data.train
        has_classes = train is None or not is_table(one_path(train))
        self.metric = "prompt_accuracy" if has_classes else "nll"
        self.monitored = ("nll", "prompt_accuracy", "item_recall") if has_classes else ("nll",)
        self.higher_is_better = has_classes

    def load(self, split: str) -> Dataset[CanvasDataset]:
        if split != "test":
            train, val, _ = self._splits
            canvases = train if split == "train" else val
        else:
            if hasattr(self, "autoencoder"):
                labels, shape = self.labels, self.autoencoder.shape
            else:  # before anything is learned
                labels, shape = self._splits[2], self._splits[0].shape
            data, seed = self.config.data, self.run.seed
            canvases = load_test_canvases(data.test, data, seed=seed, labels=labels, shape=shape)
        indices = canvases.epoch(0)
        inputs = View(len(indices), lambda i: canvases.text(indices[i]))
        return Dataset(canvases, canvases.origin, inputs, notes=canvases.notices)

    @cached_property
    def _splits(self) -> tuple[CanvasDataset, CanvasDataset, Labels | None]:
        return load_training_canvases(self.config.data, seed=self.run.seed)

    def fit(self, train: Dataset[CanvasDataset]) -> dict[str, Any]:
        canvases, labels = train.data, self._splits[2]
        needed = QuantizedAutoencoder(self.config.autoencoder, canvases.shape).numbers + 1
        reason = f"{needed}, one more than the codes of a canvas"
        check_positions(self.config.model.core, needed, reason)
        tokenizer = self.fit_tokenizer(train.inputs, train.origin)
        return {_TOKENIZER: tokenizer} | ({} if labels is None else {_LABELS: labels})

    def pretrain(self, folder: Path) -> None:
        train, val = self.train.data, self.val.data
        stages.train_autoencoder(folder, self.run, train, val, self.notify)
        if isinstance(train, SceneDataset) and isinstance(val, SceneDataset):
            stages.train_classifier(folder, self.run, train, val, self.notify)

    def open(self, folder: Path) -> None:
        self.tokenizer = load_tokenizer(folder / _TOKENIZER)
        run = folder.parent
        shape = InputShape.load(run / f"{stages.AUTOENCODER}.json").shape
        self.autoencoder = QuantizedAutoencoder(self.config.autoencoder, shape)
        load_weights(run / stages.AUTOENCODER / "model.safetensors", self.autoencoder.eval())
        self.labels, self.classifier = None, None
        if (folder / _LABELS).exists():
            self.labels = Labels.load(folder / _LABELS)
            shape: Any = InputShape.load(run / f"{stages.CLASSIFIER}.json").shape
            self.classifier = ConvolutionalClassifier(shape, len(self.labels.names) + 1)
            load_weights(run / stages.CLASSIFIER / "model.safetensors", self.classifier.eval())

    def batches(self) -> TokenBatches:
        train, dropout = self.train, self.config.caption_dropout
        return TokenBatches(
            lambda epoch: self.encode_drawings(train.data, epoch=epoch, caption_dropout=dropout),
            batch_tokens=self.config.train.batch_tokens,
            seed=self.run.seed,
            origin=train.origin,
        )

    def encode_drawings(
        self, drawings: CanvasDataset, *, epoch: int = 0, caption_dropout: float = 0.0
    ) -> EncodedPairs:
        """Return the ids of the texts of an epoch, some of them empty, and of their codes."""
        indices = list(drawings.epoch(epoch))
        stream = np.random.PCG64(np.random.SeedSequence((self.run.seed, 7, epoch)))
        is_dropped = stream.random_raw(len(indices)) / 2.0**64 < caption_dropout
        texts = self.tokenizer.encode_batch(drawings.text(i) for i in indices)
        sources = [[] if is_empty else ids for ids, is_empty in zip(texts, is_dropped, strict=True)]
        codes = stages.encode_canvases(self.autoencoder, drawings, indices)
        return EncodedPairs.from_sequences(sources, (codes + len(SPECIALS)).tolist())

    def model(self) -> Model:
        return build(
            self.config.model,
            source_vocab=len(self.tokenizer),
            target_vocab=len(SPECIALS) + self.config.autoencoder.codebook_size,
            label_smoothing=self.config.train.label_smoothing,
            grid=self.autoencoder.grid if self.config.position_embeddings == "grid" else None,
            parts=self.parts(),
        )

    def describe(self) -> str:
        (rows, columns), size = self.autoencoder.grid, self.config.autoencoder.codebook_size
        return f"{len(self.tokenizer):,} words; {rows} x {columns} codes of {size}"

    def metrics(self, inference: ActiveModel, dataset: Dataset[CanvasDataset]) -> dict[str, Any]:
        model, drawings, decode = inference.model, dataset.data, self.config.decode
        nll = loss_per_token(model, self.encode_drawings(drawings))
        scores: dict[str, Any] = {"nll": nll, "perplexity": math.exp(min(nll, 100.0))}
        scores |= stages.autoencoder_scores(self.autoencoder, drawings)
        rows, columns = self.autoencoder.grid
        sampling = f"guidance {decode.guidance:g}, temperature {decode.temperature:g}"
        scores |= {"signature": f"{rows} x {columns} codes, {sampling}", "samples": []}
        if self.classifier is None or not isinstance(drawings, SceneDataset):
            return scores
        texts = self.tokenizer.encode_batch(drawings.text(i) for i in drawings.epoch(0))
        seeds = [derive_seed(decode.seed, i) for i in range(len(texts))]
        codes, _ = self.sample_codes(model, texts, seeds=seeds)
        drawn = stages.reconstruct(self.autoencoder, codes)
        return scores | drawing_scores(drawings, self.classifier, self.autoencoder, drawn)

    def sample_codes(
        self,
        model: Model,
        texts: Sequence[Sequence[int]],
        *,
        seeds: Sequence[int],
        trace: Trace | None = None,
    ) -> tuple[Tensor, list[float]]:
        """Sample codes (texts, positions) for texts as ids; return also their mean log p."""
        parts, scores = [], []
        for part in self.plan(texts):
            if trace is not None:
                trace.begin_segment(part)
            tokens, log_p = sample_guided(
                model,
                pad(texts[part.start : part.stop], SOURCE_ENDS).to(device_of(model)),
                empty_source=(EOS,),
                bos=BOS,
                banned=range(len(SPECIALS)),
                trace=trace,
                config=self.config.decode,
                length=self.autoencoder.numbers,
                seeds=seeds[part.start : part.stop],
            )
            parts.append(tokens.cpu() - len(SPECIALS))
            scores += log_p.tolist()
        return torch.cat(parts), scores

    def preprocess(self, given: str, number: int) -> list[Prompt]:
        text, limit = given.strip(), max_length_of(self.config.model.core)
        ids = self.tokenizer.encode(text)
        if not ids:
            raise UserError(f"input {number} is empty: there is nothing to draw")
        if limit is not None and len(ids) >= limit:
            raise UserError(f"input {number} has {len(ids)} words, above the limit {limit - 1}")
        self.notify_unknown(self.tokenizer, ids, text, number)
        return [Prompt(text, ids, number)]

    def forward(
        self, inference: ActiveModel, rows: Sequence[Any], trace: Trace | None = None
    ) -> list[tuple[list[Drawing], Tensor]]:
        """Return `n_best` images for each text, and the codes of the first."""
        texts, seeds = [], []
        for rank in range(self.config.n_best):  # the first images come first in traces
            for row in rows:
                texts.append(row.ids)
                more = [rank] if rank else []
                seeds.append(derive_seed(self.config.decode.seed, row.number - 1, *more))
        codes, scores = self.sample_codes(inference.model, texts, seeds=seeds, trace=trace)
        images = stages.reconstruct(self.autoencoder, codes)
        drawings = [Drawing(*pair) for pair in zip(images, scores, strict=True)]
        return [(drawings[i :: len(rows)], codes[i]) for i in range(len(rows))]

    def collate(self, rows: Sequence[Prompt]) -> Padded:
        return pad([row.ids for row in rows], SOURCE_ENDS)

    def postprocess(self, example: Example) -> Answer:
        return _to_answer(example.outputs[0][0])

    def stack(self, values: list[Any]) -> NDArray[np.uint8]:
        return np.stack(values)

    def files(
        self, texts: Sequence[str], out: Path | None, first: int, *, force: bool
    ) -> list[list[Path]]:
        """Return the paths of the images of each text; see `drawing_paths`."""
        rows = drawing_paths(texts, out, first=first, count=self.config.n_best)
        for path in chain(*rows):
            if path.is_file() and not force:
                raise UserError(f"{path} exists; it is replaced only with --force")
            if not path.parent.is_dir():
                raise UserError(f"{path}: the folder {path.parent} does not exist")
        return rows

    def save(self, answer: Answer, files: list[Path]) -> Answer:
        """Save the images, and return their paths in their place."""
        drawings = []
        for (image, score), path in zip(answer.ranked, files, strict=True):
            form = Image.registered_extensions()[path.suffix.lower()]
            with replace_atomically(path) as unfinished:
                pixels = to_picture(image).pixels  # pyrefly: ignore[bad-argument-type]
                Image.fromarray(pixels).save(unfinished, form)
            drawings.append(Drawing(str(path), score))
        return _to_answer(drawings)

    def sample(self, inference: ActiveModel, example: Example, i: int) -> Sample:
        text = example.rows[i].text
        words = (*self.tokenizer.tokens(text), SPECIALS[EOS])
        return Sample(
            title=text,
            axes={"source": Axis(labels=words, kind="token")},
            pictures={"drawn": to_picture(example.outputs[i][0][0].image)},
            tokens=lambda ids: [str(number - len(SPECIALS)) for number in ids],
            begin=SPECIALS[BOS],
            output=Axis.grid(*self.autoencoder.grid, picture="drawn", kind="code"),
        )

    def log_prob(self, model: Any, example: Example, i: int) -> Tensor:
        """Return log p of the sampled codes given the text, without guidance."""
        device, codes = device_of(model), example.outputs[i][1] + len(SPECIALS)
        target = pad([[BOS, *codes.tolist()]]).to(device)
        logits = model(self.collate([example.rows[i]]).to(device), target)[0]
        return _log_probs(logits).gather(1, target.items[0, 1:, None]).sum()

    def read_output(self, inference: ActiveModel, row: Any, output: Any, trace: Trace) -> None:
        source = self.collate([row]).to(device_of(inference.model))
        ids = [BOS, *(output[1] + len(SPECIALS)).tolist()]
        trace_outputs(inference.model, source, [ids], trace, log_probs=_log_probs)


def _log_probs(logits: Tensor) -> Tensor:
    """Return the log-probability of each code, among codes alone."""
    specials = torch.arange(len(SPECIALS), device=logits.device)
    return logits.float().index_fill(1, specials, -torch.inf).log_softmax(-1)


def _to_answer(drawings: list[Any]) -> Answer:
    """Return images, or their paths once they are saved, with their scores."""
    images = []
    for image, score in drawings:
        content = {"file": image} if isinstance(image, str) else {"pixels": image.tolist()}
        images.append(content | {"score": score})
    first = drawings[0].image
    return Answer(first, {"images": images}, [str(first)], drawings)


def drawing_paths(
    texts: Sequence[str], out: Path | None, *, first: int, count: int
) -> list[list[Path]]:
    """Return the paths for drawings: `out`, or the text with dashes and .png; numbered if several.

    Raises: UserError if the suffix is not a supported image format.
    """
    if out is not None and out.suffix.lower() not in _ENDINGS:
        raise UserError(f"{out}: images can be saved as {', '.join(_ENDINGS)}")
    rows = []
    for number, text in enumerate(texts, start=first):
        words = re.sub(r"[^\w]+", "-", text).strip("-")[:60]
        path = out or Path(f"{words or 'drawing'}.png")
        stem = path.stem
        if len(texts) > 1 or first > 1:
            stem = f"{stem}-{number}"
        names = [f"{stem}-{rank}" for rank in range(1, count + 1)] if count > 1 else [stem]
        rows.append([path.with_name(name + path.suffix) for name in names])
    return rows
