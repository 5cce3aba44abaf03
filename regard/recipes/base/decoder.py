"""Base class of recipes that search for a sequence of tokens: text to text, image to text."""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.data.batches import pad
from regard.data.tokenizer import Ends, Tokenizer
from regard.decode.config import DecodeConfig
from regard.decode.hypothesis import Hypothesis, Rules
from regard.decode.progress import check_beam
from regard.decode.rules import TokenRules, make_rules
from regard.decode.teacher import trace_outputs
from regard.look.maps import SampleMaps
from regard.look.measures import decoder_contribution_map
from regard.look.sample import Sample
from regard.models.cores.config import max_length_of
from regard.models.cores.transformer import Transformer
from regard.models.decoder_terms import explain_decoder
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.answers import GeneratedText
from regard.recipes.base.recipe import (
    Answer,
    ConfigT,
    Dataset,
    Example,
    Ranked,
    Recipe,
    Results,
    one_line,
)
from regard.recipes.base.scoring import device_of
from regard.recipes.metrics.text import exact_match
from regard.trace import Trace


class DecoderRecipe(Recipe[ConfigT]):
    """Recipe whose output for a row is a list of hypotheses, best first."""

    decodes = True
    columns: Mapping[str, type] = {"target": str, "score": float}
    tokenizer: Tokenizer
    """Tokenizer of outputs."""

    def measure(self, model: nn.Module) -> dict[str, float]:
        greedy: Any = self.change({"decode": {"beam": 1, "n_best": 1}})
        limit = self.settings.val_sample  # of decoded examples; the loss is that of all
        scores = greedy.results(self.inference(model), self.encoded_val, limit=limit).scores
        return {name: scores[name] for name in (self.metric, "nll", "perplexity")}

    @abstractmethod
    def text_scores(
        self, outputs: Sequence[str], references: Sequence[Sequence[str]], *, is_test: bool
    ) -> dict[str, Any]:
        """Return the metrics of outputs and their signature.

        references: of each output, in the form in which outputs are written.
        is_test:    compute the metrics that do not select a checkpoint, too.
        """

    def metrics(self, inference: ActiveModel, dataset: Dataset[Any]) -> dict[str, Any]:
        return self.results(inference, dataset).scores

    @abstractmethod
    def results(
        self, inference: ActiveModel, dataset: Dataset[Any], *, limit: int | None = None
    ) -> Results:
        """Return the metrics of the first `limit` examples; their loss is that of all."""

    def score_outputs(
        self,
        outputs: Sequence[str],
        references: Sequence[Sequence[str]],
        nll: float,
        *,
        is_test: bool,
    ) -> Results:
        """Return `text_scores`, and nll and perplexity per target token.

        An output has the Unicode form, case and white space of the tokenizer, so the references get
        them, too; the signature names these.
        """
        form, decode = self.tokenizer.config, self.settings.decode
        normal = [[self.tokenizer.normalize(text) for text in own] for own in references]
        scores = self.text_scores(outputs, normal, is_test=is_test)
        case = ", lowercased" if form.lowercase else ""
        scores |= {
            "signature": f"{scores['signature']}; references normalized: {form.normalize}{case}",
            "nll": nll,
            "perplexity": math.exp(min(nll, 100.0)),
        }
        if getattr(decode, "method", "beam") == "beam":
            scores |= {"beam": decode.beam, "length_penalty": decode.length_penalty}

        def rescore(rows: Sequence[int]) -> dict[str, float]:
            if "exact_match" not in scores:
                return {}
            found, own = [outputs[i] for i in rows], [normal[i] for i in rows]
            return {"exact_match": exact_match(found, own)}

        return Results(scores, rescore, outputs, normal)

    def search_config(self) -> DecodeConfig:
        """Return the settings of the search, limited to the number of learned positions."""
        decode, limit = self.settings.decode, max_length_of(self.settings.model.core)
        if limit is None:
            return decode
        return dataclasses.replace(decode, max_length=min(decode.max_length, limit))

    def search_ids(self) -> dict[str, Any]:
        """Return the first input of a decoder, the id that ends an output, and padding."""
        own = self.tokenizer.specials
        return {"bos": own.start, "eos": own.eos, "pad": own.pad}

    def token_rules(self, rows: Sequence[Any]) -> TokenRules:
        """Return the rules of outputs of rows in ids. Raises UserError for a word without ids."""
        eos = self.search_ids()["eos"]
        return make_rules(self.search_config(), eos=eos, tokenizer=self.tokenizer)

    def check_progress(self) -> None:
        check_beam(self.settings.decode.beam)

    def partial_text(self, row: Any, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode_prefix(tokens)

    def postprocess(self, example: Example) -> Answer:
        empty = Hypothesis(tokens=[], score=0.0, log_prob=0.0, finished=True)
        outputs: list[GeneratedText] = []
        ranked, num_tokens = [], 0
        for found in example.outputs[0] if example.outputs else [empty]:
            text = self.tokenizer.decode(found.tokens)
            ranked.append(Ranked(text, found.score))
            output: GeneratedText = {
                "text": text,
                "score": found.score,
                "log_prob": found.log_prob,
                "finished": found.finished,
            }
            outputs.append(output)
            num_tokens += len(found.tokens)
        best, is_finished = ranked[0].text, outputs[0]["finished"]
        json = {"outputs": outputs}
        return Answer(best, json, [one_line(best)], ranked, num_tokens, is_finished)

    def describe_sample(self, title: str, **options: Any) -> Sample:
        """Return the description of a row; the search records the tokens of the output."""
        return Sample(
            title=title,
            tokens=self.tokenizer.tokens,
            text=self.tokenizer.decode,
            begin=self.tokenizer.labels[self.search_ids()["bos"]],
            **options,
        )

    def read_output(
        self, inference: ActiveModel, row: Any, output: Sequence[Hypothesis], trace: Trace
    ) -> None:
        model, (bos, eos, pad) = inference.model, self.search_ids().values()
        rules = Rules(bos=bos, eos=eos, banned=(pad, bos))
        outputs = [[bos, *own.tokens, *([eos] if own.finished else [])] for own in output]
        source, likely = self.collate([row]).to(device_of(model)), 2 * self.settings.decode.beam
        trace_outputs(model, source, outputs, trace, log_probs=rules.log_probs, likely=likely)

    def log_prob(self, model: Any, example: Example, i: int) -> Tensor:
        source, target = self._teacher_inputs(model, example, i)
        log_probs = model(source, target)[0].float().log_softmax(-1)
        return log_probs.gather(1, target.items[0, 1:, None]).sum()

    def explain(
        self, inference: ActiveModel, example: Example, i: int, sample: Sample
    ) -> SampleMaps | None:
        model = inference.model
        if not isinstance(model.core, Transformer):
            return None
        return explain_tokens(model, *self._teacher_inputs(model, example, i), sample)

    def _teacher_inputs(self, model: Any, example: Example, i: int) -> tuple[Any, Padded]:
        """Return a row's source and best output, with EOS if finished, as the model's inputs."""
        best: Hypothesis = example.outputs[i][0]
        bos, eos, _ = self.search_ids().values()
        target = pad([best.tokens], Ends((bos,), (eos,) if best.finished else ()))
        device = device_of(model)
        return self.collate([example.rows[i]]).to(device), target.to(device)


def explain_tokens(
    model: Any, source: Any, target: Padded, sample: Sample, *, tokens: Sequence[str] | None = None
) -> SampleMaps:
    """Return the contributions of the parts of a decoder to the logits of output tokens.

    target: BOS, or the first token, and the output tokens; further ones are ignored.
    tokens: labels of the output tokens; by default those of the sample's steps.
    """
    found = explain_decoder(model, source, target)
    if tokens is None:
        tokens = [step.token for step in sample.steps]
    terms, bias = found.terms[0, :, : len(tokens)], found.bias[0, : len(tokens)]
    return decoder_contribution_map(sample, found.parts, terms, bias, tokens=tokens)
