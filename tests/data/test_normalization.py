"""The length of normalized texts is limited before memory is allocated for them."""

import unicodedata

import pytest

from regard.data.config import TokenizerConfig
from regard.data.text.pairs import read_pairs
from regard.data.tokenizer import MOST_CHARACTERS, Tokenizer, check_growth
from regard.errors import UserError

EIGHTEEN = "\ufdfa"
THREE = "\ufb2c"  # three characters in NFC, too


@pytest.mark.parametrize(
    ("form", "character"), [("nfkc", EIGHTEEN), ("nfkc", THREE), ("nfc", THREE)]
)
def test_growth_is_refused_one_character_above_the_limit(form, character):
    factor = len(unicodedata.normalize(form.upper(), character))
    most = MOST_CHARACTERS // factor
    check_growth(character * most, form)
    with pytest.raises(
        ValueError,
        match=rf"of {most + 1:,} characters has more than 1,000,000 .*\({form.upper()}\)",
    ):
        check_growth(character * (most + 1), form)


def test_growth_of_a_long_text_may_double_and_forms_that_do_not_grow_are_not_counted():
    check_growth("\ufb01" * (MOST_CHARACTERS + 1), "nfkc")  # fi
    check_growth(EIGHTEEN * 100_000, "nfc")
    check_growth(THREE * 500_000, "none")


def test_tokenizer_refuses_what_normalization_makes_too_long():
    config = TokenizerConfig(kind="char", normalize="nfkc")
    tokenizer = Tokenizer.train(["ab"], config)
    for use in (tokenizer.encode, tokenizer.segment, tokenizer.unknown, tokenizer.tokens):
        with pytest.raises(UserError, match="of 55,556 characters has more than 1,000,000"):
            use(EIGHTEEN * 55_556)
    with pytest.raises(UserError, match=r"train\.tsv: a text of 55,556 characters"):
        Tokenizer.train([EIGHTEEN * 55_556], config, origin="train.tsv")


def test_pair_that_normalization_makes_too_long_is_a_bad_line(tmp_path):
    (tmp_path / "a.tsv").write_text(f"a\tb\n{EIGHTEEN * 55_556}\tb\n")
    with pytest.raises(
        UserError, match=r"a\.tsv, line 2: a text of 55,556 characters has more than 1,000,000"
    ):
        read_pairs(tmp_path / "a.tsv")
    pairs = read_pairs(tmp_path / "a.tsv", on_bad="skip")
    assert (len(pairs), pairs.skipped.counts) == (1, {"too long": 1})
