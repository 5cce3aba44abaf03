"""The recipe `draw`: texts to images, as a sequence of codes; scored by what a classifier sees in the drawings.

    image -> autoencoder -> grid of codes                    learned first, from the canvases alone
    text  -> core -> code after code, row by row             the model of every text-to-text recipe
    codes -> the autoencoder's decoder -> image

Source: ramesh2021, section 2 (codes of images after a text); vandenoord2017 (codes); ho2022 (guidance).
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
from regard.data.batches import Encoded, TokenBatches, pad
from regard.data.config import OnBad, ScenesConfig
from regard.data.labeled import Labels
from regard.data.scenes import Drawings, Scenes, drawings_to_test, is_captions, training_drawings
from regard.data.tokenize import BOS, EOS, SPECIALS, UNK, Tokenizer
from regard.decode.config import DrawingConfig
from regard.decode.guided import guided
from regard.digests import recorded
from regard.errors import UserError
from regard.look.map import Seen
from regard.look.scene import Axis
from regard.look.scene import Scene as Shown
from regard.models.build import build
from regard.models.config import TransformerConfig
from regard.models.model import Model
from regard.models.quantized import QuantizedAutoencoder
from regard.recipes.draw_config import Draw
from regard.recipes.draw_scores import drawing_scores, loss_scores
from regard.recipes.draw_stages import Judge, codes_of, learn_autoencoder, learn_judge, open_autoencoder, rebuilt
from regard.recipes.folder import Run
from regard.recipes.pictures import shown
from regard.recipes.scoring import device_of
from regard.recipes.task import Task, Trained, numbered
from regard.run_files import check_output
from regard.telling import Rows, showing, tell
from regard.train.step import seed_of

_TOKENIZER, _LABELS = "tokenizer.json", "labels.json"
_ROWS = 256


class Drawing(NamedTuple):
    """A file that was drawn, and the mean log-probability of its codes."""

    text: str
    score: float


class DrawTask(Task):
    """Canvases with texts, the tokenizers of both, a judge, and the model that draws."""

    tokenizer: Tokenizer
    labels: Labels | None
    autoencoder: QuantizedAutoencoder
    judge: Judge | None

    def __init__(self, run: Run, tell: Callable[[str], None]):
        super().__init__(run, tell)
        self.metric = "nll" if is_captions(self.config.data.train) else "drawn"

    @property
    def maximize(self) -> bool:
        """What is seen in drawings should be much, the nll little."""
        return self.metric == "drawn"

    @property
    def config(self) -> Draw:
        """All settings of the run."""
        assert isinstance(self.run.config, Draw)
        return self.run.config

    def check(self) -> None:
        """Read all images, and see whether the core has places enough for their codes."""
        train, val, labels = self._learned
        if val.shape != train.shape:
            raise UserError(f"{val.origin}: canvases are {val.shape}, but those of {train.origin} {train.shape}")
        if self.config.data.test is not None:
            with recorded():  # decides no weights: no part of what the run was trained on
                drawings_to_test(self.config.data.test, self.config.data, seed=0, labels=labels, shape=train.shape)
        core = self.config.model.core
        needed = QuantizedAutoencoder(self.config.autoencoder, train.shape).numbers + 1
        if isinstance(core, TransformerConfig) and core.positions == "learned" and core.max_positions < needed:
            raise UserError(
                f"model.core.max_positions must be at least {needed}, one more than a canvas has codes, but is "
                f"{core.max_positions}; or raise autoencoder.halvings"
            )

    def learn(self, folder: Path) -> None:
        """The words of the texts, and the classes."""
        train, _, labels = self._learned
        texts = (train.text(i) for i in train.epoch(0))
        Tokenizer.train(texts, self.config.tokenizer, origin=train.origin).save(folder / _TOKENIZER)
        if labels is not None:
            labels.save(folder / _LABELS)

    def pretrain(self, folder: Path) -> None:
        """The tokenizer of images, and the judge."""
        train, val, _ = self._learned
        learn_autoencoder(folder, self.run, (train, val), self.tell)
        if isinstance(train, Scenes) and isinstance(val, Scenes):
            learn_judge(folder, self.run, (train, val), self.tell)

    def open(self, folder: Path) -> None:
        """The same."""
        self.tokenizer = Tokenizer.load(folder / _TOKENIZER)
        self.labels = Labels.load(folder / _LABELS) if (folder / _LABELS).exists() else None
        self.autoencoder = open_autoencoder(folder, self.config)
        self.judge = Judge.open(folder, self.config) if self.labels is not None else None

    def batches(self) -> TokenBatches:
        """Texts and codes of canvases, new ones in every epoch where they are made."""
        limit = {"batch_tokens": self.config.train.batch_tokens, "seed": self.run.seed}
        origin = self._learned[0].origin
        return TokenBatches(
            lambda epoch: self.encoded(self._learned[0], epoch=epoch, unsaid=self.config.unsaid), **limit, origin=origin
        )

    def encoded(self, drawings: Drawings, *, epoch: int = 0, unsaid: float = 0.0) -> Encoded:
        """The ids of the texts of an epoch, a share of them left out, and of the codes of their canvases."""
        indices = list(drawings.epoch(epoch))
        stream = np.random.PCG64(np.random.SeedSequence((self.run.seed, 7, epoch)))
        left_out = stream.random_raw(len(indices)) / 2.0**64 < unsaid
        texts = self.tokenizer.encode_batch(drawings.text(i) for i in indices)
        sources = [[] if is_out else ids for ids, is_out in zip(texts, left_out, strict=True)]
        codes = codes_of(self.autoencoder, drawings, indices)
        return Encoded.of(sources, ([len(SPECIALS) + code for code in row] for row in codes))

    def model(self) -> Model:
        """Encoder of texts and decoder of codes."""
        return build(
            self.config.model,
            source_vocab=len(self.tokenizer),
            target_vocab=len(SPECIALS) + self.config.autoencoder.codes,
            label_smoothing=self.config.train.label_smoothing,
            grid=self.autoencoder.grid if self.config.places == "grid" else None,
        )

    def describe(self) -> str:
        """What is read and written."""
        rows, columns = self.autoencoder.grid
        return f"{len(self.tokenizer):,} words; {rows} x {columns} codes of {self.config.autoencoder.codes}"

    def measure(self, model: nn.Module) -> dict[str, float]:
        """nll of the codes of the validation canvases; what is seen in drawings of their texts."""
        assert isinstance(model, Model)
        found = self.scores(model, self._learned[1], self.config.decode)
        return {name: found[name] for name in ("nll", "drawn", "items") if name in found}

    def scores(self, model: Model, drawings: Drawings, decode: DrawingConfig) -> dict[str, Any]:
        """All that a test tells of canvases with texts."""
        found: dict[str, Any] = loss_scores(model, self.autoencoder, drawings, self.encoded)
        if self.judge is None or not isinstance(drawings, Scenes):
            return found | {"samples": []}
        texts = self.tokenizer.encode_batch(drawings.text(i) for i in drawings.epoch(0))
        drawn, _ = self.drawn(model, texts, decode, seeds=[seed_of(decode.draws, i) for i in range(len(texts))])
        return found | drawing_scores(drawings, self.judge, self.autoencoder, drawn)

    def drawn(
        self, model: Model, texts: Sequence[Sequence[int]], decode: DrawingConfig, *, seeds: Sequence[int]
    ) -> tuple[NDArray[np.uint8], list[float]]:
        """Canvases (texts, channels, height, width) for texts as ids, and the mean log-probability of their codes."""
        codes, scores = self.codes(model, texts, decode, seeds=seeds)
        return rebuilt(self.autoencoder, codes), scores

    def codes(
        self, model: Model, texts: Sequence[Sequence[int]], decode: DrawingConfig, *, seeds: Sequence[int]
    ) -> tuple[Tensor, list[float]]:
        """The same as codes (texts, places)."""
        parts, scores = [], []
        for i in range(0, len(texts), _ROWS):
            tell(lambda i=i: Rows(range(i, min(i + _ROWS, len(texts)))))
            source = _padded(texts[i : i + _ROWS], device_of(model))
            settings = {"config": decode, "length": self.autoencoder.numbers, "seeds": seeds[i : i + _ROWS]}
            found = guided(model, source, nothing=(EOS,), bos=BOS, banned=range(len(SPECIALS)), **settings)
            parts.append(found.tokens.cpu() - len(SPECIALS))
            scores += found.log_prob.tolist()
        return torch.cat(parts), scores

    def has_test(self) -> bool:
        """Always for the digits."""
        return self.config.data.train is None or self.config.data.test is not None

    def test(self, path: str | Path | None, config: ScenesConfig | None = None) -> Drawings:
        """Canvases of other images or captions, or of the run's own test data."""
        config = config or self.config.data
        shape = self.autoencoder.shape
        found = drawings_to_test(path or config.test, config, seed=self.run.seed, labels=self.labels, shape=shape)
        return self._telling(found)

    def trained(self, model: nn.Module, folder: Path) -> "TrainedDraw":
        """The model in use."""
        return TrainedDraw(self, model, folder)

    @cached_property
    def _learned(self) -> tuple[Drawings, Drawings, Labels | None]:
        train, val, labels = training_drawings(self.config.data, seed=self.run.seed)
        return self._telling(train), self._telling(val), labels

    def _telling(self, drawings: Drawings) -> Drawings:
        """The drawings; what was left out is told."""
        for line in drawings.left_out():
            self.tell(line)
        return drawings


