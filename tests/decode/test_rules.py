"""Rules of outputs: against all outputs, and against the processors of Transformers."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers.generation import logits_process as hf

from regard.attention.masks import Padded
from regard.data.config import TokenizerConfig
from regard.data.tokenizer import TrainedTokenizer
from regard.decode.beam import beam
from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.greedy import greedy
from regard.decode.rules import NO_RULES, TokenRules, make_rules
from regard.errors import UserError
from tests.decode.toys import BOS, EOS, IDS, HashStepper, TreeStepper, padded

VOCAB, MOST = 6, 4
WORDS = (1, 4, 5)
"""Tokens of outputs: the others are PAD, BOS and EOS."""


def obeys(words: tuple[int, ...], rules: TokenRules, *, is_finished: bool) -> bool:
    """Return True if the tokens of an output obey the rules that forbid some."""
    size = rules.no_repeat_ngram_size
    ngrams = [words[i : i + size] for i in range(len(words) - size + 1)] if size else []
    is_short = is_finished and len(words) < rules.min_length
    start = (*words, *([EOS] if is_finished else []))[: len(rules.target_prefix)]
    if is_short or len(ngrams) > len(set(ngrams)) or start != rules.target_prefix:
        return False
    return not any(occurs(word, words) for word in rules.bad_words)


def occurs(word: tuple[int, ...], output: Sequence[int]) -> bool:
    return any(tuple(output[i : i + len(word)]) == word for i in range(len(output)))


def every_output(source: Padded, rules: TokenRules, alpha: float) -> list[tuple[float, tuple]]:
    """Return score and ids of all outputs that obey, best first."""
    outputs = [
        (*words, EOS) for count in range(MOST) for words in itertools.product(WORDS, repeat=count)
    ]
    outputs += list(itertools.product(WORDS, repeat=MOST))
    found, stepper, penalty = [], HashStepper(VOCAB, spread=1.2), rules.repetition_penalty
    for output in outputs:
        is_finished, total, state = output[-1] == EOS, 0.0, stepper.start(source)
        words = output[:-1] if is_finished else output
        if not obeys(words, rules, is_finished=is_finished):
            continue
        for time, (before, token) in enumerate(itertools.pairwise((BOS, *output))):
            logits, state = stepper.step(torch.tensor([before]), state)
            logit = float(logits[0, token])
            total += float(logits[0].double().log_softmax(-1)[token])
            if token in output[:time]:
                total += (logit * penalty if logit < 0 else logit / penalty) - logit
        found.append((total / len(output) ** alpha, output))
    return sorted(found, key=lambda pair: -pair[0])


RULES = {
    "min_length": TokenRules(eos=EOS, min_length=2),
    "unigrams": TokenRules(no_repeat_ngram_size=1),
    "bigrams": TokenRules(no_repeat_ngram_size=2),
    "penalty": TokenRules(repetition_penalty=3.0),
    "bad_words": TokenRules(bad_words=((5,), (4, 1), (1, 1, 4))),
    "target_prefix": TokenRules(target_prefix=(4, 4)),
    "all": TokenRules(
        eos=EOS,
        min_length=3,
        no_repeat_ngram_size=2,
        repetition_penalty=1.5,
        target_prefix=(4,),
        bad_words=((4, 5), (5, 5)),
    ),
}


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_beam_finds_the_best_of_all_outputs_that_obey(rules: TokenRules, alpha: float) -> None:
    for sentence in ([5, 4, 6], [4]):
        source = padded([sentence])
        expected = every_output(source, rules, alpha)
        assert expected != every_output(source, NO_RULES, alpha)
        count = len(expected)
        (found,) = beam(
            HashStepper(VOCAB, spread=1.2),
            source,
            beam=121,
            n_best=121,
            max_length=MOST,
            length_penalty=alpha,
            token_rules=rules,
            **IDS,
        )
        ids = [(*best.tokens, *([EOS] if best.finished else [])) for best in found]
        assert ids == [output for _, output in expected]
        assert [best.score for best in found] == pytest.approx([s for s, _ in expected], rel=1e-4)
        assert count == len(found)


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_greedy_of_rows_that_end_at_different_steps_equals_one_by_one(rules: TokenRules) -> None:
    sentences, most = [[5, 4, 6], [4], [6, 6, 5, 4, 5], [5, 5]], [7, 3, 9, 5]
    options: Any = {"token_rules": rules, **IDS}
    together = greedy(HashStepper(11), padded(sentences), max_length=most, **options)
    for sentence, limit, found in zip(sentences, most, together, strict=True):
        alone = greedy(HashStepper(11), padded([sentence]), max_length=limit, **options)
        assert alone[0][0].tokens == found[0].tokens
        assert obeys(tuple(found[0].tokens), rules, is_finished=found[0].finished)


def _processors() -> dict[str, tuple[TokenRules, Any]]:
    return {
        "penalty": (
            TokenRules(repetition_penalty=1.7),
            hf.RepetitionPenaltyLogitsProcessor(1.7),
        ),
        "unigrams": (TokenRules(no_repeat_ngram_size=1), hf.NoRepeatNGramLogitsProcessor(1)),
        "trigrams": (TokenRules(no_repeat_ngram_size=3), hf.NoRepeatNGramLogitsProcessor(3)),
        "bad_words": (
            TokenRules(bad_words=((1, 2), (3,), (0, 2), (2, 1, 1))),
            hf.NoBadWordsLogitsProcessor([[1, 2], [3], [0, 2], [2, 1, 1]]),
        ),
        "min_length": (
            TokenRules(eos=EOS, min_length=4),
            hf.MinLengthLogitsProcessor(4, EOS),
        ),
    }


@pytest.mark.parametrize("name", _processors())
def test_rules_change_logits_as_the_processors_of_transformers(name: str) -> None:
    rules, processor = _processors()[name]
    for time in range(9):
        logits, past = torch.randn(30, 7), torch.randint(0, 4, (30, time))
        logits[:, 5] = -math.inf
        actual = logits.clone()
        rules.apply(actual, logits, past)
        torch.testing.assert_close(actual, processor(past, logits.clone()))
        log_probs = logits.log_softmax(-1)
        rules.apply(log_probs, logits, past)
        torch.testing.assert_close(log_probs - log_probs[:, 4:5], actual - actual[:, 4:5])


def _tokenizer(kind: Any, **options: Any) -> TrainedTokenizer:
    texts = ["a dog barks at the dog", "an old dog, a cat"] * 3
    config = TokenizerConfig(kind=kind, vocab_size=60)
    return TrainedTokenizer.train(texts, config, **options)


def test_words_have_the_ids_of_running_text() -> None:
    for kind in ("bpe", "word", "char"):
        tokenizer = _tokenizer(kind)
        config = DecodeConfig(bad_words=("old dog", "cat"), target_prefix="a dog")
        rules = make_rules(config, eos=EOS, tokenizer=tokenizer)
        assert [tokenizer.decode(ids) for ids in rules.bad_words] == ["old dog", "cat"]
        assert tokenizer.encode("a dog barks")[: len(rules.target_prefix)] == [*rules.target_prefix]
    tokenizer = _tokenizer("bpe", keeps_space=True)
    rules = make_rules(SampleConfig(bad_words=("dog",)), tokenizer=tokenizer)
    assert [tokenizer.decode(ids) for ids in rules.bad_words] == ["dog", " dog"]
    assert rules.bad_words[1] == tuple(tokenizer.encode("a dog")[1:])


def test_punctuation_is_forbidden_after_a_space_and_after_a_word() -> None:
    tokenizer = _tokenizer("bpe")
    rules = make_rules(DecodeConfig(bad_words=(",",)), eos=EOS, tokenizer=tokenizer)
    for text in ("an old dog, a cat", "an old dog , a cat", ", a cat"):
        ids = tokenizer.encode(text)
        assert any(occurs(word, ids) for word in rules.bad_words)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bad_words": ("zoo",)}, "bad_words: 'zoo' is never written, .* lacks 'z'"),
        ({"bad_words": ("  ",)}, "bad_words: a text must have tokens, got '  '"),
        ({"target_prefix": "a zoo"}, "target_prefix: 'a zoo' is never written, .* lacks 'z'"),
    ],
)
def test_words_that_cannot_be_are_named(settings: dict[str, Any], message: str) -> None:
    config = DecodeConfig(**settings)
    with pytest.raises(UserError, match=message):
        make_rules(config, eos=EOS, tokenizer=_tokenizer("bpe"))
    with pytest.raises(ValueError, match="are texts: give `rules`, with their ids"):
        make_rules(config, eos=EOS)


def test_rules_that_leave_no_token_are_named() -> None:
    rules = TokenRules(eos=EOS, min_length=3, no_repeat_ngram_size=1)
    stepper = TreeStepper({(): {4: 1.0}, (4,): {4: 0.6, EOS: 0.4}}, vocab=5)
    expected = "got none at step 2 of sentence 0; relax one of .*: min_length, no_repeat"
    with pytest.raises(UserError, match=expected):
        greedy(stepper, padded([[4]]), max_length=5, token_rules=rules, **IDS)
    with pytest.raises(UserError, match="got none in sentence 0; relax one of the rules"):
        beam(stepper, padded([[4]]), beam=2, max_length=5, token_rules=rules, **IDS)
    with pytest.raises(UserError, match="max_length must be above 3, the tokens of target_prefix"):
        DecodeConfig(max_length=3).limit(9, 3)
    assert DecodeConfig(max_ratio=0, max_extra=1).limit(9, 3) == 4
