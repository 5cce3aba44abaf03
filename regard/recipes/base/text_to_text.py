"""Text-to-text recipes (`dates`, `translate`): text pairs, their tokenizers and an encoder-decoder.

run = load("runs/dates")
run.predict(["3 maart 2019"])       ["2019-03-03"]
"""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.data.batches import EncodedPairs, TokenBatches, pad
from regard.data.config import OnBad
from regard.data.text.sources import read_sources
from regard.data.tokenizer import BOS, EOS, PAD, SPECIALS, UNK
from regard.decode.config import DecodeConfig
from regard.decode.hypothesis import Hypothesis
from regard.errors import UserError
from regard.look.maps import SampleMaps
from regard.look.sample import Axis, Sample
from regard.models.build import build
from regard.models.cores.config import max_length_of
from regard.models.cores.transformer import Transformer
from regard.models.model import Model
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.answers import Output, OutputsAnswer
from regard.recipes.base.config import PairsEvaluation, PairsPrediction, defaults_of_run
from regard.recipes.base.entry import Entry
from regard.recipes.base.inputs import Input
from regard.recipes.base.likelihood import explain_tokens
from regard.recipes.base.recipe import (
    ConfigT,
    Examples,
    Prepared,
    Ranked,
    Recipe,
    describe_empty,
    join_items,
)
from regard.recipes.base.run import Run
from regard.recipes.base.scoring import device_of, loss_per_token
from regard.recipes.base.text_pairs import Codec, Texts, filter_by_length
from regard.recipes.metrics.text import Bleu, Metric, further_scores
from regard.trace import Trace

_CHARACTERS_PER_TOKEN = 50
"""An input with more characters than this times the token limit is too long, however it is
tokenized."""
_SAMPLES = 5


