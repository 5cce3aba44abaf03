"""Recipe `caption`: image captioning, scored by BLEU with several references.

    pixels -> stem or patches -> encoder over image positions -> decoder, token by token -> sentence

With `--model.core recurrent` the decoder reads the image once for each word, which `regard look`
draws.

Source: lectures, E.1 (vector to sequence); xu2015 (attention to the image, word by word);
        vinyals2015.
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.data.batches import pad
from regard.data.embedded.captioned_shapes import CaptionedShapes
from regard.data.images.box_batches import resize_and_pad, stack_images
from regard.data.images.captions import (
    CaptionBatches,
    CaptionedImages,
    DescribedImages,
    read_captions,
    read_training_captions,
)
from regard.data.images.files import ENDINGS
from regard.data.tokenizer import BOS, EOS, PAD, SPECIALS, Tokenizer
from regard.decode.hypothesis import Hypothesis
from regard.look.maps import SampleMaps
from regard.look.sample import Image, Sample
from regard.models.build import build_captioner
from regard.models.cores.config import max_length_of
from regard.models.cores.transformer import Transformer
from regard.models.model import Model
from regard.models.readers.images import ImageReader
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.answers import explain_tokens, outputs_answer, teacher_tokens
from regard.recipes.base.pictures import patch_axis, to_image
from regard.recipes.base.recipe import (
    Answer,
    Dataset,
    Example,
    Recipe,
    View,
    describe_skipped,
    plan_by_count,
)
from regard.recipes.base.scoring import device_of, mean_nll
from regard.recipes.caption.config import CaptionRunConfig
from regard.recipes.metrics.text import Bleu, ExactMatch
from regard.system.progress import track
from regard.trace import Trace

_TOKENIZER = "tokenizer.json"
_ROWS = 64
_SAMPLES = 5


class CaptionRecipe(Recipe[CaptionRunConfig]):
    """Recipe of image captioning."""

    metric = Bleu.name
    monitored = (Bleu.name, "nll", "perplexity")
    decodes = True
    files_of_folder = ENDINGS
    tokenizer: Tokenizer

    def load(self, split: str) -> Dataset[DescribedImages]:
        data = self.config.data
        if split == "test" and data.test is not None:
            images = read_captions(data.test, data.test_images or data.images, data)
        elif data.train is None:
            images = CaptionedShapes(split, self.run.seed, data)
        else:
            images = self._splits[split == "val"]
        return _to_dataset(images)

    @cached_property
    def _splits(self) -> tuple[CaptionedImages, CaptionedImages]:
        return read_training_captions(self.config.data, seed=self.run.seed)

    def encode(self, dataset: Dataset[DescribedImages]) -> Dataset[DescribedImages]:
        if not isinstance(dataset.data, CaptionedImages):
            return dataset
        images = dataset.data.limit_length(
            lambda text: len(self.tokenizer.encode(text)),
            most=self.config.caption_limit,
            on_bad=self.config.data.on_bad,
        )
        return _to_dataset(images)

    def fit(self, train: Dataset[DescribedImages]) -> dict[str, Any]:
        images, texts = train.data, []
        for i in images.epoch(0):
            texts += images.captions(i)
        return {_TOKENIZER: self.fit_tokenizer(texts, images.origin)}

    def open(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.load(folder / _TOKENIZER)

    def batches(self) -> CaptionBatches:
        return self._batches(self.read_encoded(self.train).data)

    def model(self) -> Model:
        config, data = self.config.model, self.config.data
        reader = ImageReader(
            (3, data.height, data.width),
            config.core.width,
            patch=self.config.patch,
            downsampling_layers=self.config.stem_layers,
            dropout=config.dropout,
        )
        return build_captioner(
            config,
            reader,
            vocab=len(self.tokenizer),
            label_smoothing=self.config.train.label_smoothing,
        )

    def describe(self) -> str:
        data, words = self.config.data, f"{len(self.tokenizer):,} {self.tokenizer.noun}"
        return f"images of {data.width} x {data.height}; {words}"

    def measure(self, model: nn.Module) -> dict[str, float]:
        greedy = self.change({"decode": {"beam": 1, "n_best": 1}})
        limit = self.config.val_sample
        scores = greedy.metrics(self.inference(model), self.encoded_val, limit=limit)
        return {name: scores[name] for name in self.monitored}

    def metrics(
        self, inference: ActiveModel, dataset: Dataset[DescribedImages], *, limit: int | None = None
    ) -> dict[str, Any]:
        """Return BLEU and exact matches of the first `limit` images, and the loss of all."""
        images, scorer, decode = dataset.data, Bleu(self.config.bleu), self.config.decode
        decoding, indices = self.change({"n_best": 1}), images.epoch(0)[:limit]
        outputs: list[str] = []
        for rows in track(plan_by_count(indices, _ROWS), "images", len(indices)):
            pixels = [images.pixels(indices[i]) for i in rows]
            for best, *_ in decoding.forward(inference, pixels):
                outputs.append(self.tokenizer.decode(best.tokens))
        references = [images.captions(i) for i in indices]
        nll, samples = self._loss_per_token(inference.model, images), []
        for i, output in zip(indices[:_SAMPLES], outputs, strict=False):
            reference = images.captions(i)[0]
            samples.append({"source": images.name(i), "output": output, "reference": reference})
        return {
            self.metric: scorer.score(outputs, references),
            "exact_match": ExactMatch().score(outputs, references),
            "signature": scorer.signature(),
            "nll": nll,
            "perplexity": math.exp(min(nll, 100.0)),
            "beam": decode.beam,
            "length_penalty": decode.length_penalty,
            "samples": samples,
        }

    def preprocess(self, given: Any, number: int) -> list[NDArray[np.uint8]]:
        image, data = to_image(given, f"input {number}").convert("RGB"), self.config.data
        return [resize_and_pad(image, data.width, data.height)[0]]

    def forward(
        self,
        inference: ActiveModel,
        rows: Sequence[NDArray[np.uint8]],
        trace: Trace | None = None,
    ) -> list[list[Hypothesis]]:
        decode, limit = self.config.decode, max_length_of(self.config.model.core)
        if limit is not None:
            decode = dataclasses.replace(decode, max_length=min(decode.max_length, limit))
        engine = inference.engine_for(traced=trace is not None)
        return engine.search_images(
            stack_images(rows),
            length=self.config.positions,
            config=decode,
            bos=BOS,
            eos=EOS,
            pad=PAD,
            trace=trace,
        )

    def postprocess(self, example: Example) -> Answer:
        return outputs_answer(example.outputs[0], self.tokenizer.decode)

    def sample(self, inference: ActiveModel, example: Example, i: int) -> Sample:
        return Sample(  # the tokens of the caption are recorded by the search
            title=example.name,
            axes={"source": patch_axis(inference.model.reader)},
            pictures={"image": Image(pixels=example.rows[i])},
            tokens=self.tokenizer.tokens,
            text=self.tokenizer.decode,
            begin=SPECIALS[BOS],
        )

    def log_prob(self, model: Any, example: Example, i: int) -> Tensor:
        source, target = _teacher_inputs(model, example, i)
        log_probs = model(source, target)[0].float().log_softmax(-1)
        return log_probs.gather(1, target.items[0, 1:, None]).sum()

    def explain(
        self, inference: ActiveModel, example: Example, i: int, sample: Sample
    ) -> SampleMaps | None:
        model = inference.model
        if not isinstance(model.core, Transformer):
            return None
        source, target = _teacher_inputs(model, example, i)
        return explain_tokens(model, source, target, sample)

    def _batches(self, images: DescribedImages) -> CaptionBatches:
        return CaptionBatches(
            images, self.tokenizer.encode, rows=self.config.batch, seed=self.run.seed
        )

    def _loss_per_token(self, model: Model, images: DescribedImages) -> float:
        """Return the mean of -log p over the tokens of all captions, EOS included, in nats."""
        batches = self._batches(images)
        pairs = batches.pairs()
        parts = [pairs[rows.start : rows.stop] for rows in plan_by_count(pairs, _ROWS)]
        return mean_nll(model, map(batches.collate_pairs, parts))


def _teacher_inputs(model: Any, example: Example, i: int) -> tuple[Tensor, Padded]:
    """Return the image and the best caption of a row as inputs of the model."""
    target = pad([teacher_tokens(example.outputs[i][0])])
    return stack_images([example.rows[i]]).to(device_of(model)), target.to(device_of(model))


def _to_dataset(images: DescribedImages) -> Dataset[DescribedImages]:
    indices, skipped = images.epoch(0), images.skipped
    return Dataset(
        images,
        images.origin,
        inputs=View(len(indices), lambda i: images.pixels(indices[i])),
        references=View(len(indices), lambda i: images.captions(indices[i])[0]),
        names=View(len(indices), lambda i: images.name(indices[i])),
        notes=(*describe_skipped(images.origin, "lines or images", skipped), *images.notices),
    )
