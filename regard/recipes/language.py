"""The recipe `language`: every next token of a text, from those before it; scored by nats a token and perplexity.

    nll = mean of -log p(u_t | u_<t)        perplexity = e^nll        bits = nll / ln 2

Measuring cuts the text into windows of the context's length, so that the first tokens of each are predicted from few.

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

from regard.data import dates
from regard.data.dates_config import DatesConfig
from regard.data.tokenize import SPECIALS, UNK, Tokenizer
from regard.data.windows import WindowBatches, blocks, read_text
from regard.decode.config import SampleConfig
from regard.decode.sample import follow
from regard.digests import recorded
from regard.errors import UserError
from regard.look.capture import Capture
from regard.look.map import Seen
from regard.look.scene import Scene
from regard.models.build import build_language_model
from regard.models.config import RecurrentConfig
from regard.models.language import LanguageModel
from regard.recipes.config import Language
from regard.recipes.folder import Run
from regard.recipes.task import Task, Trained, check_inputs, numbered
from regard.telling import is_heard, showing

_TOKENIZER = "tokenizer.json"
_MADE = {"train": 3000, "test": 300}
_SAMPLES, _PROMPT, _SHOWN = 3, 24, 40


class Continuation(NamedTuple):
    """How a text goes on, and the mean log-probability of its tokens under the model (before narrowing)."""

    text: str
    score: float


class LanguageTask(Task):
    """A text, its vocabulary, and a language model."""

    metric = "nll"
    maximize = False
    tokenizer: Tokenizer

    @property
    def config(self) -> Language:
        """All settings of the run."""
        assert isinstance(self.run.config, Language)
        return self.run.config

    def check(self) -> None:
        """Read all texts."""
        if self.has_test():
            with recorded():  # decides no weights: no part of what the run was trained on
                self.test_text()
        _ = self._texts

    def learn(self, folder: Path) -> None:
        """The vocabulary of the training text."""
        text = self._texts[0]
        texts = blocks(text) if self.config.tokenizer.kind == "char" else text.split("\n")
        origin = self.config.data.train or ""
        Tokenizer.train(texts, self.config.tokenizer, origin=origin).save(folder / _TOKENIZER)

    def open(self, folder: Path) -> None:
        """The vocabulary."""
        self.tokenizer = Tokenizer.load(folder / _TOKENIZER)

    def batches(self) -> WindowBatches:
        """Windows of the text, cut elsewhere in each epoch."""
        sizes = {"context": self.config.context, "rows": self.config.batch}
        return WindowBatches(
            self.encoded(self._texts[0]), seed=self.run.seed, origin=self.config.data.train or "dates", **sizes
        )

    def model(self) -> LanguageModel:
        """For this vocabulary."""
        return build_language_model(self.config.model, vocab=len(self.tokenizer))

    def describe(self) -> str:
        """Size of the vocabulary."""
        return f"{len(self.tokenizer):,} pieces, context {self.config.context}"

    def measure(self, model: nn.Module) -> dict[str, float]:
        """nll and perplexity of the validation text."""
        data = self.config.data
        return self.scores(model, self._texts[1], data.val or f"{data.train or 'dates'}, kept for validation")

    @torch.no_grad()
    def scores(self, model: nn.Module, text: str, origin: str = "text") -> dict[str, float]:
        """The same of any text."""
        assert isinstance(model, LanguageModel)
        device = next(model.parameters()).device
        ids = self.encoded(text)
        batches = WindowBatches(ids, context=self.config.context, rows=64, seed=0, is_fixed=True, origin=origin)
        total, count = 0.0, 0
        for rows in batches.plan(0):
            loss = model.loss(batches.collate(0, rows).to(device))
            total, count = total + float(loss.nll), count + loss.count
        found = {
            "nll": total / count,
            "perplexity": math.exp(min(total / count, 100.0)),
            "bits": total / count / math.log(2),
        }
        return found | {"unknown": 100 * float((ids == UNK).mean())}

    def encoded(self, text: str) -> NDArray[np.int32]:
        """The ids of a text."""
        # Lines are apart for every kind of pieces; the library needs a hundred times the memory of what it is given.
        parts = [np.asarray(self.tokenizer.encode(self._with_ends(part)), np.int32) for part in blocks(text)]
        return np.concatenate(parts) if parts else np.zeros(0, np.int32)

    def labels(self, text: str) -> list[str]:
        """What each id stands for, in pictures."""
        return self.tokenizer.tokens(self._with_ends(text))

    def has_test(self) -> bool:
        """Always for dates."""
        return self.config.data.train is None or self.config.data.test is not None

    def test_text(self) -> str:
        """The run's test text."""
        return _dates("test", self.run.seed) if self.config.data.test is None else read_text(self.config.data.test)

    def trained(self, model: nn.Module, folder: Path) -> "TrainedLanguage":
        """The model with its vocabulary."""
        return TrainedLanguage(self, model, folder)

    def _with_ends(self, text: str) -> str:
        return text.replace("\n", " <eos> ") if self.config.data.line_ends == "eos" else text

    @cached_property
    def _texts(self) -> tuple[str, str]:
        """To learn from, and to choose by."""
        data = self.config.data
        text = _dates("train", self.run.seed) if data.train is None else read_text(data.train)
        if data.val is not None:
            return text, read_text(data.val)
        cut = int(len(text) * (1 - data.val_share))
        return text[:cut], text[cut:]