class TrainedDraw(Trained):
    """A drawing model in use."""

    task: DrawTask

    def predict(self, inputs: Sequence[str], **options: Any) -> NDArray[np.uint8]:
        """An image for each text (texts, channels, height, width), bytes; options as in DrawingConfig.

        Those who look on are shown what was read of the words for each code.
        """
        if isinstance(inputs, str):
            raise TypeError(f"inputs must be a list of texts, but is one text: {inputs[:40]!r}")
        decode = replace(self.config.decode, **options)
        texts = self._encoded(inputs, 1)
        seeds = [seed_of(decode.draws, number) for number in range(len(texts))]
        return self._drawn(texts, inputs, decode, seeds)[0]

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
        """Draw each text `n_best` times into files of these names; see `names_of`.

        Raises: UserError if a text is empty, or a drawing would lie among the files of a run; FileExistsError if a file
                exists. Nothing is drawn then.
        """
        decode = decode or self.config.decode
        texts = self._encoded(inputs, first)
        paths = names_of(inputs, out, first=first, each=n_best)
        for path in (path for row in paths for path in row):
            check_output(path)
            if path.exists() and not overwrite:
                raise FileExistsError(f"{path} exists; it is replaced only with --force")
            if path.parent != Path() and not path.parent.is_dir():
                raise UserError(f"{path}: there is no folder {path.parent}")
        results = []
        for number, (ids, row) in enumerate(zip(texts, paths, strict=True), start=first):
            seeds = [seed_of(decode.draws, number - 1, *([rank] if rank else [])) for rank in range(n_best)]
            images, scores = self._drawn([ids] * n_best, [inputs[number - first]] * n_best, decode, seeds)
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
        tell: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """What the judge sees in drawings, and the nll, on the run's test data or on other images or captions."""
        if path is None and not self.task.has_test():
            raise UserError(f"the run {self.folder} has no test data: name some (--data.test)")
        data = self.config.data
        drawings = self.task.test(path, data if path is None else replace(data, on_bad=on_bad))
        decode = decode or self.config.decode
        scores = self.task.scores(self._model, drawings, decode)
        rows, columns = self.task.autoencoder.grid
        signature = f"{rows} x {columns} codes, guidance {decode.guidance:g}, temperature {decode.temperature:g}"
        return {"data": drawings.origin, "examples": len(drawings.epoch(0)), **scores, "signature": signature}

    def likelihood(self, given: str, seen: Seen) -> Tensor:
        """log p of the codes that were drawn, given the text; guidance changes what is drawn, not this."""
        device = device_of(self._model)
        source = _padded([self.task.tokenizer.encode(given.strip())], device)
        target = pad([[BOS, *seen.scene.ids]]).to(device)
        logits = self._model(source, target)[0].float()
        logits = logits.index_fill(1, torch.arange(len(SPECIALS), device=device), -torch.inf)
        return logits.log_softmax(-1).gather(1, target.items[0, 1:, None]).sum()

    def test_input(self, index: int) -> str:
        """A text of the test data."""
        self._check_test()
        drawings = self.task.test(None)
        return drawings.text(numbered(drawings.epoch(0), index, drawings.origin))

    def _drawn(
        self, texts: Sequence[Sequence[int]], titles: Sequence[str], decode: DrawingConfig, seeds: Sequence[int]
    ) -> tuple[NDArray[np.uint8], list[float]]:
        """As the task draws, telling those who look on."""
        with showing(lambda: [self._scene(title.strip()) for title in titles]) as scenes:
            images, scores = self.task.drawn(self._model, texts, decode, seeds=seeds)
        for scene, image in zip(scenes, images, strict=bool(scenes)):
            scene.pictures["drawn"] = shown(image)
        return images, scores

    def _scene(self, text: str) -> Shown:
        """What is read of a text, for those who look on."""
        words = (*self.task.tokenizer.tokens(text), SPECIALS[EOS])
        return Shown(
            title=text,
            axes={"source": Axis(labels=words, what="token")},
            tokens=lambda ids: [str(number - len(SPECIALS)) for number in ids],
            begin=SPECIALS[BOS],
            said=Axis.grid(*self.task.autoencoder.grid, on="drawn", what="code"),
        )

    def _encoded(self, texts: Sequence[str], first: int) -> list[list[int]]:
        """The ids of each text. Refuses an empty one, warns of words that were never seen."""
        found = []
        core = self.config.model.core
        limit = core.max_positions if isinstance(core, TransformerConfig) and core.positions == "learned" else None
        for number, text in enumerate(texts, start=first):
            ids = self.task.tokenizer.encode(text.strip())
            if not ids:
                raise UserError(f"input {number} is empty: there is nothing to draw")
            if limit is not None and len(ids) >= limit:
                raise UserError(f"input {number} is too long: {len(ids)} words; the limit is {limit - 1}")
            if UNK in ids:
                unseen = ", ".join(map(repr, self.task.tokenizer.unknown(text.strip())[:10]))
                warnings.warn(f"input {number}: never seen in training, so read as unknown: {unseen}", stacklevel=3)
            found.append(ids)
        return found


