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
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.data.batches import pad
from regard.data.embedded.captioned_shapes import CaptionedShapes
from regard.data.images.box_batches import resize_and_pad
from regard.data.images.captions import (
    CaptionBatches,
    CaptionedImages,
    DescribedImages,
    read_captions,
    read_training_captions,
    stack_images,
)
from regard.data.images.files import ENDINGS
from regard.data.tokenizer import BOS, EOS, PAD, SPECIALS, Tokenizer
from regard.decode.config import DecodeConfig
from regard.decode.hypothesis import Hypothesis
from regard.look.maps import SampleMaps
from regard.look.sample import Image, Sample
from regard.models.build import build_captioner
from regard.models.cores.config import max_length_of
from regard.models.cores.transformer import Transformer
from regard.models.model import Model
from regard.models.readers.images import ImageReader
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.answers import Output, OutputsAnswer
from regard.recipes.base.config import PairsPrediction, defaults_of_run, replace_shared
from regard.recipes.base.likelihood import explain_tokens
from regard.recipes.base.pictures import patch_axis, to_color_image
from regard.recipes.base.recipe import (
    Examples,
    Prepared,
    Ranked,
    Recipe,
    describe_skipped,
    plan_by_count,
)
from regard.recipes.base.scoring import device_of
from regard.recipes.caption.config import CaptionEvaluation, CaptionRunConfig
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

    def read(self, split: str, other: Any = None) -> Examples[DescribedImages]:
        data = self.config.data
        if other is not None:
            data = replace_shared(data, other)
            images = read_captions(other.test[0], other.images, data)
        elif data.train is None and (split != "test" or data.test is None):
            images = CaptionedShapes(split, self.run.seed, data)
        elif split == "test":
            assert data.test is not None
            images = read_captions(data.test, data.test_images, data)
        else:
            images = self._splits[split == "val"]
        return _to_examples(images, data.on_bad)

    def usable(self, examples: Examples[DescribedImages]) -> Examples[DescribedImages]:
        images = examples.data
        if not isinstance(images, CaptionedImages):
            return examples
        limit = {"most": self.config.caption_limit, "on_bad": cast("Any", examples.on_bad)}
        images = images.limit_length(lambda text: len(self.tokenizer.encode(text)), **limit)
        return _to_examples(images, examples.on_bad)

    def learn(self, folder: Path) -> None:
        images = self.train.data
        texts = [text for i in images.epoch(0) for text in images.captions(i)]
        tokenizer = self.take_over(
            lambda init: Tokenizer.load(init / _TOKENIZER),
            lambda: Tokenizer.train(texts, self.config.tokenizer, origin=images.origin),
        )
        tokenizer.save(folder / _TOKENIZER)

    def open(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.load(folder / _TOKENIZER)

    def batches(self) -> CaptionBatches:
        return self._batches(self.load_usable(self.train).data)

    def model(self) -> Model:
        config, data = self.config.model, self.config.data
        reader = ImageReader(
            (3, data.height, data.width),
            config.core.width,
            patch=self.config.patch,
            downsampling_layers=self.config.stem_layers,
            dropout=config.dropout,
        )
        smoothing = self.config.train.label_smoothing
        return build_captioner(config, reader, vocab=len(self.tokenizer), label_smoothing=smoothing)

    def describe(self) -> str:
        data = self.config.data
        return (
            f"images of {data.width} x {data.height}; {len(self.tokenizer):,} {self.tokenizer.noun}"
        )

    def measure(self, model: nn.Module) -> dict[str, float]:
        options = defaults_of_run(CaptionEvaluation, self.config)
        greedy = dataclasses.replace(
            options, decode=dataclasses.replace(options.decode, beam=1, n_best=1)
        )
        scores = self.score(
            self.inference(model), self.usable_val, greedy, limit=self.config.val_sample
        )
        return {name: scores[name] for name in self.monitored}

    def score(
        self,
        inference: ActiveModel,
        examples: Examples[DescribedImages],
        options: CaptionEvaluation,
        *,
        limit: int | None = None,
    ) -> dict[str, Any]:
        images, scorer = examples.data, Bleu(self.config.bleu)
        decode = dataclasses.replace(options.decode, n_best=1)
        indices = [*images.epoch(0)][:limit]
        outputs: list[str] = []
        for rows in track(plan_by_count(indices, _ROWS), "images", len(indices)):
            pixels = [images.pixels(i) for i in indices[rows.start : rows.stop]]
            found = self._search(inference, pixels, decode)
            outputs += [self.tokenizer.decode(best.tokens) for best, *_ in found]
        references = [images.captions(i) for i in indices]
        nll = self._loss_per_token(inference.model, images)
        names = ("source", "output", "reference")
        shown = zip(
            [images.name(i) for i in indices], outputs, [own[0] for own in references], strict=True
        )
        return {
            self.metric: scorer.score(outputs, references),
            "exact_match": ExactMatch().score(outputs, references),
            "signature": scorer.signature(),
            "nll": nll,
            "perplexity": math.exp(min(nll, 100.0)),
            "beam": decode.beam,
            "length_penalty": decode.length_penalty,
            "samples": [dict(zip(names, row, strict=True)) for row in [*shown][:_SAMPLES]],
        }

    def prepare(self, inputs: Sequence[Any], first: int) -> Prepared:
        prepared, data = Prepared(len(inputs)), self.config.data
        for owner, given in enumerate(inputs):
            image = to_color_image(given, f"input {first + owner}")
            prepared.add(owner, resize_and_pad(image, data.width, data.height)[0])
        return prepared

    def answer(
        self,
        inference: ActiveModel,
        rows: Sequence[NDArray[np.uint8]],
        options: PairsPrediction,
        trace: Trace | None = None,
    ) -> list[list[Hypothesis]]:
        return self._search(inference, rows, options.decode, trace)

    def join(
        self, prepared: Prepared, answers: Sequence[list[Hypothesis]], options: PairsPrediction
    ) -> list[list[Output]]:
        return [
            [Output.of(h, self.tokenizer.decode(h.tokens)) for h in hypotheses]
            for hypotheses in answers
        ]

    def values(self, answers: list[list[Output]]) -> list[str]:
        return [best.text for best, *_ in answers]

    def rank_texts(self, answer: list[Output]) -> list[Ranked]:
        return [Ranked(output.text, output.score) for output in answer]

    def json(self, answer: list[Output]) -> OutputsAnswer:
        return {"outputs": [output.to_json() for output in answer]}

    def sample(self, inference: ActiveModel, prepared: Prepared, row: int, answers: Any) -> Sample:
        return Sample(
            title=prepared.name_of(row),
            axes={"source": patch_axis(inference.model.reader)},
            pictures={"image": Image(pixels=prepared.rows[row])},
            tokens=self.tokenizer.tokens,
            text=self.tokenizer.decode,
            begin=SPECIALS[BOS],
        )

    def log_prob(
        self, model: Any, prepared: Prepared, row: int, answer: list[Hypothesis]
    ) -> Tensor:
        source, target = self._teacher_inputs(model, prepared, row, answer)
        log_probs = model(source, target)[0].float().log_softmax(-1)
        return log_probs.gather(1, target.items[0, 1:, None]).sum()

    def explain(
        self,
        inference: ActiveModel,
        prepared: Prepared,
        row: int,
        answer: list[Hypothesis],
        sample: Sample,
    ) -> SampleMaps | None:
        if not isinstance(inference.model.core, Transformer):
            return None
        source, target = self._teacher_inputs(inference.model, prepared, row, answer)
        tokens = [step.token for step in sample.steps]
        return explain_tokens(
            inference.model, source, target, sample, tokens=tokens, row=row, notify=self.notify
        )

    @staticmethod
    def _teacher_inputs(
        model: Any, prepared: Prepared, row: int, answer: list[Hypothesis]
    ) -> tuple[Tensor, Padded]:
        """Return the image and the best caption of a row, with EOS if it is finished, as inputs of
        the model."""
        end = [EOS] if answer[0].finished else []
        target = pad([[BOS, *answer[0].tokens, *end]]).to(device_of(model))
        return stack_images([prepared.rows[row]]).to(device_of(model)), target

    def _search(
        self,
        inference: ActiveModel,
        images: Sequence[NDArray[np.uint8]],
        decode: DecodeConfig,
        trace: Trace | None = None,
    ) -> list[list[Hypothesis]]:
        """Return the best hypotheses for each image."""
        limit = max_length_of(self.config.model.core)
        if limit is not None:
            decode = dataclasses.replace(decode, max_length=min(decode.max_length, limit))
        engine = inference.engine_for(len(images), traced=trace is not None)
        settings = {
            "length": self.config.positions,
            "config": decode,
            "bos": BOS,
            "eos": EOS,
            "pad": PAD,
        }
        return (
            engine.search_images(stack_images(images), **settings, trace=trace)
            if len(images)
            else []
        )

    def _batches(self, images: DescribedImages) -> CaptionBatches:
        return CaptionBatches(
            images, self.tokenizer.encode, rows=self.config.batch, seed=self.run.seed
        )

    def _loss_per_token(self, model: Model, images: DescribedImages) -> float:
        """Return the mean of -log p over the tokens of all captions, EOS included, in nats."""
        batches = self._batches(images)
        pairs, total, count = batches.pairs(), 0.0, 0
        with torch.no_grad():
            for rows in plan_by_count(pairs, _ROWS):
                loss = model.loss(
                    batches.collate_pairs(pairs[rows.start : rows.stop]).to(device_of(model))
                )
                total, count = total + float(loss.nll), count + loss.count
        return total / count

    @cached_property
    def _splits(self) -> tuple[CaptionedImages, CaptionedImages]:
        return read_training_captions(self.config.data, seed=self.run.seed)


def _to_examples(images: DescribedImages, on_bad: str) -> Examples[DescribedImages]:
    indices = images.epoch(0)
    skipped, notices = (
        (images.skipped, images.notices) if isinstance(images, CaptionedImages) else ((), ())
    )
    return Examples(
        images,
        images.origin,
        len(indices),
        input=lambda i: images.pixels(indices[i]),
        name=lambda i: images.name(indices[i]),
        reference=lambda i: images.captions(indices[i])[0],
        on_bad=on_bad,
        skipped=(*describe_skipped(images.origin, "lines or images", skipped), *notices),
    )
