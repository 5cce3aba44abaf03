"""Words of a text with their offsets."""

from regard.data.text.words import split_words


def test_punctuation_and_white_space_end_words() -> None:
    text = "Anna O'Neill (St. Gallen,\u00a0No_1)\n\t ... \u00fcber 3.5"
    words, offsets = split_words(text)
    expected = "Anna O ' Neill ( St . Gallen , No_1 ) . . . \u00fcber 3 . 5"
    assert words == expected.split()
    assert [text[start:end] for start, end in offsets] == words


def test_offsets_count_characters_not_bytes() -> None:
    # a letter and a combining accent, an emoji of two UTF-16 units, Persian with a non-joiner
    words, offsets = split_words(
        "na\u0308h \U0001f600x \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"
    )
    assert words == [
        "na\u0308h",
        "\U0001f600",
        "x",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
    ]
    assert offsets == [(0, 4), (5, 6), (6, 7), (8, 16)]


def test_han_and_kana_are_single_words() -> None:
    words, offsets = split_words("\u6211\u5728Paris\u4f4f\u3002")
    assert words == ["\u6211", "\u5728", "Paris", "\u4f4f", "\u3002"]
    assert offsets == [(0, 1), (1, 2), (2, 7), (7, 8), (8, 9)]


def test_text_without_words_is_empty() -> None:
    assert split_words(" \n") == ([], [])
