"""Recipe `translate`: sequence-to-sequence models of the user's own text pairs, scored by BLEU."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from regard.data.batches import EncodedPairs
from regard.data.text.pairs import Pairs, add_references, read_split
from regard.data.tokenizer import Tokenizer, train_tokenizers
from regard.decode.hypothesis import Hypothesis
from regard.decode.mbr import SamplingRules, rank_by_utility
from regard.decode.rules import TokenRules
from regard.errors import UserError
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.recipe import Dataset, FileRecipe, Prompt
from regard.recipes.base.text_to_text import TextToTextRecipe
from regard.recipes.metrics.text import bleu, chrf, further_scores
from regard.recipes.translate.config import TranslateRunConfig
from regard.recipes.translate.glossary import find_terms
from regard.trace import Trace


class TranslateRecipe(TextToTextRecipe[TranslateRunConfig], FileRecipe[TranslateRunConfig]):
    """Recipe of sequence-to-sequence models."""

    metric = "bleu"

    def read_split(self, split: Any) -> Pairs:
        data = self.config.data
        pairs = read_split(data, split)
        if split != "test":
            return pairs
        return add_references(pairs, data.references, data.encoding)

    def generate(self, split: str) -> Pairs:
        raise UserError(f"--data.{split} must be a file, a folder or a data set (hf:NAME)")

    def hold_out(self, train: Pairs) -> tuple[Pairs, Pairs]:
        return self.split_off(train, "pairs", groups=train.sources)

    def text_scores(
        self, outputs: Sequence[str], references: Sequence[Sequence[str]], *, is_test: bool
    ) -> dict[str, Any]:
        scores, decode = bleu(outputs, references, self.config.bleu), self.config.decode
        if decode.method == "mbr":
            scores["signature"] += f"; minimum Bayes risk of {decode.num_samples} samples"
        return scores | further_scores(outputs, references) if is_test else scores

    def check_progress(self) -> None:
        super().check_progress()
        if self.config.decode.method == "mbr" or self.config.decode.glossary is not None:
            raise UserError("tokens can be read while decoding only without glossary and mbr")

    def token_rules(self, rows: Sequence[Prompt]) -> TokenRules:
        rules, path = super().token_rules(rows), self.config.decode.glossary
        if self.config.decode.method == "mbr":
            generator = torch.Generator("cpu").manual_seed(1)  # for each text anew
            return SamplingRules(**vars(rules), generator=generator)
        if path is None:
            return rules
        texts, sides = [row.text for row in rows], (self.source_tokenizer, self.tokenizer)
        terms = find_terms(path, self.config.data, texts, source=sides[0], target=sides[1])
        return dataclasses.replace(rules, glossary=terms)

    def forward(
        self, inference: ActiveModel, rows: Sequence[Prompt], trace: Trace | None = None
    ) -> list[list[Hypothesis]]:
        decode = self.config.decode
        if decode.method == "beam":
            return super().forward(inference, rows, trace)
        if trace is not None:
            raise UserError("a search is shown with decode.method beam, got mbr")
        greedy, ranked = self.change({"beam": 1, "n_best": 1}), []
        for row in rows:
            found = TextToTextRecipe.forward(greedy, inference, [row] * decode.num_samples)
            samples = [sample for sample, *_ in found]
            texts = [self.tokenizer.decode(sample.tokens) for sample in samples]
            best = rank_by_utility(samples, texts, lambda one, other: chrf([one], [[other]]))
            ranked.append(best[: decode.n_best])
        return ranked

    def fit_tokenizers(self, train: Dataset[Pairs]) -> tuple[Tokenizer, Tokenizer]:
        pairs, config = train.data, self.config.tokenizer
        return train_tokenizers(pairs.sources, pairs.targets, config, origin=pairs.origin)

    def training_pairs(self) -> tuple[EncodedPairs, str]:
        return self.read_encoded(self.train).targets, self.train.origin
