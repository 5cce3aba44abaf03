"""Generated sentences of a small grammar."""

import pytest

from regard.data.embedded.chases import make_chases


def test_sentence_of_the_lectures_is_among_them():
    assert "\nThe FBI is chasing a criminal on the run .\n" in make_chases("train", 0)


def test_text_is_a_function_of_seed_and_split():
    text = make_chases("train", 3)
    assert text == make_chases("train", 3)
    assert len({text, make_chases("train", 4), make_chases("test", 3)}) == 3


@pytest.mark.parametrize("split", ["train", "test"])
def test_words_of_a_sentence_are_of_one_scene(split):
    lines = make_chases(split, 1).splitlines()
    assert {line[-2:] for line in lines} == {" ."}
    assert all(line[0].isupper() for line in lines)
    of_the_fbi = [line for line in lines if "FBI" in line]
    assert any("by the FBI" in line for line in of_the_fbi)
    for line in of_the_fbi:
        assert " criminal " in line or " spy " in line
        assert "on the run" in line or "with a false passport" in line
    for line in lines:
        assert ("police" in line or "dogs" in line) <= (" are " in line or " being " in line)
