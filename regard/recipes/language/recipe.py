"""Recipe `language`: causal language models, scored by nats per token and perplexity.

    nll           = mean of -log p(u_t | u_<t) over tokens, nats        perplexity = e^nll
    bits_per_byte = sum of -log2 p(u_t | u_<t) / bytes of the text (UTF-8)

Evaluation splits the text into windows of the context length, so the first tokens of each have
little context. Bits per byte do not depend on the tokens, if these give the text back.

Source: lectures, D.13 (GPT); radford2018.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.masks import Padded
from regard.data.batches import pad
from regard.data.embedded import dates
from regard.data.embedded.chases import make_chases
from regard.data.embedded.dates_config import DatesConfig
from regard.data.held_out import describe_held_out, last_part
from regard.data.number_store import NumberStore
from regard.data.text.corpus import Corpus, has_documents, make_corpus, read_corpus
from regard.data.text.windows import WindowBatch, WindowBatches
from regard.data.tokenizer import Ends, Tokenizer, load_tokenizer
from regard.decode.progress import UNWRITTEN
from regard.decode.rules import make_rules
from regard.decode.sample import contexts
from regard.decode.teacher import trace_outputs
from regard.errors import UserError
from regard.layers.pool import MeanPooling
from regard.look.maps import SampleMaps
from regard.look.sample import Sample
from regard.models.build import build_language_model
from regard.models.cores.config import RecurrentConfig
from regard.models.cores.transformer import Transformer
from regard.models.model import Model
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.decoder import explain_tokens
from regard.recipes.base.recipe import (
    Answer,
    Dataset,
    Example,
    Prompt,
    Ranked,
    Recipe,
    Results,
    View,
    one_line,
)
from regard.recipes.base.scoring import (
    COSTS_AT_ONCE,
    TeacherInputs,
    device_of,
    mean_nll,
    token_costs,
)
from regard.recipes.language.config import LanguageRunConfig
from regard.recipes.language.examples import measure_examples
from regard.system.progress import track
from regard.trace import Trace

_TOKENIZER = "tokenizer.json"


class _EncodedText(NamedTuple):
    """Tokens of a text, and its size."""

    ids: NDArray[np.int32]
    num_bytes: int | None
    """Bytes of the text in UTF-8; None if the tokens do not give it back."""


class _MarkedLineEnds:
    """Blocks of a text whose line ends are the word <eos>."""

    def __init__(self, text: Corpus):
        self._text = text

    def __iter__(self) -> Iterator[str]:
        return map(_mark_line_ends, self._text)


class _Continuation(NamedTuple):
    """What follows a text, and its tokens' mean log-probability."""

    text: str
    score: float
    tokens: Sequence[int]


