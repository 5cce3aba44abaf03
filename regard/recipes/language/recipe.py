"""Recipe `language`: causal language models, scored by nats per token and perplexity.

    nll = mean of -log p(u_t | u_<t)        perplexity = e^nll        bits = nll / ln 2

Evaluation splits the text into windows of the context length, so the first tokens of each have little context.

Source: lectures, D (GPT); radford2018.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.batches import pad
from regard.data.embedded import dates
from regard.data.embedded.dates_config import DatesConfig
from regard.data.text.windows import WindowBatches, read_text, split_blocks
from regard.data.tokenizer import SPECIALS, UNK, Tokenizer
from regard.decode.config import SampleConfig
from regard.decode.sample import trace_tokens
from regard.errors import UserError
from regard.look.capture import Capture
from regard.look.maps import SampleMaps
from regard.look.sample import Sample
from regard.models.build import build_language_model
from regard.models.config import RecurrentConfig
from regard.models.model import Model
from regard.recipes.base.recipe import Recipe, TrainedRun, check_inputs, get_input
from regard.recipes.base.run import Run
from regard.recipes.language.config import LanguageRunConfig
from regard.system.fingerprints import record_digests

_TOKENIZER = "tokenizer.json"
_SIZES = {"train": 3000, "test": 300}
_SAMPLES, _PROMPT, _SHOWN = 3, 24, 40
_BANNED = list(range(len(SPECIALS)))


class Continuation(NamedTuple):
    """Generated continuation, and the mean log-probability of its tokens (before top-k and top-p filtering)."""

    text: str
    score: float


class LanguageRecipe(Recipe):
    """Recipe of causal language modeling."""

    metric = "nll"
    higher_is_better = False
    tokenizer: Tokenizer

    @property
    def config(self) -> LanguageRunConfig:
        """All settings of the run."""
        assert isinstance(self.run.config, LanguageRunConfig)
        return self.run.config

    def check(self) -> None:
        """Read all texts."""
        if self.has_test():
            with record_digests():  # test data is not part of the fingerprint of the training data
                self.test_text()
        _ = self._texts

    def learn(self, folder: Path) -> None:
        """Train the tokenizer on the training text and save it."""
        text = self._texts[0]
        texts = split_blocks(text) if self.config.tokenizer.kind == "char" else text.split("\n")
        origin = self.config.data.train or ""
        Tokenizer.train(texts, self.config.tokenizer, origin=origin).save(folder / _TOKENIZER)

    def open(self, folder: Path) -> None:
        """Load the tokenizer."""
        self.tokenizer = Tokenizer.load(folder / _TOKENIZER)

    def batches(self) -> WindowBatches:
        """Return batches of windows of the text, with other boundaries in each epoch."""
        sizes = {"context": self.config.context, "rows": self.config.batch}
        return WindowBatches(
            self.encode(self._texts[0]), seed=self.run.seed, origin=self.config.data.train or "dates", **sizes
        )

    def model(self) -> Model:
        """Return a language model for this vocabulary."""
        return build_language_model(self.config.model, vocab=len(self.tokenizer))

    def describe(self) -> str:
        """Return the size of the vocabulary and the context length."""
        return f"{len(self.tokenizer):,} tokens, context {self.config.context}"

    def measure(self, model: nn.Module) -> dict[str, float]:
        """Return nll and perplexity of the validation text."""
        data = self.config.data
        return self.score(model, self._texts[1], data.val or f"{data.train or 'dates'}, held out for validation")

    @torch.no_grad()
    def score(self, model: nn.Module, text: str, origin: str = "text") -> dict[str, float]:
        """Return nll, perplexity and bits per token of a text, and the percentage of unknown tokens."""
        assert isinstance(model, Model)
        device = next(model.parameters()).device
        ids = self.encode(text)
        batches = WindowBatches(ids, context=self.config.context, rows=64, seed=0, is_fixed=True, origin=origin)
        total, count = 0.0, 0
        for rows in batches.plan(0):
            loss = model.loss(batches.collate(0, rows).to(device))
            total, count = total + float(loss.nll), count + loss.count
        scores = {
            "nll": total / count,
            "perplexity": math.exp(min(total / count, 100.0)),
            "bits_per_token": total / count / math.log(2),
        }
        return scores | {"unknown_tokens": 100 * float((ids == UNK).mean())}

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the ids of a text."""
        # Lines are tokenized separately anyway, and the library needs a hundred times the memory of its input.
        parts = [np.asarray(self.tokenizer.encode(self._with_ends(part)), np.int32) for part in split_blocks(text)]
        return np.concatenate(parts) if parts else np.zeros(0, np.int32)

    def token_labels(self, text: str) -> list[str]:
        """Return the label of each token for figures."""
        return self.tokenizer.tokens(self._with_ends(text))

    def has_test(self) -> bool:
        """Return True if there is test data; synthetic dates always have it."""
        return self.config.data.train is None or self.config.data.test is not None

    def test_text(self) -> str:
        """Return the test text of the run."""
        return _dates("test", self.run.seed) if self.config.data.test is None else read_text(self.config.data.test)

    def build_run(self, model: nn.Module, folder: Path) -> "TrainedLanguage":
        """Return the trained run of this model."""
        return TrainedLanguage(self, model, folder)

    def _with_ends(self, text: str) -> str:
        return text.replace("\n", " <eos> ") if self.config.data.line_ends == "eos" else text

    @cached_property
    def _texts(self) -> tuple[str, str]:
        """Training and validation text."""
        data = self.config.data
        text = _dates("train", self.run.seed) if data.train is None else read_text(data.train)
        if data.val is not None:
            return text, read_text(data.val)
        cut = int(len(text) * (1 - data.val_share))
        return text[:cut], text[cut:]


