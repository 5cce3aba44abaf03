import subprocess
import sys
import unicodedata
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.embedded.dates import DatesDataset, DateText, compute_ceiling, normalize, split_of
from regard.data.embedded.dates_config import LOCALES, DatesConfig
from regard.errors import UserError

STRAY = DatesConfig(case_noise=1.0, space_noise=1.0, native_digits=0.0)
PLAIN = DatesConfig(case_noise=0.0, space_noise=0.0, native_digits=0.0)


@given(
    seed=st.integers(0, 10**6),
    split=st.sampled_from(["train", "val", "test"]),
    epoch=st.integers(0, 10**4),
    index=st.integers(0, 10**9),
)
@settings(max_examples=60, deadline=None)
def test_example_is_a_pure_function_of_its_numbers(seed, split, epoch, index):
    shared, fresh = DatesDataset(seed=seed), DatesDataset(seed=seed)
    shared.example("train", epoch=3, index=17)
    shared.example("test", index=5)
    example = shared.example(split, epoch=epoch, index=index)
    assert example == fresh.example(split, epoch=epoch, index=index)
    assert split_of(example.iso) == split
    assert date.fromisoformat(example.iso).isoformat() == example.iso


def test_examples_are_the_same_in_another_process():
    script = (
        "from regard.data.embedded.dates import DatesDataset; "
        "print(ascii(DatesDataset(seed=7).example('train', epoch=2, index=11)))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ascii(DatesDataset(seed=7).example("train", epoch=2, index=11))


def test_training_examples_differ_by_seed_and_epoch():
    def texts(seed, epoch):
        return [
            DatesDataset(seed=seed).example("train", epoch=epoch, index=index).text
            for index in range(50)
        ]

    assert len({tuple(texts(seed, epoch)) for seed, epoch in [(0, 0), (0, 1), (1, 0), (1, 1)]}) == 4


def test_held_out_examples_are_fixed_and_sized_by_the_config():
    config = DatesConfig(val_size=31, test_size=53)
    for split, size in [("val", 31), ("test", 53)]:
        examples = DatesDataset(config, seed=1).examples(split, epoch=0)
        assert len(examples) == size
        assert examples == DatesDataset(config, seed=2).examples(split, epoch=9)
    assert len(DatesDataset(DatesConfig(epoch_size=71)).examples("train", epoch=4)) == 71


def test_splits_hold_different_dates_in_the_documented_shares():
    days = [date.fromordinal(number).isoformat() for number in range(700_000, 710_000)]
    counts = {
        split: sum(split_of(iso) == split for iso in days) / len(days)
        for split in ("train", "val", "test")
    }
    assert counts == pytest.approx({"train": 0.90, "val": 0.05, "test": 0.05}, abs=0.01)
    config = DatesConfig(epoch_size=2000)
    dates = {
        split: {item.iso for item in DatesDataset(config).examples(split)}
        for split in ("train", "val", "test")
    }
    assert not dates["train"] & dates["test"]
    assert not dates["train"] & dates["val"]
    assert not dates["val"] & dates["test"]


def test_split_of_a_date_never_changes():
    # Moving a date to another split would leak test dates into the training of an older run.
    splits = {day: split_of(f"2019-03-{day:02d}") for day in range(1, 32)}
    assert [day for day, split in splits.items() if split == "val"] == [2, 16]
    assert [day for day, split in splits.items() if split == "test"] == [14, 23, 25]


def test_dates_cover_the_years_and_only_them():
    config = DatesConfig(first_year=2019, last_year=2021, epoch_size=2000)
    examples = DatesDataset(config).examples("train")
    assert {item.iso[:4] for item in examples} == {"2019", "2020", "2021"}
    assert {item.iso[5:7] for item in examples} == {f"{month:02d}" for month in range(1, 13)}


def test_example_holds_the_year_in_full():
    for example in DatesDataset(PLAIN).examples("test"):
        assert example.iso[:4] in example.text


def test_every_locale_occurs_about_equally_often():
    examples = DatesDataset(DatesConfig(epoch_size=6000)).examples("train")
    counts = {
        name: sum(item.locale == name for item in examples) * len(LOCALES) / len(examples)
        for name in LOCALES
    }
    assert 0.6 < min(counts.values()) < max(counts.values()) < 1.4


def test_native_digits_replace_ascii_ones_where_the_locale_has_its_own():
    config = DatesConfig(locales=("ar_EG", "bn", "de"), native_digits=1.0)
    examples = DatesDataset(config).examples("val")
    assert not any(
        char in "0123456789" for item in examples if item.locale != "de" for char in item.text
    )
    assert all(
        any(char in "0123456789" for char in item.text) for item in examples if item.locale == "de"
    )
    item = next(item for item in examples if item.locale == "bn")
    assert str(int(item.iso[:4])) in "".join(
        str(unicodedata.decimal(char)) if char.isdecimal() else char for char in item.text
    )


def test_stray_case_and_space_leave_the_normalized_text_alone():
    plain, stray = DatesDataset(PLAIN, seed=5), DatesDataset(STRAY, seed=5)
    for index in range(2000):
        item, other = (data.example("train", epoch=1, index=index) for data in (plain, stray))
        assert normalize(other.text) == normalize(item.text)
        assert other._replace(text="") == item._replace(text="")
        # A tokenizer may lowercase letter by letter, where a final sigma stays a sigma.
        forms = [
            "".join(map(str.lower, unicodedata.normalize("NFKC", text))).split()
            for text in (item.text, other.text)
        ]
        assert forms[0] == forms[1]
        assert other.text != item.text


def test_stray_case_and_space_occur_in_every_kind():
    named = [
        item.text
        for item in DatesDataset(STRAY).examples("val")
        if item.locale in ("en", "fr", "de", "ru")
    ]
    worded = [text for text in named if sum(map(str.isalpha, text)) > 3]
    assert any(text.isupper() for text in worded)
    assert any(text.islower() for text in worded)
    assert any(text.istitle() for text in worded)
    assert any(text.startswith(" ") for text in named)
    assert any(text.endswith(" ") for text in named)
    assert any("  " in text.strip() for text in named)


def test_default_examples_are_stray_in_the_shares_of_the_config():
    examples = DatesDataset().examples("test")
    spaced = sum(
        item.text != " ".join(item.text.split(" ")).strip(" ") or "  " in item.text
        for item in examples
    )
    assert spaced / len(examples) == pytest.approx(DatesConfig().space_noise, abs=0.03)
    plain = DatesDataset(DatesConfig(space_noise=0.0, case_noise=0.0)).examples("test")
    assert (
        0.1
        < sum(a.text.strip() != b.text for a, b in zip(examples, plain, strict=True)) / len(plain)
        < 0.5
    )


def test_turkish_months_with_a_dotless_i_are_never_put_in_capitals():
    config = DatesConfig(locales=("tr",), case_noise=1.0, space_noise=0.0)
    texts = [item.text for item in DatesDataset(config).examples("test")]
    november = [text for text in texts if "kas\u0131m" in text.lower()]
    assert november
    assert not any("KASIM" in text for text in texts)
    assert any("MART" in text for text in texts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  3\u202fMarch  2019 ", "3 march 2019"),
        ("1\u00ba de Enero\u00a0de 2019", "1o de enero de 2019"),
        ("\uff12\uff10\uff11\uff19-03-01", "2019-03-01"),
        ("2 \u0130yul 2019", "2 i\u0307yul 2019"),
    ],
)
def test_normalize_folds_case_width_and_spaces(text, expected):
    assert normalize(text) == expected
    assert normalize(expected) == expected


