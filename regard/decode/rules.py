"""Rules of outputs: amounts that are added to the log-probabilities of the next token.

    log p'(v | x, y) = log p(v | x, y) + a(v, y)        a(v, y) <= 0

    min_length              -inf for EOS while y has fewer tokens
    no_repeat_ngram_size    -inf for v if the last n - 1 tokens of y, and v, are an n-gram in y
    bad_words               -inf for the last token of a word, if y ends with those before it
    target_prefix           -inf for all tokens but the next one of the prefix, and no other rule
    repetition_penalty      z (t - 1) if z < 0, z (1 / t - 1) if z > 0, for v in y: z its logit

y are the tokens so far, with those of a prompt. A greedy search takes the same tokens as by the
logits z t and z / t in place of z.

Amounts do not change the probabilities of other tokens: of all outputs that obey, a search finds
the most likely one under the model. Sampling normalizes them. No amount is positive, so the bound
of `regard.decode.beam` holds.

Source: keskar2019, section 4.1 (penalty; the sign of z as in Transformers); paulus2018, section 2.5
        (n-grams).
"""

import math
from dataclasses import dataclass, fields
from itertools import chain, groupby
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.ops.constants import constant, tensor_of


@dataclass(frozen=True, kw_only=True)
class TokenRules:
    """Rules of outputs, in ids; the defaults are none. Fields have the names of settings."""

    eos: int = 0
    """Id that ends an output; not needed without `min_length`."""
    names: tuple[str, ...] = ()
    """Name of each sentence, for errors."""
    min_length: int = 0
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of ids that do not occur."""
    target_prefix: tuple[int, ...] = ()
    """Ids that an output begins with."""
    glossary: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """Sequences of ids that must occur in the outputs of each sentence (regard.decode.terms)."""

    @property
    def active(self) -> dict[str, Any]:
        """Rules that are not the defaults."""
        found = {field.name: getattr(self, field.name) for field in fields(TokenRules)[2:]}
        default = vars(NO_RULES)
        return {name: value for name, value in found.items() if value != default.get(name)}

    @property
    def ids(self) -> list[int]:
        """All ids in the rules."""
        return [*chain(*self.bad_words, *chain(*self.glossary)), *self.target_prefix, self.eos]

    @property
    def torch_only(self) -> str:
        """Setting that engine torch alone follows, if any."""
        found = self.active.keys() & {"glossary", "method mbr"}
        return f"decode.{found.pop()}" if found else ""

    def name(self, sentence: int) -> str:
        """Return the name of a sentence, for errors."""
        return self.names[sentence] if self.names else f"sentence {sentence}"

    def num_required(self, sentence: int) -> int:
        """Return the number of tokens that the output of a sentence must have."""
        terms = self.glossary[sentence] if self.glossary else ()
        return len(self.target_prefix) + sum(map(len, terms))

    def apply(
        self,
        log_probs: Float[Tensor, "rows vocab"],
        logits: Float[Tensor, "rows vocab"],
        past: Int[Tensor, "rows time"],
    ) -> None:
        """Add the amounts to log-probabilities, or to the logits, in place; past: tokens so far."""
        count, size = past.shape[1], self.no_repeat_ngram_size
        if count < len(self.target_prefix):
            forced = self.target_prefix[count]
            kept = log_probs[:, forced].clone()
            log_probs.fill_(-math.inf)[:, forced] = kept
            return
        if self.repetition_penalty != 1:
            found = logits.gather(1, past).float()
            factor = torch.where(found < 0, self.repetition_penalty, 1 / self.repetition_penalty)
            amounts = (found * (factor - 1)).to(log_probs.dtype)
            log_probs.scatter_(1, past, log_probs.gather(1, past) + amounts)
        if count < self.min_length:
            log_probs[:, self.eos] = -math.inf
        if 0 < size <= count:
            windows = past.unfold(1, size, 1)
            repeats = (windows[..., :-1] == past[:, None, count - size + 1 :]).all(-1)
            _forbid(log_probs, windows[..., -1], repeats)
        for length, words in groupby(sorted(self.bad_words, key=len), len):
            if length <= count + 1:
                ids = constant(tensor_of, tuple(words), device=past.device, dtype=torch.int64)
                begun = (past[:, None, count + 1 - length :] == ids[:, :-1]).all(-1)
                _forbid(log_probs, ids[:, -1].expand(len(past), -1), begun)

    def check(self, logits: Float[Tensor, "rows vocab"]) -> None:
        """Raise UserError if the logits of a row are all minus infinity."""
        if (logits.amax(-1) == -math.inf).any():
            raise self.none_left("")

    def none_left(self, where: str) -> ValueError:
        """Return the error of a step without an allowed token of a probability above 0."""
        rule = f"some allowed token must have a probability above 0, got none{where}"
        if not self.active:
            return ValueError(rule)
        return UserError(f"{rule}; relax one of the rules of outputs: {', '.join(self.active)}")


NO_RULES = TokenRules()


def make_rules(config: Any, *, eos: int = 0, tokenizer: Tokenizer | None = None) -> TokenRules:
    """Return the rules in settings. Raises UserError for words that the tokenizer cannot write."""
    names = ("min_length", "no_repeat_ngram_size", "repetition_penalty")
    values = {name: getattr(config, name) for name in names if hasattr(config, name)}
    texts, start = getattr(config, "bad_words", ()), getattr(config, "target_prefix", None)
    if tokenizer is None:
        if texts or start is not None:
            raise ValueError("bad_words and target_prefix are texts: give `rules`, with their ids")
        return TokenRules(eos=eos, **values)
    words = chain(*[encode_written(tokenizer, "bad_words", text) for text in texts])
    if start is not None:
        values["target_prefix"] = tuple(encode_written(tokenizer, "target_prefix", start)[0])
    return TokenRules(eos=eos, bad_words=tuple(map(tuple, words)), **values)


def encode_written(tokenizer: Tokenizer, name: str, text: str) -> list[list[int]]:
    """Return the ids of a text at the start of an output, and others after a space or a letter.

    Raises: UserError, with the name of the setting, if it is empty or has unknown parts.
    """
    unknown = tokenizer.unknown(text)
    if unknown:
        parts = ", ".join(map(repr, unknown))
        raise UserError(f"{name}: {text!r} is never written, as the vocabulary lacks {parts}")
    first, inner = tokenizer.encode(text), tokenizer.encode(f" {text}")
    if not first:
        raise UserError(f"{name}: a text must have tokens, got {text!r}")
    is_other = inner[-len(first) :] != first and tokenizer.specials.unk not in inner
    found, letter = [first, inner] if is_other else [first], tokenizer.encode("a")
    both = tokenizer.encode(f"a{text}")
    after = both[len(letter) :]
    if not text[0].isalnum() and both == [*letter, *after] and after not in ([], *found):
        found.append(after)
    return found


def _forbid(log_probs: Tensor, tokens: Int[Tensor, "rows count"], is_forbidden: Tensor) -> None:
    """Add minus infinity to the log-probabilities (rows, vocab) of tokens that are forbidden."""
    amounts = torch.zeros_like(tokens, dtype=log_probs.dtype)
    log_probs.scatter_add_(1, tokens, amounts.masked_fill(is_forbidden, -math.inf))