class TrainedLanguage(TrainedRun):
    """Trained run of the recipe `language`."""

    decodes = True
    recipe: LanguageRecipe

    def predict(self, inputs: Sequence[str], **options: Any) -> list[str]:
        """Return a continuation of each text; options as in SampleConfig: length, temperature, top_k, top_p, seed."""
        if isinstance(inputs, str):
            raise TypeError(f"inputs must be a list of texts, got one text: {inputs[:40]!r}")
        results = self.answers(inputs, sampling=replace(self.config.sample, **options))
        return [continuation.text for (continuation,) in results]

    def answers(self, inputs: Sequence[str], *, sampling: SampleConfig, first: int = 1) -> list[list[Continuation]]:
        """Return the continuation of each text with its score; messages number the texts from `first`."""
        prompts = [self.recipe.encode(text).tolist() for text in inputs]
        for number, ids in enumerate(prompts, start=first):
            if not ids:
                raise UserError(f"input {number} is empty: there is nothing to continue")
        seeds = [sampling.seed * 1_000_003 + number for number in range(first, first + len(prompts))]
        settings = {"window": self._window, "banned": _BANNED}
        engine = self.engine_for(len(prompts))
        with self._segment(lambda: [self._look_sample(text) for text in inputs]) as samples:
            generated = engine.generate(prompts, sampling, seeds=seeds, trace=self.trace, **settings)
        with self._segment(list):  # the pass that computes the scores belongs to no sample
            results = [[self._make_continuation(ids, tokens)] for ids, tokens in zip(prompts, generated, strict=True)]
        for sample, (continuation,) in zip(samples, results, strict=bool(samples)):
            sample.title = f"{sample.title} -> {continuation.text}"
        return results

    def evaluate(
        self, path: str | Path | None = None, *, notify: Callable[[str], None] | None = None
    ) -> dict[str, Any]:
        """Return nll, perplexity and bits per token on the run's test text, or on that of a file."""
        if path is None:
            self._check_test()
        text = self.recipe.test_text() if path is None else read_text(path)
        scores = self.recipe.score(self._model, text, str(path or self.config.data.test or "dates"))
        sampling = replace(self.config.sample, length=_SHOWN)
        samples = []
        for i in range(_SAMPLES):
            start = i * len(text) // _SAMPLES
            prompt, reference = text[start : start + _PROMPT], text[start + _PROMPT : start + _PROMPT + _SHOWN]
            output = self.answers([prompt], sampling=sampling)[0][0].text if prompt.strip() else ""
            samples.append(
                {
                    key: repr(value)[1:-1]
                    for key, value in zip(("source", "output", "reference"), (prompt, output, reference), strict=True)
                }
            )
        kind, size = self.config.tokenizer.kind, len(self.recipe.tokenizer)
        signature = f"windows of {self.config.context} tokens, {kind}, vocabulary of {size}"
        count = len(self.recipe.encode(text)) - 1
        data = (
            f"dates, {len(text):,} characters"
            if path is None and self.config.data.test is None
            else str(path or self.config.data.test)
        )
        return {"data": data, "examples": count, **scores, "signature": signature, "samples": samples}

    def test_input(self, index: int) -> str:
        """Return a non-empty line of the test text, truncated to the model's window."""
        self._check_test()
        lines = [line for line in self.recipe.test_text().split("\n") if line.strip()]
        text, window = get_input(lines, index, "the test text"), self._window
        while window is not None and (count := len(self.recipe.encode(text))) > window:
            text = text[: min(len(text) - 1, len(text) * window // count)]
        return text

    def look(self, inputs: Sequence[str], *, gradients: bool = False) -> Capture:
        """Return the attention maps of each token of these texts, with the most likely next tokens.

        The texts are not continued; only the most likely token after the last one is shown.
        gradients: add the gradient of log p of the text's tokens after the first for each attention weight.
        Raises: UserError if a text has fewer than two tokens or more than the context, or the model has no attention.
        """
        check_inputs(inputs)
        texts = [self.recipe.encode(text).tolist() for text in inputs]
        for number, ids in enumerate(texts, start=1):
            if len(ids) < 2:
                raise UserError(f"input {number} must have at least two tokens, got {len(ids)}")
            if self._window is not None and len(ids) > self._window:
                raise UserError(f"input {number} has {len(ids)} tokens, more than the context of {self._window}")

        def read() -> None:
            for text, ids in zip(inputs, texts, strict=True):
                with self._segment(
                    lambda text=text: [replace(self._look_sample(text), decoder_input=self.recipe.token_labels(text))]
                ):
                    trace_tokens(self._model, ids, banned=_BANNED, trace=self.trace)

        capture = self._record(read)
        if gradients:
            self._differentiate(capture, inputs)
        return capture

    def likelihood(self, given: str, maps: SampleMaps) -> Tensor:
        """Return log p of the text's tokens after the first; the token predicted after the last is not included."""
        ids = self.recipe.encode(given).tolist()
        # Of the last token of a target only the prediction counts: with one more, every token of the text is read.
        target = pad([[*ids, 0]]).to(next(self._model.parameters()).device)
        log_p = self._model(target=target)[0, :-1].float().log_softmax(-1)
        return log_p.gather(1, target.items[0, 1:-1, None]).sum()

    def _look_sample(self, text: str) -> Sample:
        """Return the sample of a look at this text; its input tokens are emitted with the answer."""
        return Sample(title=text.strip(), tokens=self.recipe.tokenizer.tokens)

    @property
    def _window(self) -> int | None:
        """Maximum number of tokens the core can read; None for recurrent cores, whose state has a fixed size."""
        return None if isinstance(self.config.model.core, RecurrentConfig) else self.config.context

    def _decode_continuation(self, ids: list[int], tokens: list[int]) -> str:
        """Return the text that the tokens add to the prompt."""
        before = self.recipe.tokenizer.decode(ids)
        return self.recipe.tokenizer.decode([*ids, *tokens])[len(before) :]

    def _make_continuation(self, ids: list[int], tokens: list[int]) -> Continuation:
        return Continuation(self._decode_continuation(ids, tokens), self._mean_log_p(ids, tokens))

    @torch.no_grad()
    def _mean_log_p(self, ids: list[int], tokens: list[int]) -> float:
        last = pad([[*ids, *tokens][-(self.config.context + 1) :]])
        logits = self._model(target=last.to(next(self._model.parameters()).device)).float().log_softmax(-1).cpu()
        count = min(len(tokens), last.items.shape[1] - 1)
        return float(logits.gather(2, last.items[:, 1:, None])[0, -count:, 0].mean())


def create_recipe(run: Run, notify: Callable[[str], None]) -> LanguageRecipe:
    """Create the recipe of a run."""
    return LanguageRecipe(run, notify)


def _dates(split: str, seed: int) -> str:
    """Return lines such as: 3 maart 2019 = 2019-03-03."""
    generator = dates.DatesDataset(DatesConfig(epoch_size=_SIZES["train"], test_size=_SIZES["test"]), seed=seed)
    return "".join(f"{example.text} = {example.iso}\n" for example in generator.examples(split))
