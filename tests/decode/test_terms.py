"""Terms that must occur: against all outputs, with narrow beams, and their parts by hand."""

import itertools
import random
from typing import Any

import pytest

from regard.decode.beam import beam
from regard.decode.config import DecodeConfig
from regard.decode.rules import TokenRules
from regard.decode.search import search
from regard.decode.terms import Term, advance
from regard.errors import UserError
from tests.decode.test_rules import MOST, VOCAB, every_output, occurs
from tests.decode.toys import BOS, EOS, IDS, PAD, HashStepper, TreeStepper, is_equal, padded

SENTENCES = [[5, 4, 6], [4], [6, 6, 5, 4, 5], [5, 5]]
TERMS: tuple[tuple[Term, ...], ...] = (((4, 5),), ((5,), (1, 4)), (), ((1, 1), (1, 1, 5)))


@pytest.mark.parametrize("rules", [{}, {"target_prefix": (1,)}, {"no_repeat_ngram_size": 2}])
def test_a_wide_beam_finds_the_best_of_all_outputs_with_the_terms(rules: dict[str, Any]) -> None:
    results = beam(
        HashStepper(VOCAB, spread=1.2),
        padded(SENTENCES),
        beam=121,
        n_best=121,
        max_length=MOST,
        token_rules=TokenRules(glossary=TERMS, **rules),
        **IDS,
    )
    for sentence, terms, found in zip(SENTENCES, TERMS, results, strict=True):
        expected = []
        for score, output in every_output(padded([sentence]), TokenRules(**rules), alpha=1.0):
            if all(occurs(term, output) for term in terms):
                expected.append((pytest.approx(score, rel=1e-4), output))
        ids = [(*best.tokens, *([EOS] if best.finished else [])) for best in found]
        assert [(best.score, own) for best, own in zip(found, ids, strict=True)] == expected


@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_narrow_beam_has_all_terms_whatever_their_number(width: int) -> None:
    draw = random.Random(3)
    sentences = [[draw.randrange(4, 11) for _ in range(draw.randint(1, 6))] for _ in range(30)]
    terms: list[tuple[Term, ...]] = []
    for _ in sentences:
        own = {tuple(draw.choices(range(4, 8), k=draw.randint(1, 3))) for _ in range(3)}
        terms.append(tuple(sorted(own)[: draw.randint(0, 3)]))
    options: Any = {"config": DecodeConfig(beam=width, n_best=width, max_length=14, max_extra=3)}
    options |= {"bos": BOS, "eos": EOS, "pad": PAD}
    rules = TokenRules(glossary=tuple(terms))
    results = search(HashStepper(11, spread=3), sentences, rules=rules, **options)
    for own, found in zip(terms, results, strict=True):
        assert found
        assert all(occurs(term, best.tokens) for best in found for term in own)
    assert any(best.finished for found in results for best in found)
    if width > 1:  # a beam of 1 ends at the first EOS
        plain = search(HashStepper(11, spread=3), sentences, **options)
        rules = TokenRules(glossary=((),) * len(sentences))
        assert is_equal(search(HashStepper(11, spread=3), sentences, rules=rules, **options), plain)


def test_a_term_is_taken_at_its_likeliest_place() -> None:
    tree = {
        (): {4: 0.9, 5: 0.1},
        (4,): {6: 0.9, 5: 0.1},
        (4, 6): {5: 0.8, EOS: 0.2},
        (4, 6, 5): {EOS: 1.0},
    }
    rules = TokenRules(glossary=(((5,),),))
    results = beam(
        TreeStepper(tree, vocab=7), padded([[4]]), beam=2, max_length=6, token_rules=rules, **IDS
    )
    assert results[0][0].tokens == [4, 6, 5]


def test_a_search_goes_on_for_a_likelier_hypothesis_that_is_not_the_first() -> None:
    """Two terms are three banks for a beam of 2: both places go to outputs that lack nothing."""
    tree = {
        (): {4: 0.9, 5: 0.1},
        (4,): {5: 1.0},
        (5,): {6: 1.0},
        (4, 5): {7: 1.0},
        (5, 6): {EOS: 0.6, 7: 0.4},  # 0.06 ends, 0.04 is the first of what goes on
        (4, 5, 7): {6: 1.0},
    }
    options: Any = {"beam": 2, "max_length": 6, "length_penalty": 0.0, **IDS}
    rules = TokenRules(glossary=(((5,), (6,)),))
    results = beam(TreeStepper(tree, vocab=8), padded([[4]]), token_rules=rules, **options)
    assert results[0][0].tokens == [4, 5, 7, 6]


def test_what_is_lacking_is_the_longest_beginning_of_each_term() -> None:
    terms = ((4, 4, 5), (4, 5, 4, 5, 6))
    for tokens in itertools.product((4, 5, 6), repeat=6):
        lacking = tuple((term, 0) for term in terms)
        for token in tokens:
            lacking = advance(lacking, token)
        expected = []
        for term in terms:
            if not occurs(term, tokens):
                sizes = [n for n in range(len(term)) if tokens[6 - n :] == term[:n]]
                expected.append((term, max(sizes)))
        assert [*lacking] == expected


def test_terms_that_cannot_be_are_named() -> None:
    rules = TokenRules(glossary=((), ((4, 5), (6,))))
    options: Any = {"bos": BOS, "eos": EOS, "pad": PAD, "rules": rules}
    with pytest.raises(UserError, match=r"max_length must be above 3, .* and glossary, got 3"):
        search(HashStepper(7), [[4], [5]], config=DecodeConfig(max_length=3), **options)
    (_, found) = search(
        HashStepper(7), [[4], [5]], config=DecodeConfig(max_ratio=0, max_extra=1), **options
    )
    assert found[0].length >= 3  # the limit allows the terms
    options["rules"] = TokenRules(glossary=rules.glossary, bad_words=((6,),))
    with pytest.raises(UserError, match=r"in sentence 1; relax .*: bad_words, glossary"):
        search(HashStepper(7), [[4], [5, 5]], config=DecodeConfig(), **options)  # longest first
