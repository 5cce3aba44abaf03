"""Recipe `draw`: text-to-image generation as a sequence of codes, scored by a classifier.

    image -> autoencoder -> grid of codes                    trained first, on the canvases alone
    text  -> core -> codes, row by row                       the encoder-decoder of the text-to-text recipes
    codes -> decoder of the autoencoder -> image

Source: ramesh2021, section 2 (image codes after a text); vandenoord2017 (codes); ho2022 (classifier-free guidance).
"""

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.data.batches import EncodedPairs, TokenBatches, pad
from regard.data.config import OnBad, ScenesConfig
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
from regard.look.maps import SampleMaps
from regard.look.sample import Axis, Sample
from regard.models.autoencoders.quantized import QuantizedAutoencoder
from regard.models.build import build
from regard.models.config import max_length_of
from regard.models.model import Model
from regard.recipes.base.pictures import to_picture
from regard.recipes.base.recipe import Recipe, TrainedRun, get_input
from regard.recipes.base.run import Run
from regard.recipes.base.scoring import device_of
from regard.recipes.draw.config import DrawRunConfig
from regard.recipes.draw.scores import drawing_scores, loss_scores
from regard.recipes.draw.stages import (
    CellClassifier,
    encode_canvases,
    load_autoencoder,
    reconstruct,
    train_autoencoder,
    train_classifier,
)
from regard.system.fingerprints import record_digests
from regard.system.output_files import check_output
from regard.trace import Trace
from regard.train.seeds import derive_seed

_TOKENIZER, _LABELS = "tokenizer.json", "labels.json"
_ROWS = 256


class Drawing(NamedTuple):
    """Path of a generated image, and the mean log-probability of its codes."""

    text: str
    score: float


