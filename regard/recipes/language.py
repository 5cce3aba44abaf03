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
from torch import nn

from regard.data import dates
from regard.data.dates_config import DatesConfig
from regard.data.tokenise import SPECIALS, UNK, Tokeniser
from regard.data.windows import WindowBatches, read_text
from regard.decode.config import SampleConfig
from regard.decode.sample import sample
from regard.errors import UserError
from regard.look.chain import Chain, chains
from regard.models.build import build_language_model
from regard.models.config import RecurrentConfig
from regard.models.language import LanguageModel
from regard.recipes.config import Language
from regard.recipes.folder import Run
from regard.recipes.task import Task, Trained

__all__ = ["Continuation", "LanguageTask", "TrainedLanguage", "task"]

_TOKENISER = "tokeniser.json"
_MADE = {"train": 3000, "test": 300}
_SAMPLES, _PROMPT, _SHOWN = 3, 24, 40


class Continuation(NamedTuple):
    """How a text goes on, and the mean log-probability of its tokens under the model (before narrowing)."""

    text: str
    score: float


class LanguageTask(Task):
    """A text, its vocabulary, and a language model."""

    metric = "nll"
    maximise = False
    tokeniser: Tokeniser

    @property
    def config(self) -> Language:
        """All settings of the run."""
        assert isinstance(self.run.config, Language)
        return self.run.config

    def check(self) -> None:
        """Read all texts."""
        if self.has_test():
            self.test_text()
        _ = self._texts

    def learn(self, folder: Path) -> None:
        """The vocabulary of the training text."""
        text = self._texts[0]
        texts = [text] if self.config.tokeniser.kind == "char" else text.split("\n")
        Tokeniser.train(texts, self.config.tokeniser).save(folder / _TOKENISER)

    def open(self, folder: Path) -> None:
        """The vocabulary."""
        self.tokeniser = Tokeniser.load(folder / _TOKENISER)

    def batches(self) -> WindowBatches:
        """Windows of the text, cut elsewhere in each epoch."""
        sizes = {"context": self.config.context, "rows": self.config.batch}
        return WindowBatches(self.encoded(self._texts[0]), seed=self.run.seed, origin="training text", **sizes)

    def model(self) -> LanguageModel:
        """For this vocabulary."""
        return build_language_model(self.config.model, vocab=len(self.tokeniser))

    def describe(self) -> str:
        """Size of the vocabulary."""
        return f"{len(self.tokeniser):,} pieces, context {self.config.context}"

    def measure(self, model: nn.Module) -> dict[str, float]:
        """nll and perplexity of the validation text."""
        return self.scores(model, self._texts[1])

    @torch.no_grad()
    def scores(self, model: nn.Module, text: str) -> dict[str, float]:
        """The same of any text."""
        assert isinstance(model, LanguageModel)
        device = next(model.parameters()).device
        ids = self.encoded(text)
        batches = WindowBatches(ids, context=self.config.context, rows=64, seed=0, is_fixed=True)
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
        return np.asarray(self.tokeniser.encode(self._with_ends(text)), np.int32)

    def labels(self, text: str) -> list[str]:
        """What each id stands for, in pictures."""
        return self.tokeniser.tokens(self._with_ends(text))

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

    task: LanguageTask

    def predict(self, inputs: Sequence[str], **options: Any) -> list[str]:
        """How each text goes on; options as in SampleConfig: length, temperature, top_k, top_p, draws."""
        if isinstance(inputs, str):
            raise TypeError(f"inputs must be a list of texts, but is one text: {inputs[:40]!r}")
        found = self.answers(inputs, sampling=replace(self.config.sample, **options))
        return [only.text for (only,) in found]

    def answers(self, inputs: Sequence[str], *, sampling: SampleConfig, first: int = 1) -> list[list[Continuation]]:
        """As `predict`; messages count the texts from `first`."""
        results = []
        for number, text in enumerate(inputs, start=first):
            ids = self.task.encoded(text).tolist()
            if not ids:
                raise UserError(f"input {number} is empty: there is nothing to go on from")
            seed = sampling.draws * 1_000_003 + number
            tokens = list(sample(self.model, ids, sampling, window=self._window, seed=seed, banned=_BANNED))
            results.append([Continuation(self._joined(ids, tokens), self._mean_log_p(ids, tokens))])
        return results

    def evaluate(self, path: str | Path | None = None, *, tell: Callable[[str], None] | None = None) -> dict[str, Any]:
        """nll, perplexity and bits a token on the run's test text, or on that of a file."""
        if path is None and not self.task.has_test():
            raise UserError(f"the run {self.folder} has no test data: name some (--data.test)")
        text = self.task.test_text() if path is None else read_text(path)
        scores = self.task.scores(self.model, text)
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
            f"windows of {self.config.context} tokens, {self.config.tokeniser.kind}, {len(self.task.tokeniser)} pieces"
        )
        count = len(self.task.encoded(text)) - 1
        data = (
            f"dates, {len(text):,} characters"
            if path is None and self.config.data.test is None
            else str(path or self.config.data.test)
        )
        return {"data": data, "examples": count, **scores, "signature": signature, "samples": samples}

    def look(self, text: str) -> list[Chain]:
        """Which of the tokens before it the model went back to at each token of a text, a layer each.

        Raises UserError if its core does not read its own past, or the text has less than two tokens.
        """
        device = next(self.model.parameters()).device
        ids = torch.from_numpy(self.task.encoded(text)).long().to(device)
        return chains(self.model, lambda: self.model(ids[None]), self.task.labels(text), title=text.strip())

    @property
    def _window(self) -> int | None:
        """Most tokens that the core takes: a recurrent state is as large after any number of them."""
        return None if isinstance(self.config.model.core, RecurrentConfig) else self.config.context

    def _joined(self, ids: list[int], tokens: list[int]) -> str:
        """What the tokens add to the text."""
        before = self.task.tokeniser.decode(ids)
        return self.task.tokeniser.decode([*ids, *tokens])[len(before) :]

    @torch.no_grad()
    def _mean_log_p(self, ids: list[int], tokens: list[int]) -> float:
        last = torch.tensor([[*ids, *tokens][-(self.config.context + 1) :]])
        logits = self.model(last[:, :-1].to(next(self.model.parameters()).device)).float().log_softmax(-1).cpu()
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
