"""Recipe `caption`: image captioning, scored by BLEU with several references.

    pixels -> stem or patches -> encoder over image positions -> decoder, token by token -> sentence

BLEU is 0 without common 4-grams. If most validation captions have fewer than 4 words, the
checkpoint is selected by chrF.

Source: lectures, E.1 (vector to sequence); xu2015 (attention to the image, word by word);
        vinyals2015.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.data.embedded.captioned_shapes import CaptionedShapes
from regard.data.images.box_batches import resize_and_pad, stack_images
from regard.data.images.captions import (
    CaptionBatches,
    CaptionedImages,
    DescribedImages,
    read_captions,
)
from regard.data.images.files import ENDINGS
from regard.data.tokenizer import load_tokenizer
from regard.decode.hypothesis import Hypothesis
from regard.look.sample import Image, Sample
from regard.models.build import build_captioner
from regard.models.model import Model
from regard.models.readers.images import ImageReader
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.decoder import DecoderRecipe
from regard.recipes.base.pictures import patch_axis, to_image
from regard.recipes.base.recipe import Dataset, Example, FileRecipe, Results, View, plan_by_count
from regard.recipes.base.scoring import mean_nll
from regard.recipes.caption.config import CaptionRunConfig
from regard.recipes.metrics.text import bleu, chrf, exact_match
from regard.system.progress import track
from regard.trace import Trace

_TOKENIZER = "tokenizer.json"
_ROWS = 64
_MAX_NGRAM = 4


class CaptionRecipe(DecoderRecipe[CaptionRunConfig], FileRecipe[CaptionRunConfig]):
    """Recipe of image captioning."""

    input_name = "image"
    columns: Mapping[str, type] = {"caption": str, "score": float}
    files_of_folder = ENDINGS

    @cached_property
    def metric(self) -> str:
        images = self.encoded_val.data
        counts = [len(text.split()) for i in images.epoch(0) for text in images.captions(i)]
        num_short = sum(count < _MAX_NGRAM for count in counts)
        if 2 * num_short <= len(counts):
            return "bleu"
        self.notify(
            f"{num_short:,} of {len(counts):,} validation captions have fewer than {_MAX_NGRAM} "
            f"words, and thus no BLEU: the checkpoint is selected by chrF"
        )
        return "chrf"

    def read_split(self, split: str) -> CaptionedImages:
        data = self.config.data
        images = getattr(data, f"{split}_images") or data.images
        return read_captions(getattr(data, split), images, data)

    def generate(self, split: str) -> CaptionedShapes:
        return CaptionedShapes(split, self.run.seed, self.config.data)

    def hold_out(self, train: CaptionedImages) -> tuple[CaptionedImages, CaptionedImages]:
        return self.split_off(train, "images")

    def to_dataset(self, data: DescribedImages) -> Dataset[DescribedImages]:
        indices = data.epoch(0)

        def read_reference(i: int) -> str:
            return self.tokenizer.normalize(data.captions(indices[i])[0])

        return Dataset(
            data,
            data.origin,
            inputs=View(len(indices), lambda i: data.pixels(indices[i])),
            references=View(len(indices), read_reference),
            names=View(len(indices), lambda i: data.name(indices[i])),
            notes=data.notices,
        )

    def encode(self, dataset: Dataset[DescribedImages]) -> Dataset[DescribedImages]:
        if not isinstance(dataset.data, CaptionedImages):
            return dataset
        images = dataset.data.limit_length(
            lambda text: len(self.tokenizer.encode(text)),
            most=self.config.caption_limit,
            on_bad=self.config.data.on_bad,
        )
        return self.to_dataset(images)

    def fit(self, train: Dataset[DescribedImages]) -> dict[str, Any]:
        images, texts = train.data, []
        for i in images.epoch(0):
            texts += images.captions(i)
        return {_TOKENIZER: self.fit_tokenizer(texts, images.origin)}

    def open(self, folder: Path) -> None:
        self.tokenizer = load_tokenizer(folder / _TOKENIZER)

    def batches(self) -> CaptionBatches:
        return self._batches(self.read_encoded(self.train).data)

    def model(self) -> Model:
        config, data = self.config.model, self.config.data
        reader = ImageReader(
            (3, data.height, data.width),
            config.core.width,
            patch=self.config.patch,
            downsampling_layers=None if self.config.patch else self.config.stem_layers,
            dropout=config.dropout,
        )
        return build_captioner(
            config,
            reader,
            vocab=len(self.tokenizer),
            label_smoothing=self.config.train.label_smoothing,
            parts=self.parts(),
        )

    def describe(self) -> str:
        data, words = self.config.data, f"{len(self.tokenizer):,} {self.tokenizer.noun}"
        return f"images of {data.width} x {data.height}; {words}"

    def results(
        self, inference: ActiveModel, dataset: Dataset[DescribedImages], *, limit: int | None = None
    ) -> Results:
        images, batches = dataset.data, self._batches(dataset.data)
        decoding, indices = self.change({"n_best": 1}), images.epoch(0)[:limit]
        outputs: list[str] = []
        for rows in track(plan_by_count(indices, _ROWS), "images", len(indices)):
            pixels = [images.pixels(indices[i]) for i in rows]
            for best, *_ in decoding.forward(inference, pixels):
                outputs.append(self.tokenizer.decode(best.tokens))
        references = [images.captions(i) for i in indices]
        pairs = batches.pairs()
        parts = [pairs[rows.start : rows.stop] for rows in plan_by_count(pairs, _ROWS)]
        nll = mean_nll(inference.model, map(batches.collate_pairs, parts))
        return self.score_outputs(outputs, references, nll, is_test=limit is None)

    def text_scores(
        self, outputs: Sequence[str], references: Sequence[Sequence[str]], *, is_test: bool
    ) -> dict[str, Any]:
        scores = bleu(outputs, references, self.config.bleu)
        if is_test or self.metric == "chrf":
            scores["chrf"] = chrf(outputs, references)
        return scores | {"exact_match": exact_match(outputs, references)}

    def preprocess(self, given: Any, number: int) -> list[NDArray[np.uint8]]:
        image, data = to_image(given, f"input {number}").convert("RGB"), self.config.data
        return [resize_and_pad(image, data.width, data.height)[0]]

    def forward(
        self, inference: ActiveModel, rows: Sequence[NDArray[np.uint8]], trace: Trace | None = None
    ) -> list[list[Hypothesis]]:
        engine = inference.engine_for(traced=trace is not None)
        rules, length = self.token_rules(rows), self.config.positions
        options = {"config": self.search_config(), "length": length, "rules": rules, "trace": trace}
        return engine.search_images(stack_images(rows), **options, **self.search_ids())

    def collate(self, rows: Sequence[NDArray[np.uint8]]) -> Tensor:
        return stack_images(rows)

    def sample(self, inference: ActiveModel, example: Example, i: int) -> Sample:
        return self.describe_sample(
            example.name,
            axes={"source": patch_axis(inference.model.reader)},
            pictures={"image": Image(pixels=example.rows[i])},
        )

    def _batches(self, images: DescribedImages) -> CaptionBatches:
        encode, ends = self.tokenizer.encode, self.tokenizer.target_ends
        return CaptionBatches(images, encode, ends, rows=self.config.batch, seed=self.run.seed)