class DrawRecipe(Recipe):
    """Recipe of text-to-image generation."""

    tokenizer: Tokenizer
    labels: Labels | None
    autoencoder: QuantizedAutoencoder
    classifier: CellClassifier | None

    def __init__(self, run: Run, notify: Callable[[str], None]):
        super().__init__(run, notify)
        self.metric = "nll" if is_caption_file(self.config.data.train) else "prompt_accuracy"

    @property
    def higher_is_better(self) -> bool:
        """True for the score of drawings, False for the nll."""
        return self.metric == "prompt_accuracy"

    @property
    def config(self) -> DrawRunConfig:
        """All settings of the run."""
        assert isinstance(self.run.config, DrawRunConfig)
        return self.run.config

    def check(self) -> None:
        """Read all images, and check that the core has enough positions for their codes."""
        train, val, labels = self._splits
        if val.shape != train.shape:
            raise UserError(
                f"{val.origin}: canvases have the shape {val.shape}, but those of {train.origin} have {train.shape}"
            )
        if self.config.data.test is not None:
            with record_digests():  # test data is not part of the fingerprint of the training data
                load_test_canvases(self.config.data.test, self.config.data, seed=0, labels=labels, shape=train.shape)
        limit = max_length_of(self.config.model.core)
        needed = QuantizedAutoencoder(self.config.autoencoder, train.shape).numbers + 1
        if limit is not None and limit < needed:
            raise UserError(
                f"model.core.positions.max_length must be at least {needed}, one more than the codes of a canvas, got "
                f"{limit}; or raise autoencoder.downsampling_layers"
            )

    def learn(self, folder: Path) -> None:
        """Train the tokenizer of texts; save it and the classes."""
        train, _, labels = self._splits
        texts = (train.text(i) for i in train.epoch(0))
        Tokenizer.train(texts, self.config.tokenizer, origin=train.origin).save(folder / _TOKENIZER)
        if labels is not None:
            labels.save(folder / _LABELS)

    def pretrain(self, folder: Path) -> None:
        """Train the autoencoder of images, and the classifier."""
        train, val, _ = self._splits
        train_autoencoder(folder, self.run, (train, val), self.notify)
        if isinstance(train, SceneDataset) and isinstance(val, SceneDataset):
            train_classifier(folder, self.run, (train, val), self.notify)

    def open(self, folder: Path) -> None:
        """Load what `learn` wrote."""
        self.tokenizer = Tokenizer.load(folder / _TOKENIZER)
        self.labels = Labels.load(folder / _LABELS) if (folder / _LABELS).exists() else None
        self.autoencoder = load_autoencoder(folder, self.config)
        self.classifier = CellClassifier.load(folder, self.config) if self.labels is not None else None

    def batches(self) -> TokenBatches:
        """Return batches of texts and codes of canvases; generated canvases are new in every epoch."""
        limit = {"batch_tokens": self.config.train.batch_tokens, "seed": self.run.seed}
        origin = self._splits[0].origin
        return TokenBatches(
            lambda epoch: self.encode(self._splits[0], epoch=epoch, caption_dropout=self.config.caption_dropout),
            **limit,
            origin=origin,
        )

    def encode(self, drawings: CanvasDataset, *, epoch: int = 0, caption_dropout: float = 0.0) -> EncodedPairs:
        """Return the ids of an epoch's texts, a fraction `caption_dropout` of them empty, and of their codes."""
        indices = list(drawings.epoch(epoch))
        stream = np.random.PCG64(np.random.SeedSequence((self.run.seed, 7, epoch)))
        is_dropped = stream.random_raw(len(indices)) / 2.0**64 < caption_dropout
        texts = self.tokenizer.encode_batch(drawings.text(i) for i in indices)
        sources = [[] if is_empty else ids for ids, is_empty in zip(texts, is_dropped, strict=True)]
        codes = encode_canvases(self.autoencoder, drawings, indices)
        return EncodedPairs.from_sequences(sources, ([len(SPECIALS) + code for code in row] for row in codes))

    def model(self) -> Model:
        """Return an encoder-decoder from texts to codes."""
        return build(
            self.config.model,
            source_vocab=len(self.tokenizer),
            target_vocab=len(SPECIALS) + self.config.autoencoder.codebook_size,
            label_smoothing=self.config.train.label_smoothing,
            grid=self.autoencoder.grid if self.config.position_embeddings == "grid" else None,
        )

    def describe(self) -> str:
        """Return the sizes of the vocabulary and of the grid of codes."""
        rows, columns = self.autoencoder.grid
        return f"{len(self.tokenizer):,} words; {rows} x {columns} codes of {self.config.autoencoder.codebook_size}"

    def measure(self, model: nn.Module) -> dict[str, float]:
        """Return the nll of the codes of the validation canvases, and the scores of drawings for their texts."""
        assert isinstance(model, Model)
        scores = self.score(model, self._splits[1], self.config.decode)
        return {name: scores[name] for name in ("nll", "prompt_accuracy", "item_recall") if name in scores}

    def score(self, model: Model, drawings: CanvasDataset, decode: DrawingConfig) -> dict[str, Any]:
        """Return all metrics of canvases with texts."""
        scores: dict[str, Any] = loss_scores(model, self.autoencoder, drawings, self.encode)
        if self.classifier is None or not isinstance(drawings, SceneDataset):
            return scores | {"samples": []}
        texts = self.tokenizer.encode_batch(drawings.text(i) for i in drawings.epoch(0))
        drawn, _ = self.draw(model, texts, decode, seeds=[derive_seed(decode.seed, i) for i in range(len(texts))])
        return scores | drawing_scores(drawings, self.classifier, self.autoencoder, drawn)

    def draw(
        self,
        model: Model,
        texts: Sequence[Sequence[int]],
        decode: DrawingConfig,
        *,
        seeds: Sequence[int],
        trace: Trace | None = None,
    ) -> tuple[NDArray[np.uint8], list[float]]:
        """Generate canvases (texts, channels, height, width) for texts given as ids.

        Returns also the mean log-probability of the codes of each.
        """
        codes, scores = self.sample_codes(model, texts, decode, seeds=seeds, trace=trace)
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
        """Sample codes (texts, positions) for texts as ids; return also their mean log-probabilities."""
        parts, scores = [], []
        for i in range(0, len(texts), _ROWS):
            if trace is not None:
                trace.order(range(i, min(i + _ROWS, len(texts))))
            source = _pad(texts[i : i + _ROWS], device_of(model))
            settings = {"config": decode, "length": self.autoencoder.numbers, "seeds": seeds[i : i + _ROWS]}
            sampled = sample_guided(
                model, source, empty_source=(EOS,), bos=BOS, banned=range(len(SPECIALS)), trace=trace, **settings
            )
            parts.append(sampled.tokens.cpu() - len(SPECIALS))
            scores += sampled.log_prob.tolist()
        return torch.cat(parts), scores

    def has_test(self) -> bool:
        """Return True if there is test data; the built-in digits always have it."""
        return self.config.data.train is None or self.config.data.test is not None

    def test_canvases(self, path: str | Path | None, config: ScenesConfig | None = None) -> CanvasDataset:
        """Return canvases of other images or captions, or of the run's test data."""
        config = config or self.config.data
        shape = self.autoencoder.shape
        canvases = load_test_canvases(path or config.test, config, seed=self.run.seed, labels=self.labels, shape=shape)
        return self._report_skipped(canvases)

    def build_run(self, model: nn.Module, folder: Path) -> "TrainedDraw":
        """Return the trained run of this model."""
        return TrainedDraw(self, model, folder)

    @cached_property
    def _splits(self) -> tuple[CanvasDataset, CanvasDataset, Labels | None]:
        train, val, labels = load_training_canvases(self.config.data, seed=self.run.seed)
        return self._report_skipped(train), self._report_skipped(val), labels

    def _report_skipped(self, drawings: CanvasDataset) -> CanvasDataset:
        """Report what was left out, and return the canvases."""
        for line in drawings.left_out():
            self.notify(line)
        return drawings