class TextToTextRecipe(Recipe[ConfigT]):
    """Text pairs, their tokenizers and an encoder-decoder."""

    codec: Codec
    input_limit: int
    """Maximum length of an input, in tokens."""
    output_limit: int | None
    """Maximum length of an output, the number of learned positions; None if positions are not
    learned."""
    decodes = True

    def __init__(self, run: Run, notify: Callable[[str], None], entry: Entry):
        super().__init__(run, notify, entry)
        self.monitored = (self.metric, "nll", "perplexity")
        self.settings: Any = run.config
        """All settings; those that both recipes have are used here."""

    @abstractmethod
    def scorer(self, options: PairsEvaluation | None = None) -> Metric:
        """Return the metric of outputs, whose name is `metric`, with the options of `evaluate` if
        it has any."""

    @abstractmethod
    def train_codec(self) -> Codec:
        """Train tokenizers on the training texts."""

    @abstractmethod
    def training_pairs(self) -> EncodedPairs | Callable[[int], EncodedPairs]:
        """Return the training pairs, or a function from an epoch to its pairs."""

    def training_origin(self) -> str:
        """Return the name of the training data, for messages."""
        return self.train.origin

    def usable(self, examples: Examples[Any]) -> Examples[Any]:
        if isinstance(examples.data, Texts):  # generated, within the limit
            references = examples.data.targets.__getitem__
            return dataclasses.replace(
                examples, targets=self.codec.encode(examples.data), reference=references
            )
        limits = {"max_length": self.input_limit, "on_bad": cast("OnBad", examples.on_bad)}
        texts, encoded, notes = filter_by_length(examples.data, self.codec, **limits)
        return dataclasses.replace(
            examples,
            data=texts,
            count=len(encoded),
            input=texts.sources.__getitem__,
            reference=texts.targets.__getitem__,
            skipped=notes,
            targets=encoded,
        )

    def learn(self, folder: Path) -> None:
        self.take_over(Codec.load, self.train_codec).save(folder)

    def open(self, folder: Path) -> None:
        self.codec = Codec.load(folder)
        self.input_limit, self.output_limit = (
            self.settings.input_limit,
            max_length_of(self.settings.model.core),
        )

    def batches(self) -> TokenBatches:
        origin, batch_tokens = self.training_origin(), self.settings.train.batch_tokens
        return TokenBatches(
            self.training_pairs(), batch_tokens=batch_tokens, seed=self.run.seed, origin=origin
        )

    def model(self) -> Model:
        return build(
            self.settings.model,
            source_vocab=len(self.codec.source),
            target_vocab=len(self.codec.target),
            label_smoothing=self.settings.train.label_smoothing,
        )

    def describe(self) -> str:
        source, target = self.codec.source, self.codec.target
        if source is target:
            return f"{len(source):,} {source.noun} in a joint vocabulary"
        return f"{len(source):,} source {source.noun} and {len(target):,} target {target.noun}"

    def measure(self, model: nn.Module) -> dict[str, float]:
        options = defaults_of_run(PairsEvaluation, self.config)
        greedy = dataclasses.replace(
            options, decode=dataclasses.replace(options.decode, beam=1, n_best=1)
        )
        limit = self.settings.val_sample
        scores = self.score(self.inference(model), self.usable_val, greedy, limit=limit)
        return {name: scores[name] for name in self.monitored}

    def score(
        self,
        inference: ActiveModel,
        examples: Examples[Texts],
        options: PairsEvaluation,
        *,
        limit: int | None = None,
    ) -> dict[str, Any]:
        texts = examples.data
        pairs = examples.targets
        decode = dataclasses.replace(options.decode, n_best=1)
        sources = [pairs.sources[i].tolist() for i in range(min(limit or len(pairs), len(pairs)))]
        hypotheses = self._search(inference, sources, decode)
        outputs = [self.codec.target.decode(best.tokens) for best, *_ in hypotheses]
        scorer, nll = self.scorer(options), loss_per_token(inference.model, pairs)
        references = texts.all_references()
        rows = list(zip(texts.sources, outputs, texts.targets, strict=False))
        return {
            self.metric: scorer.score(outputs, references[: len(outputs)]),
            **(
                further_scores(outputs, references)
                if isinstance(scorer, Bleu) and limit is None
                else {}
            ),
            "signature": scorer.signature(),
            "nll": nll,
            "perplexity": math.exp(min(nll, 100.0)),
            "beam": decode.beam,
            "length_penalty": decode.length_penalty,
            "samples": [
                dict(zip(("source", "output", "reference"), row, strict=True))
                for row in rows[:_SAMPLES]
            ],
        }

    def read_inputs(self, path: Path, *, skip_bad: bool = False) -> Iterator[Input]:
        given = self.reading
        column = getattr(given, "source_column", None)
        sources = read_sources(
            path,
            "source",
            column=column,
            most=2,
            header=getattr(given, "header", "auto"),
            format=getattr(given, "format", "auto"),
        )
        return (Input(text, str(path), line, problem) for line, text, problem in sources)

    def shorten(self, value: str) -> str:
        text = value.strip()[: self.input_limit * _CHARACTERS_PER_TOKEN]
        return self.codec.source.shorten(text, self.input_limit)

    def prepare(self, inputs: Sequence[str], first: int) -> Prepared:
        prepared, limit = Prepared(len(inputs)), self.input_limit
        empty, unknown = [], {}
        for owner, text in enumerate(inputs):
            ids = (
                []
                if len(text) > limit * _CHARACTERS_PER_TOKEN
                else self.codec.source.encode(text.strip())
            )
            if len(ids) > limit or len(text) > limit * _CHARACTERS_PER_TOKEN:
                size = f"{len(ids):,} tokens" if ids else f"{len(text):,} characters"
                option = (
                    "--max-length" if hasattr(self.settings, "max_length") else "--data.max-length"
                )
                raise UserError(
                    f"input {first + owner} is too long: {size}; the limit is {limit} tokens "
                    f"({option} of the training)"
                )
            if not ids:
                empty.append(first + owner)
                continue
            if UNK in ids:
                unknown[first + owner] = self.codec.source.unknown(text.strip())
            prepared.add(owner, ids, text.strip())
        if empty:
            prepared.notes.append(
                describe_empty(empty, ", and so is its output", ", and so are their outputs")
            )
        if unknown:
            pieces = dict.fromkeys(piece for pieces in unknown.values() for piece in pieces)
            shown = f"{join_items([repr(piece) for piece in pieces])}, in input {join_items(list(unknown))}"
            prepared.notes.append(f"never seen in training, so read as unknown: {shown}")
        return prepared

    def answer(
        self,
        inference: ActiveModel,
        rows: Sequence[list[int]],
        options: PairsPrediction,
        trace: Trace | None = None,
    ) -> list[list[Hypothesis]]:
        return self._search(inference, rows, options.decode, trace)

    def join(
        self, prepared: Prepared, answers: Sequence[list[Hypothesis]], options: PairsPrediction
    ) -> list[list[Output]]:
        results = [[Output("", 0.0, 0.0, finished=True)] for _ in range(prepared.count)]
        for owner, hypotheses in zip(prepared.owner, answers, strict=True):
            results[owner] = [Output.of(h, self.codec.target.decode(h.tokens)) for h in hypotheses]
        return results

    def values(self, answers: list[list[Output]]) -> list[str]:
        return [best.text for best, *_ in answers]

    def rank_texts(self, answer: list[Output]) -> list[Ranked]:
        return [Ranked(output.text, output.score) for output in answer]

    def json(self, answer: list[Output]) -> OutputsAnswer:
        return {"outputs": [output.to_json() for output in answer]}

    def sample(self, inference: ActiveModel, prepared: Prepared, row: int, answers: Any) -> Sample:
        text = prepared.facts[row]
        return Sample(
            title=text,
            axes={
                "source": Axis(
                    labels=(*self.codec.source.tokens(text), SPECIALS[EOS]), kind="token"
                )
            },
            tokens=self.codec.target.tokens,
            text=self.codec.target.decode,
            begin=SPECIALS[BOS],
        )

    def log_prob(
        self, model: Any, prepared: Prepared, row: int, answer: list[Hypothesis]
    ) -> Tensor:
        source, target = self._teacher_inputs(model, prepared, row, answer)
        log_probs = cast("Tensor", model(source, target))[0].float().log_softmax(-1)
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
        return explain_tokens(
            inference.model,
            source,
            target,
            sample,
            tokens=[step.token for step in sample.steps],
            row=row,
            notify=self.notify,
        )

    def _teacher_inputs(
        self, model: Any, prepared: Prepared, row: int, answer: list[Hypothesis]
    ) -> tuple[Padded, Padded]:
        """Return the source and the best output of a row, with EOS if it is finished, as inputs of
        the model."""
        source = pad([[*prepared.rows[row], EOS]]).to(device_of(model))
        end = [EOS] if answer[0].finished else []
        return source, pad([[BOS, *answer[0].tokens, *end]]).to(device_of(model))

    def _search(
        self,
        inference: ActiveModel,
        sources: Sequence[Sequence[int]],
        decode: DecodeConfig,
        trace: Trace | None = None,
    ) -> list[list[Hypothesis]]:
        """Return the best hypotheses for each source, given as ids without EOS."""
        if self.output_limit is not None:
            decode = dataclasses.replace(
                decode, max_length=min(decode.max_length, self.output_limit)
            )
        engine = inference.engine_for(len(sources), traced=trace is not None)
        return engine.search(
            [[*ids, EOS] for ids in sources], config=decode, bos=BOS, eos=EOS, pad=PAD, trace=trace
        )