def test_locale_unknown_to_babel_is_named():
    with pytest.raises(UserError, match=r"must be CLDR locales such as pt_BR, got 'pt-BR'"):
        DatesDataset(DatesConfig(locales=("pt-BR",))).example("test", index=0)


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ({("a", "2019-10-03"): 0.2, ("a", "2019-11-03"): 0.3, ("b", "2019-03-03"): 0.5}, 0.8),
        ({("a", "2019-03-03"): 0.5, ("b", "2019-03-03"): 0.5}, 1.0),
        ({("a", "2019-01-01"): 3.0, ("a", "2019-02-01"): 1.0}, 0.75),
        ({("a", "2019-01-01"): 0.5, ("a", "2019-02-01"): 0.3, ("a", "2019-03-01"): 0.2}, 0.5),
    ],
)
def test_ceiling_is_the_mass_of_the_most_probable_dates(readings, expected):
    texts = [DateText(text, iso, "en", weight) for (text, iso), weight in readings.items()]
    assert compute_ceiling(texts) == pytest.approx(expected)


def test_probabilities_sum_to_one_and_match_the_examples():
    config = DatesConfig(
        locales=("en", "hr", "fa"), first_year=2019, last_year=2019, epoch_size=8000
    )
    data = DatesDataset(config)
    written = list(data.texts_of_year(2019))
    assert sum(item.probability for item in written) == pytest.approx(1)
    texts = {(item.text, item.iso) for item in written}
    drawn = data.examples("train")
    assert all((normalize(item.text), item.iso) in texts for item in drawn)
    march = sum(item.probability for item in written if "march" in item.text)
    assert march == pytest.approx(
        sum("march" in normalize(item.text) for item in drawn) / len(drawn), abs=0.01
    )


def test_ceiling_of_croatian_and_polish():
    """Listopad is October in Croatian, and November in Polish."""
    ambiguous = DatesDataset(DatesConfig(locales=("hr", "pl", "sv")))
    assert 0.95 < ambiguous.compute_ceiling(years=(2019,)) < 1
    assert DatesDataset(DatesConfig(locales=("hr", "sv"))).compute_ceiling(years=(2019,)) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"locales": ()}, "`locales` must be one or more different names"),
        ({"locales": ("en", "en")}, "`locales` must be one or more different names"),
        ({"first_year": 999}, "first_year must be from 1,000 to 9,999, got 999"),
        ({"first_year": 2050, "last_year": 2049}, "`first_year` must be at most 2049, got 2050"),
        ({"last_year": 10_000}, "last_year must be from 1,000 to 9,999, got 10000"),
        ({"test_size": 0}, "test_size must be from 1 to 1,000,000, got 0"),
        ({"case_noise": 1.5}, "case_noise must be from 0 to 1, got 1.5"),
        ({"native_digits": float("nan")}, "native_digits must be a number, got nan"),
    ],
)
def test_config_rejects_a_field_out_of_range(fields, message):
    with pytest.raises(ValueError, match=message):
        DatesConfig(**fields)


def test_config_imports_neither_torch_nor_babel():
    script = (
        "import sys, regard.data.embedded.dates_config; print({'torch', 'babel'} & "
        "set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