class TrainedDraw(TrainedRun):
    """Trained run of the recipe `draw`."""

    recipe: DrawRecipe

    def predict(self, inputs: Sequence[str], **options: Any) -> NDArray[np.uint8]:
        """Return a uint8 image for each text (texts, channels, height, width); options as in DrawingConfig.

        Captures show the attention to the words for each code.
        """
        if isinstance(inputs, str):
            raise TypeError(f"inputs must be a list of texts, got one text: {inputs[:40]!r}")
        decode = replace(self.config.decode, **options)
        texts = self._encode(inputs, 1)
        seeds = [derive_seed(decode.seed, number) for number in range(len(texts))]
        return self._draw(texts, inputs, decode, seeds)[0]

    def answers(
        self,
        inputs: Sequence[str],
        *,
        n_best: int = 1,
        first: int = 1,
        decode: DrawingConfig | None = None,
        out: Path | None = None,
        overwrite: bool = False,
    ) -> list[list[Drawing]]:
        """Generate `n_best` images for each text and save them; see `drawing_paths` for their names.

        Raises: UserError if a text is empty, or an image would be saved inside a run folder; FileExistsError if a file
                exists; before anything is generated.
        """
        decode = decode or self.config.decode
        texts = self._encode(inputs, first)
        paths = drawing_paths(inputs, out, first=first, count=n_best)
        for path in (path for row in paths for path in row):
            check_output(path)
            if path.exists() and not overwrite:
                raise FileExistsError(f"{path} exists; it is replaced only with --force")
            if path.parent != Path() and not path.parent.is_dir():
                raise UserError(f"{path}: the folder {path.parent} does not exist")
        results = []
        for number, (ids, row) in enumerate(zip(texts, paths, strict=True), start=first):
            seeds = [derive_seed(decode.seed, number - 1, *([rank] if rank else [])) for rank in range(n_best)]
            images, scores = self._draw([ids] * n_best, [inputs[number - first]] * n_best, decode, seeds)
            for image, path in zip(images, row, strict=True):
                _save(image, path)
            results.append([Drawing(str(path), score) for path, score in zip(row, scores, strict=True)])
        return results

    def evaluate(
        self,
        path: str | Path | None = None,
        *,
        on_bad: OnBad = "error",
        decode: DrawingConfig | None = None,
        notify: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """Return the scores of drawings and the nll on the run's test data, or on other images or captions."""
        if path is None:
            self._check_test()
        data = self.config.data
        drawings = self.recipe.test_canvases(path, data if path is None else replace(data, on_bad=on_bad))
        decode = decode or self.config.decode
        scores = self.recipe.score(self._model, drawings, decode)
        rows, columns = self.recipe.autoencoder.grid
        signature = f"{rows} x {columns} codes, guidance {decode.guidance:g}, temperature {decode.temperature:g}"
        return {"data": drawings.origin, "examples": len(drawings.epoch(0)), **scores, "signature": signature}

    def likelihood(self, given: str, maps: SampleMaps) -> Tensor:
        """Return log p of the sampled codes given the text, without guidance."""
        device = device_of(self._model)
        source = _pad([self.recipe.tokenizer.encode(given.strip())], device)
        target = pad([[BOS, *maps.sample.output_ids]]).to(device)
        logits = self._model(source, target)[0].float()
        logits = logits.index_fill(1, torch.arange(len(SPECIALS), device=device), -torch.inf)
        return logits.log_softmax(-1).gather(1, target.items[0, 1:, None]).sum()

    def test_input(self, index: int) -> str:
        """Return a text of the test data."""
        self._check_test()
        drawings = self.recipe.test_canvases(None)
        return drawings.text(get_input(drawings.epoch(0), index, drawings.origin))

    def _draw(
        self, texts: Sequence[Sequence[int]], titles: Sequence[str], decode: DrawingConfig, seeds: Sequence[int]
    ) -> tuple[NDArray[np.uint8], list[float]]:
        """Generate images, recording attention if a capture is active."""
        with self._segment(lambda: [self._look_sample(title.strip()) for title in titles]) as samples:
            images, scores = self.recipe.draw(self._model, texts, decode, seeds=seeds, trace=self.trace)
        for sample, image in zip(samples, images, strict=bool(samples)):
            sample.pictures["drawn"] = to_picture(image)
        return images, scores

    def _look_sample(self, text: str) -> Sample:
        """Return the sample of a look at this text."""
        words = (*self.recipe.tokenizer.tokens(text), SPECIALS[EOS])
        return Sample(
            title=text,
            axes={"source": Axis(labels=words, kind="token")},
            tokens=lambda ids: [str(number - len(SPECIALS)) for number in ids],
            begin=SPECIALS[BOS],
            output=Axis.grid(*self.recipe.autoencoder.grid, picture="drawn", kind="code"),
        )

    def _encode(self, texts: Sequence[str], first: int) -> list[list[int]]:
        """Return the ids of each text. Raises UserError for an empty or too long text; warns of unknown words."""
        rows = []
        limit = max_length_of(self.config.model.core)
        for number, text in enumerate(texts, start=first):
            ids = self.recipe.tokenizer.encode(text.strip())
            if not ids:
                raise UserError(f"input {number} is empty: there is nothing to draw")
            if limit is not None and len(ids) >= limit:
                raise UserError(f"input {number} is too long: {len(ids)} words; the limit is {limit - 1}")
            if UNK in ids:
                unknown = ", ".join(map(repr, self.recipe.tokenizer.unknown(text.strip())[:10]))
                warnings.warn(f"input {number}: never seen in training, so read as unknown: {unknown}", stacklevel=3)
            rows.append(ids)
        return rows


def drawing_paths(texts: Sequence[str], out: Path | None, *, first: int, count: int) -> list[list[Path]]:
    """Return the paths for drawings: `out`, or the text with dashes and .png; with numbers if there are several.

    Raises: UserError if the suffix is not a supported image format.
    """
    if out is not None and out.suffix.lower() not in (".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"):
        raise UserError(f"{out}: images can be saved as .png, .bmp, .gif, .webp or .tiff")
    rows = []
    for number, text in enumerate(texts, start=first):
        stem = re.sub(r"[^\w]+", "-", text.strip()).strip("-")[:60] or "drawing"
        path = Path(f"{stem}.png") if out is None else out
        parts = [str(number)] if len(texts) > 1 or first > 1 else []
        names = ["-".join([path.stem, *parts, *([str(rank)] if count > 1 else [])]) for rank in range(1, count + 1)]
        rows.append([path.with_name(name + path.suffix) for name in names])
    return rows


def create_recipe(run: Run, notify: Callable[[str], None]) -> DrawRecipe:
    """Create the recipe of a run."""
    return DrawRecipe(run, notify)


def _save(image: NDArray[np.uint8], path: Path) -> None:
    pixels = image[0] if image.shape[0] == 1 else image.transpose(1, 2, 0)
    unfinished = path.with_name(f".{path.name}.new{path.suffix}")
    Image.fromarray(pixels).save(unfinished)
    unfinished.replace(path)


def _pad(texts: Sequence[Sequence[int]], device: torch.device) -> Padded:
    source = pad([[*ids, EOS] for ids in texts])
    return Padded(source.items.to(device), source.lengths.to(device))