class TrainedLanguage(Trained):
    """A language model in use."""

    decodes = True
    task: LanguageTask

    def predict(self, inputs: Sequence[str], **options: Any) -> list[str]:
        """How each text goes on; options as in SampleConfig: length, temperature, top_k, top_p, draws."""
        if isinstance(inputs, str):
            raise TypeError(f"inputs must be a list of texts, but is one text: {inputs[:40]!r}")
        found = self.answers(inputs, sampling=replace(self.config.sample, **options))
        return [only.text for (only,) in found]

    def answers(self, inputs: Sequence[str], *, sampling: SampleConfig, first: int = 1) -> list[list[Continuation]]:
        """As `predict`; messages count the texts from `first`."""
        prompts = [self.task.encoded(text).tolist() for text in inputs]
        for number, ids in enumerate(prompts, start=first):
            if not ids:
                raise UserError(f"input {number} is empty: there is nothing to go on from")
        seeds = [sampling.draws * 1_000_003 + number for number in range(first, first + len(prompts))]
        settings = {"window": self._window, "banned": _BANNED}
        if not is_heard():
            found = self.engine_for(len(prompts)).generate(prompts, sampling, seeds=seeds, **settings)
            return [[self._said(ids, tokens)] for ids, tokens in zip(prompts, found, strict=True)]
        results = []
        for text, ids, seed in zip(inputs, prompts, seeds, strict=True):
            with showing(lambda text=text: [self._scene(text)]) as scenes:
                (tokens,) = self.engine_for(1).generate([ids], sampling, seeds=[seed], **settings)
            with showing(list):  # reading all once more, for the score, is nothing to show
                results.append([self._said(ids, tokens)])
            for scene in scenes:
                scene.title = f"{scene.title} -> {results[-1][0].text}"
        return results

    def evaluate(self, path: str | Path | None = None, *, tell: Callable[[str], None] | None = None) -> dict[str, Any]:
        """nll, perplexity and bits a token on the run's test text, or on that of a file."""
        if path is None and not self.task.has_test():
            raise UserError(f"the run {self.folder} has no test data: name some (--data.test)")
        text = self.task.test_text() if path is None else read_text(path)
        scores = self.task.scores(self._model, text, str(path or self.config.data.test or "dates"))
        sampling = replace(self.config.sample, length=_SHOWN)
        samples = []
        for i in range(_SAMPLES):
            start = i * len(text) // _SAMPLES
            prompt, after = text[start : start + _PROMPT], text[start + _PROMPT : start + _PROMPT + _SHOWN]
            said = self.answers([prompt], sampling=sampling)[0][0].text if prompt.strip() else ""
            samples.append(
                {
                    key: repr(value)[1:-1]
                    for key, value in zip(("source", "output", "reference"), (prompt, said, after), strict=True)
                }
            )
        signature = (
            f"windows of {self.config.context} tokens, {self.config.tokenizer.kind}, {len(self.task.tokenizer)} pieces"
        )
        count = len(self.task.encoded(text)) - 1
        data = (
            f"dates, {len(text):,} characters"
            if path is None and self.config.data.test is None
            else str(path or self.config.data.test)
        )
        return {"data": data, "examples": count, **scores, "signature": signature, "samples": samples}

    def test_input(self, index: int) -> str:
        """A line of the test text that is not empty; its beginning, if it is longer than the model's window."""
        self._check_test()
        lines = [line for line in self.task.test_text().split("\n") if line.strip()]
        text, window = numbered(lines, index, "the test text"), self._window
        while window is not None and (count := len(self.task.encoded(text))) > window:
            text = text[: min(len(text) - 1, len(text) * window // count)]
        return text

    def look(self, inputs: Sequence[str], *, gradients: bool = False) -> Capture:
        """What the model read at each token of these texts, as they are, and which it took to be likely next.

        Behind the last token stands the likeliest one; nothing else is made up.
        gradients: add how much each weight mattered to log p of the text's tokens behind the first.
        Raises: UserError if a text has less than two tokens or more than the model reads at once, or the model does
                not attend.
        """
        check_inputs(inputs)
        texts = [self.task.encoded(text).tolist() for text in inputs]
        for number, ids in enumerate(texts, start=1):
            if len(ids) < 2:
                raise UserError(f"input {number} needs two pieces of text at least, but there is {len(ids)}")
            if self._window is not None and len(ids) > self._window:
                raise UserError(f"input {number} has {len(ids)} pieces, more than the {self._window} of the context")

        def read() -> None:
            for text, ids in zip(inputs, texts, strict=True):
                with showing(lambda text=text: [replace(self._scene(text), fed=self.task.labels(text))]):
                    follow(self._model, ids, banned=_BANNED)

        capture = self._recorded(read)
        if gradients:
            self._differentiate(capture, inputs)
        return capture

    def likelihood(self, given: str, seen: Seen) -> Tensor:
        """log p of the text's tokens behind the first; what stands behind the last is not counted."""
        tokens = torch.tensor([self.task.encoded(given).tolist()], device=next(self._model.parameters()).device)
        log_p = self._model(tokens)[0, :-1].float().log_softmax(-1)
        return log_p.gather(1, tokens[0, 1:, None]).sum()

    def _scene(self, text: str) -> Scene:
        """A text that is gone on with, for those who look on; what is fed first is told with the answer."""
        return Scene(title=text.strip(), tokens=self.task.tokenizer.tokens)

    @property
    def _window(self) -> int | None:
        """Most tokens that the core takes: a recurrent state is as large after any number of them."""
        return None if isinstance(self.config.model.core, RecurrentConfig) else self.config.context

    def _joined(self, ids: list[int], tokens: list[int]) -> str:
        """What the tokens add to the text."""
        before = self.task.tokenizer.decode(ids)
        return self.task.tokenizer.decode([*ids, *tokens])[len(before) :]

    def _said(self, ids: list[int], tokens: list[int]) -> Continuation:
        return Continuation(self._joined(ids, tokens), self._mean_log_p(ids, tokens))

    @torch.no_grad()
    def _mean_log_p(self, ids: list[int], tokens: list[int]) -> float:
        last = torch.tensor([[*ids, *tokens][-(self.config.context + 1) :]])
        logits = self._model(last[:, :-1].to(next(self._model.parameters()).device)).float().log_softmax(-1).cpu()
        count = min(len(tokens), last.shape[1] - 1)
        return float(logits.gather(2, last[:, 1:, None])[0, -count:, 0].mean())


_BANNED = list(range(len(SPECIALS)))


def _dates(split: str, seed: int) -> str:
    """Lines such as: 3 maart 2019 = 2019-03-03."""
    made = dates.Dates(DatesConfig(epoch_size=_MADE["train"], test_size=_MADE["test"]), seed=seed)
    return "".join(f"{one.text} = {one.iso}\n" for one in made.examples(split))


def task(run: Run, tell: Callable[[str], None]) -> LanguageTask:
    """This recipe at work."""
    return LanguageTask(run, tell)