def names_of(texts: Sequence[str], out: Path | None, *, first: int, each: int) -> list[list[Path]]:
    """Files for drawings: `out`, or the text with dashes and .png; numbered where there are several.

    Raises: UserError for an ending that is no format of images.
    """
    if out is not None and out.suffix.lower() not in (".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"):
        raise UserError(f"{out}: images are written as .png, .bmp, .gif, .webp or .tiff")
    rows = []
    for number, text in enumerate(texts, start=first):
        stem = re.sub(r"[^\w]+", "-", text.strip()).strip("-")[:60] or "drawing"
        path = Path(f"{stem}.png") if out is None else out
        parts = [str(number)] if len(texts) > 1 or first > 1 else []
        names = ["-".join([path.stem, *parts, *([str(rank)] if each > 1 else [])]) for rank in range(1, each + 1)]
        rows.append([path.with_name(name + path.suffix) for name in names])
    return rows


def _save(image: NDArray[np.uint8], path: Path) -> None:
    pixels = image[0] if image.shape[0] == 1 else image.transpose(1, 2, 0)
    unfinished = path.with_name(f".{path.name}.new{path.suffix}")
    Image.fromarray(pixels).save(unfinished)
    unfinished.replace(path)


def _padded(texts: Sequence[Sequence[int]], device: torch.device) -> Padded:
    source = pad([[*ids, EOS] for ids in texts])
    return Padded(source.items.to(device), source.lengths.to(device))


def task(run: Run, tell: Callable[[str], None]) -> DrawTask:
    """This recipe at work."""
    return DrawTask(run, tell)