class LanguageRecipe(Recipe[LanguageRunConfig]):
    """Recipe of causal language modeling."""

    metric = "nll"
    higher_is_better = False
    monitored = ("nll", "perplexity", "bits_per_token", "unknown_tokens")
    least_val = 0  # its examples are lines, and windows of the text are validated
    decodes = True
    input_name = "source"
    columns: Mapping[str, type] = {"text": str, "score": float}
    predictions_hint = (
        "a test text has no answer; regard score RUN FILE writes the log-probability of each line"
    )
    tokenizer: Tokenizer

    def load(self, split: str) -> Dataset[Corpus]:
        test = self.config.data.test
        if split == "test":
            text = self._generate("test") if test is None else self._read(test, split)
        else:
            text = self._texts[split == "val"]
        # Training needs no examples, and counting them reads the whole text.
        count = 0 if split == "train" else text.example_count
        inputs = View(count, lambda i: self.shorten_embedded(text.example(i)))
        return Dataset(text, text.origin, inputs, names=View(count, text.example), notes=text.notes)

    def encode(self, dataset: Dataset[Corpus]) -> Dataset[Corpus]:
        text, num_bytes = dataset.data, 0
        for block in text:
            if self.tokenizer.decode(self.tokenizer.encode(block)) != block:
                num_bytes = None
                break
            num_bytes += len(block.encode())
        ids = self.encode_corpus(text)
        if len(ids) < 2:  # one input, one prediction
            problem = f"a text must have at least two tokens, got {len(ids)}"
            raise UserError(f"{dataset.origin}: {problem}, for validation or as a test.")
        return replace(dataset, targets=_EncodedText(ids, num_bytes))

    def fit(self, train: Dataset[Corpus]) -> dict[str, Any]:
        keeps_space = self.config.data.line_ends == "keep"
        text = train.data if keeps_space else _MarkedLineEnds(train.data)
        tokenizer = self.fit_tokenizer(text, train.origin, keeps_space=keeps_space)
        if tokenizer.keeps_space != keeps_space:
            raise UserError("--data.line-ends must be as in the run of --init")
        return {_TOKENIZER: tokenizer}

    def open(self, folder: Path) -> None:
        self.tokenizer = load_tokenizer(folder / _TOKENIZER)

    def batches(self) -> WindowBatches:
        text, context, rows = self._texts[0], self.config.context, self.config.batch
        ids, seed = self.encode_corpus(text), self.run.seed
        return WindowBatches(ids, seed=seed, origin=text.origin, context=context, rows=rows)

    def model(self) -> Model:
        vocab, parts = len(self.tokenizer), self.parts()
        return build_language_model(self.config.model, vocab=vocab, parts=parts)

    def check_model(self, model: Model) -> None:
        reason = model.core.unsupported_slide_reason
        if self.config.sample.context == "slide" and reason is not None:
            raise UserError(f"sample.context must be restart or last, since {reason}, got slide")

    def describe(self) -> str:
        return f"{len(self.tokenizer):,} tokens, context {self.config.context}"

    def metrics(self, inference: ActiveModel, dataset: Dataset[Corpus]) -> dict[str, Any]:
        return self._describe(dataset, mean_nll(inference.model, self._windows(dataset, rows=64)))

    def results(self, inference: ActiveModel, dataset: Dataset[Corpus]) -> Results:
        """Return the metrics of a text, and those of its lines or documents."""
        rows = max(1, COSTS_AT_ONCE // self.config.context)
        windows, model = self._windows(dataset, rows), inference.model
        costs = np.concatenate([token_costs(model, None, batch.target) for batch in windows])
        scores = self._describe(dataset, float(costs.mean()))
        sizes = measure_examples(dataset.data, self.tokenizer, self.encode_text)
        if sizes is None:
            return Results(scores, lambda _indices: {})
        tokens, num_bytes = sizes
        tokens[0] -= 1  # the first token is only read
        example_of = np.repeat(np.arange(len(tokens)), tokens)
        sums = np.bincount(example_of, weights=costs, minlength=len(tokens))

        def rescore(rows: Sequence[int]) -> dict[str, float]:
            chosen = np.asarray(rows)
            count = int(tokens[chosen].sum())
            if not count:
                return {}
            size = int(num_bytes[chosen].sum()) if "bits_per_byte" in scores else None
            return _scores(float(sums[chosen].sum()) / count, count, size)

        return Results(scores, rescore)

    def _windows(self, dataset: Dataset[Corpus], rows: int) -> Iterator[WindowBatch]:
        """Yield the batches of a text, in order."""
        ids, origin, context = dataset.targets.ids, dataset.origin, self.config.context
        batches = WindowBatches(
            ids, origin=origin, context=context, rows=rows, seed=0, is_fixed=True
        )
        for indices in track(batches.plan(0), "windows"):
            yield batches.collate(0, indices)

    def _describe(self, dataset: Dataset[Corpus], nll: float) -> dict[str, Any]:
        """Return the metrics of a text from its mean nll, with its tokens and signature."""
        (ids, num_bytes), config = dataset.targets, self.config
        count, size = len(ids) - 1, len(self.tokenizer)
        unknown = np.count_nonzero(ids == self.tokenizer.specials.unk)
        signature = f"{count:,} tokens in windows of {config.context}, {config.tokenizer.kind}, "
        signature += f"vocabulary of {size}"
        if num_bytes is None:
            signature += "; no bits per byte: the tokens do not give the text back"
        others = {"unknown_tokens": 100 * unknown / len(ids), "tokens": count}
        return _scores(nll, count, num_bytes) | others | {"signature": signature}

    def encode_text(self, text: str) -> NDArray[np.int32]:
        return np.asarray(self.tokenizer.encode(self._with_ends(text)), np.int32)

    def encode_corpus(self, corpus: Corpus) -> NDArray[np.int32]:
        """Return the ids of a text of any size, with EOS after each document, in a temporary file
        if they are many."""
        store, eos = NumberStore(np.int32), self.tokenizer.specials.eos
        for block in track(corpus, "characters to tokenize", len(corpus)):
            store.append(self.encode_text(block))
            if corpus.has_documents and eos is not None:
                store.append(np.array([eos], np.int32))
        return store.array()

    def input_column(self, path: Path) -> str:
        return "text"

    def token_labels(self, text: str) -> list[str]:
        return self.tokenizer.tokens(self._with_ends(text), Ends(self.before))

    def preprocess(self, given: str, number: int) -> list[Prompt]:
        ids = self.encode_text(given).tolist()
        if not ids and not self.before:
            raise UserError(f"input {number} is empty: there is nothing to continue")
        self.notify_unknown(self.tokenizer, ids, self._with_ends(given), number)
        return [Prompt(given, [*self.before, *ids], number)]

    def encode_scored(self, given: Any, number: int) -> list[TeacherInputs]:
        """Return the windows of a text, as `evaluate` reads a file of it alone; of a document,
        with EOS before it and after it, as between documents of training."""
        if not isinstance(given, str):
            raise UserError(f"input {number} must be a text, got {type(given).__name__}")
        own, context, end = self.encode_text(given).tolist(), self.config.context, self.document_end
        if not own:
            raise UserError(f"input {number} is empty: there is nothing to score")
        ids = [*self.before, *own] if end is None else [*self.before, *own, end]
        windows = []
        unknown = sum(token == self.tokenizer.specials.unk for token in own)
        for begin in range(0, max(1, len(ids) - 1), context):
            windows.append(TeacherInputs(None, ids[begin : begin + context + 1], unknown))
            unknown = 0  # counted with the first window
        return windows

    def shorten_embedded(self, value: str) -> str:
        """Return the beginning of a text that fits into the model's window."""
        window, before = self._window, len(self.before)
        while window is not None and (count := before + len(self.encode_text(value))) > window:
            value = value[: min(len(value) - 1, len(value) * window // count)]
        return value

    def preprocess_embedded(self, given: str, number: int) -> list[Prompt]:
        if not given:
            raise UserError(f"input {number} is empty: it has no vector")
        (row,) = self.preprocess(given, number)
        self._check_window(row, "; --on-bad truncate cuts such texts, skip leaves them out")
        return [row]

    def embed(
        self, pooling: str, inference: ActiveModel, rows: Sequence[Prompt], *_: Any
    ) -> Tensor:
        """Return the mean of the last hidden states of the tokens of each text."""
        # Of the last token of a target only the prediction counts, as in `log_prob`.
        target = pad([[*row.ids, 0] for row in rows]).to(device_of(inference.model))
        hidden = inference.model.hidden(target=target)
        return MeanPooling()(Padded(hidden, target.lengths - 1))

    def forward(
        self, inference: ActiveModel, rows: Sequence[Prompt], trace: Trace | None = None
    ) -> list[_Continuation]:
        """Return a continuation of each text, and its tokens' mean log-probability (unfiltered)."""
        self.check_model(inference.model)
        prompts, sampling = [row.ids for row in rows], self.config.sample
        # Inputs of one number, in two calls, have other random numbers if their texts differ.
        seeds = [sampling.seed * 1_000_003 + row.number + crc32(row.text.encode()) for row in rows]
        engine, banned = inference.engine_for(traced=trace is not None), self.banned
        rules = make_rules(sampling, tokenizer=self.tokenizer)
        options: Any = {"window": self._read_window, "banned": banned, "rules": rules}
        generated = engine.generate(prompts, sampling, seeds=seeds, trace=trace, **options)
        outputs = []
        # The pass for the scores belongs to no sample.
        with nullcontext() if trace is None else trace.segment([]):
            for ids, found in zip(prompts, generated, strict=True):
                tokens = self._until_eos(found)
                text = self.tokenizer.decode([*ids, *tokens])[len(self.tokenizer.decode(ids)) :]
                score = self._mean_log_p(inference.model, ids, tokens)
                outputs.append(_Continuation(text, score, tokens))
        return outputs

    def partial_text(self, row: Prompt, tokens: Sequence[int]) -> str:
        text = self.tokenizer.decode_prefix([*row.ids, *self._until_eos(tokens)])
        return text[len(self.tokenizer.decode(row.ids)) :]

    def postprocess(self, example: Example) -> Answer:
        (output,) = example.outputs
        ranked, tokens = Ranked(output.text, output.score), output.tokens
        return Answer(
            output.text,
            ranked._asdict(),
            [one_line(output.text)],
            [ranked],
            num_tokens=len(tokens),
            is_finished=self.tokenizer.specials.eos in tokens,
        )

    def forward_for_look(
        self, inference: ActiveModel, rows: Sequence[Prompt], trace: Trace | None = None
    ) -> list[None]:
        """Read each text without continuing it; show the most likely token after the last."""
        for row, prompt in enumerate(rows):
            _, ids, number = prompt
            if len(ids) < 2:
                raise UserError(f"input {number} must have at least two tokens, got {len(ids)}")
            self._check_window(prompt)
            if trace is not None:
                trace.begin_segment([row])
                outputs, banned = [[*ids, UNWRITTEN]], [*self.banned]
                trace_outputs(inference.model, None, outputs, trace, banned=banned)
        return [None] * len(rows)

    def read_output(
        self, inference: ActiveModel, row: Prompt, output: _Continuation, trace: Trace
    ) -> None:
        """Read a text and its continuation, each context of it in one pass."""
        sampling, window = self.config.sample, self._read_window
        if sampling.context == "slide" and not self._is_one_pass([*row.ids, *output.tokens]):
            raise UserError(
                f"input {row.number} and its continuation slid out of the context of {window} "
                "tokens, so that they cannot be read again"
            )
        for number, ids in enumerate(contexts(row.ids, output.tokens, sampling, window)):
            if number:
                trace.begin_segment()
            trace_outputs(inference.model, None, [ids], trace)

    def _is_one_pass(self, ids: Sequence[int]) -> bool:
        """Return True if each token is computed from all before it: the last one is not read."""
        return self._read_window is None or len(ids) <= self._read_window + 1

    def sample(self, inference: ActiveModel, example: Example, i: int) -> Sample:
        text, output = example.rows[i].text, example.outputs[i]
        if output is not None:
            return Sample(title=f"{text.strip()} -> {output.text}", tokens=self.tokenizer.tokens)
        return Sample(
            title=text.strip(), tokens=self.tokenizer.tokens, decoder_input=self.token_labels(text)
        )

    def log_prob(self, model: Any, example: Example, i: int) -> Tensor:
        """Return log p of the text's tokens after the first, with nothing after the last."""
        # Of the last token of a target only the prediction counts: with one more, every token of
        # the text is read.
        target = pad([[*example.rows[i].ids, 0]]).to(device_of(model))
        log_p = model(target=target)[0, :-1].float().log_softmax(-1)
        return log_p.gather(1, target.items[0, 1:-1, None]).sum()

    def explain(
        self, inference: ActiveModel, example: Example, i: int, sample: Sample
    ) -> SampleMaps | None:
        """Return contributions of a Transformer's parts to the logits after the first token."""
        model, row, output = inference.model, example.rows[i], example.outputs[i]
        if not isinstance(model.core, Transformer):
            return None
        ids, tokens = row.ids, self.token_labels(row.text)[1:]
        if output is not None:
            ids, tokens = [*row.ids, *output.tokens], None
            if not self._is_one_pass(ids):
                return None
        target = pad([ids]).to(device_of(model))
        return explain_tokens(model, None, target, sample, tokens=tokens)

    @property
    def banned(self) -> tuple[int, ...]:
        """Ids that are never generated: EOS only if the training data has documents."""
        return tuple(number for number in self.tokenizer.banned if number != self.document_end)

    @property
    def document_end(self) -> int | None:
        """EOS, if it ends the texts of the training data, which are then documents."""
        train = self.config.data.train
        is_of_documents = train is not None and has_documents(train[0])
        return self.tokenizer.specials.eos if is_of_documents else None

    @property
    def before(self) -> tuple[int, ...]:
        """Ids before a text: EOS if the texts of training are documents."""
        end = self.document_end
        return self.tokenizer.text_ends.before if end is None else (end,)

    def _check_window(self, row: Prompt, remedy: str = "") -> None:
        """Raise UserError for a text that is longer than the model's window."""
        if self._window is not None and len(row.ids) > self._window:
            size = f"{len(row.ids)} tokens, more than the context of {self._window}"
            raise UserError(f"input {row.number} has {size}{remedy}")

    @property
    def _window(self) -> int | None:
        """Maximum number of tokens of the core; None for recurrent cores (state of fixed size)."""
        return None if isinstance(self.config.model.core, RecurrentConfig) else self.config.context

    @property
    def _read_window(self) -> int | None:
        """Maximum number of tokens that are read for the next one."""
        # The state of a recurrent core is never full; with `last`, it too reads only the context.
        is_last = self.config.sample.context == "last"
        return self.config.context if is_last else self._window

    def _until_eos(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the tokens up to the first EOS, if there is one."""
        eos = self.tokenizer.specials.eos
        return tokens[: tokens.index(eos) + 1] if eos in tokens else tokens

    @torch.no_grad()
    def _mean_log_p(self, model: Any, ids: list[int], tokens: Sequence[int]) -> float:
        last = pad([[*ids, *tokens][-(self.config.context + 1) :]])
        logits = model(target=last.to(device_of(model))).float().log_softmax(-1).cpu()
        count = min(len(tokens), last.items.shape[1] - 1)
        return float(logits.gather(2, last.items[:, 1:, None])[0, -count:, 0].mean())

    def _with_ends(self, text: str) -> str:
        return text if self.tokenizer.keeps_space else _mark_line_ends(text)

    @cached_property
    def _texts(self) -> tuple[Corpus, Corpus]:
        """Training and validation text, with a notice if that is held out."""
        data = self.config.data
        text = self._generate("train") if data.train is None else self._read(data.train, "train")
        if data.val is not None:
            return text, self._read(data.val, "val")
        share, origin, count = data.val_share, text.origin, len(text)
        cut = int(count * (1 - share))
        if not 0 < cut < count:
            cut = last_part(count, share, origin=origin, noun="characters")
        cut = text.find_cut(cut)
        train, val = text.part(0, cut), text.part(cut, count)
        val.notes = ()
        if data.train is not None:
            last = f"{sum(1 for _ in val):,} documents" if text.has_documents else "ones"
            noun = f"characters, the last {last},"
            val.notes = (describe_held_out(count - cut, count, share, origin=origin, noun=noun),)
        return train, val

    def _read(self, paths: Sequence[str], split: str) -> Corpus:
        train = self.config.data.train
        text = read_corpus(*paths, config=self.config.data, split=split)
        is_of_texts = self.run.origin is None if train is None else not has_documents(train[0])
        if split != "train" and text.has_documents and is_of_texts:
            raise UserError(
                f"{text.origin}: has documents, but the run is trained on a text, in which they do "
                f"not end: --data.{split} must be a text file; `regard score` takes each by itself."
            )
        return text

    def _generate(self, split: str) -> Corpus:
        name, seed = self.config.data.built_in, self.run.seed
        text = _dates(split, seed) if name == "dates" else make_chases(split, seed)
        return make_corpus(text, name if split == "train" else f"{name}, {len(text):,} characters")


def _mark_line_ends(text: str) -> str:
    return text.replace("\n", " <eos> ")


def _scores(nll: float, tokens: int, num_bytes: int | None) -> dict[str, float]:
    """Return the metrics of tokens from their mean nll, and the size of their text, if known."""
    bits = nll / math.log(2)
    scores = {"nll": nll, "perplexity": math.exp(min(nll, 100.0)), "bits_per_token": bits}
    return scores if num_bytes is None else scores | {"bits_per_byte": bits * tokens / num_bytes}


def _dates(split: str, seed: int) -> str:
    """Return lines such as: 3 maart 2019 = 2019-03-03."""
    generator = dates.DatesDataset(DatesConfig(epoch_size=3000, test_size=300), seed=seed)
    return "".join(f"{example.text} = {example.iso}\n" for example in generator.examples(split))
