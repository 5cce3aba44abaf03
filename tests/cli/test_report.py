"""Every score is printed, under its known name or its own."""

from regard.recipes.metrics.report import score_table

SCORES = {"data": "x.tsv", "examples": 1234, "signature": "s", "samples": []}


def test_scores_are_shown_by_name_known_ones_first():
    lines = score_table(SCORES | {"my_score": 1.5, "ap50": 84.31, "codes_used": 7}).splitlines()
    assert lines == [
        "x.tsv: 1,234 examples",
        "  codes in use  7",
        "  AP50, %       84.31",
        "  my score      1.5",
        "  details       s",
    ]


def test_decoding_is_in_the_title():
    scores = SCORES | {"bleu": 1.5, "length_penalty": 0.5}
    assert (
        score_table(scores | {"beam": 4}).splitlines()[0]
        == "x.tsv: 1,234 examples, beam 4, length penalty 0.5"
    )
    lines = score_table(scores | {"beam": 1}).splitlines()
    assert lines[0] == "x.tsv: 1,234 examples, greedy search"
    assert not any("penalty" in line for line in lines)


def test_classes_have_a_table_of_their_own():
    text = score_table(
        SCORES | {"ap": 50.0, "classes": {"cat": {"recall": 60.0}, "dog": {"recall": 40.04}}}
    )
    assert text.endswith("classes  recall, %\n  cat      60\n  dog      40.04")


def test_line_feed_in_the_data_does_not_end_a_row():
    sample = {"source": "a\nsignature  forged", "output": "x\ny", "reference": "x\ny"}
    text = score_table(SCORES | {"samples": [sample]})
    assert text.splitlines()[-1] == r"  a\nsignature  forged  x\ny"
