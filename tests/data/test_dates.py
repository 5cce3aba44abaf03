import subprocess
import sys
import unicodedata
from collections import Counter
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.dates_ceiling import DateText, compute_ceiling, texts_of_year
from regard.data.embedded.dates import DatesDataset, normalize, split_of
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


def run_python(script: str) -> str:
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_examples_are_the_same_in_another_process():
    script = (
        "from regard.data.embedded.dates import DatesDataset; "
        "print(ascii(DatesDataset(seed=7).example('train', epoch=2, index=11)))"
    )
    expected = DatesDataset(seed=7).example("train", epoch=2, index=11)
    assert run_python(script) == ascii(expected)


def test_training_examples_differ_by_seed_and_epoch():
    texts = set()
    for seed, epoch in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        data = DatesDataset(DatesConfig(epoch_size=50), seed=seed)
        texts.add(tuple(item.text for item in data.examples("train", epoch=epoch)))
    assert len(texts) == 4


def test_held_out_examples_are_fixed_and_sized_by_the_config():
    config = DatesConfig(val_size=31, test_size=53)
    for split, size in [("val", 31), ("test", 53)]:
        examples = DatesDataset(config, seed=1).examples(split, epoch=0)
        assert len(examples) == size
        assert examples == DatesDataset(config, seed=2).examples(split, epoch=9)
    assert len(DatesDataset(DatesConfig(epoch_size=71)).examples("train", epoch=4)) == 71


def test_splits_hold_different_dates_in_the_documented_shares():
    days = range(700_000, 710_000)
    counts = Counter(split_of(date.fromordinal(number).isoformat()) for number in days)
    shares = {split: count / len(days) for split, count in counts.items()}
    assert shares == pytest.approx({"train": 0.90, "val": 0.05, "test": 0.05}, abs=0.01)
    data, dates = DatesDataset(DatesConfig(epoch_size=2000)), []
    for split in ("train", "val", "test"):
        dates.append({item.iso for item in data.examples(split)})
    assert len(set.union(*dates)) == sum(map(len, dates))


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


def test_every_locale_occurs_about_equally_often():
    examples = DatesDataset(DatesConfig(epoch_size=6000)).examples("train")
    counts, mean = Counter(item.locale for item in examples), len(examples) / len(LOCALES)
    assert set(counts) == set(LOCALES)
    assert 0.6 * mean < min(counts.values()) < max(counts.values()) < 1.4 * mean


def test_native_digits_replace_ascii_ones_where_the_locale_has_its_own():
    config = DatesConfig(locales=("ar_EG", "bn", "de"), native_digits=1.0)
    for item in DatesDataset(config).examples("val"):
        digits = [char for char in item.text if char.isdecimal()]
        assert all(char in "0123456789" for char in digits) == (item.locale == "de")
        assert item.iso[:4] in "".join(str(unicodedata.decimal(char)) for char in digits)


def test_stray_case_and_space_leave_the_normalized_text_alone():
    plain, stray = DatesDataset(PLAIN, seed=5), DatesDataset(STRAY, seed=5)
    for index in range(2000):
        item, other = (data.example("train", epoch=1, index=index) for data in (plain, stray))
        assert normalize(other.text) == normalize(item.text)
        assert other._replace(text="") == item._replace(text="")
        # A tokenizer may lowercase letter by letter, where a final sigma stays a sigma.
        forms = []
        for text in (item.text, other.text):
            forms.append("".join(map(str.lower, unicodedata.normalize("NFKC", text))).split())
        assert forms[0] == forms[1]
        assert other.text != item.text


def test_stray_case_and_space_occur_in_every_kind():
    examples = DatesDataset(STRAY).examples("val")
    named = [item.text for item in examples if item.locale in ("en", "fr", "de", "ru")]
    worded = [text for text in named if sum(map(str.isalpha, text)) > 3]
    assert any(text.isupper() for text in worded)
    assert any(text.islower() for text in worded)
    assert any(text.istitle() for text in worded)
    assert any(text.startswith(" ") for text in named)
    assert any(text.endswith(" ") for text in named)
    assert any("  " in text.strip() for text in named)


def test_default_examples_are_stray_in_the_shares_of_the_config():
    texts = [item.text for item in DatesDataset().examples("test")]
    spaced = [text for text in texts if text != text.strip(" ") or "  " in text]
    assert len(spaced) / len(texts) == pytest.approx(DatesConfig().space_noise, abs=0.03)
    plain = DatesDataset(DatesConfig(space_noise=0.0, case_noise=0.0)).examples("test")
    changed = [text for text, item in zip(texts, plain, strict=True) if text.strip() != item.text]
    assert 0.1 < len(changed) / len(texts) < 0.5


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
    texts = [DateText(text, iso, weight) for (text, iso), weight in readings.items()]
    assert compute_ceiling(texts) == pytest.approx(expected)


def test_probabilities_sum_to_one_and_match_the_examples():
    years = {"first_year": 2019, "last_year": 2019}
    data = DatesDataset(DatesConfig(locales=("en", "hr", "fa"), epoch_size=8000, **years))
    written = list(texts_of_year(data, 2019))
    assert sum(item.probability for item in written) == pytest.approx(1)
    texts = {(item.text, item.iso) for item in written}
    drawn = data.examples("train")
    assert all((normalize(item.text), item.iso) in texts for item in drawn)
    march = sum(item.probability for item in written if "march" in item.text)
    share = sum("march" in normalize(item.text) for item in drawn) / len(drawn)
    assert march == pytest.approx(share, abs=0.01)


def test_ceiling_of_croatian_and_polish():
    """Listopad is October in Croatian, and November in Polish."""
    ambiguous = DatesDataset(DatesConfig(locales=("hr", "pl", "sv")))
    assert 0.95 < compute_ceiling(texts_of_year(ambiguous, 2019)) < 1
    clear = DatesDataset(DatesConfig(locales=("hr", "sv")))
    assert compute_ceiling(texts_of_year(clear, 2019)) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"locales": ()}, "`locales` must be one or more different names"),
        ({"locales": ("en", "en")}, "`locales` must be one or more different names"),
        ({"first_year": 2050, "last_year": 2049}, "`first_year` must be at most 2049, got 2050"),
        ({"last_year": 10_000}, "last_year must be from 1,000 to 9,999, got 10000"),
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
    assert run_python(script) == "set()"
