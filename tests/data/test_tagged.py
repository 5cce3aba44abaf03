"""Tables of tagged tokens: the same sentences in every form."""

import pytest

from regard.data.config import TaggedConfig
from regard.data.text.tagged import read_tagged, read_words
from regard.errors import UserError

SENTENCES = ((("we", "met,", "'x'"), ("O", "O", "B-DAY")), (("5",), ("O",)))
FORMS = {
    "plain.conll": "we O\nmet, O\n'x' B-DAY\n\n5 O\n",
    "many.conll": "we\tPRP\tO\nmet,\tV\tO\n'x'\tN\tB-DAY\n\n5\tN\tO\n",
    "header.tsv": "Token\tTag\nwe\tO\nmet,\tO\n'x'\tB-DAY\n\n5\tO\n",
    "sentence.tsv": "sentence_id\tpos\tlabel\tword\n1\tP\tO\twe\n1\tV\tO\tmet,\n1\tN\tB-DAY\t'x'\n2\tN\tO\t5\n",
    "plain.csv": "we,O\n\"met,\",O\n'x',B-DAY\n\n5,O\n",
    "kaggle.csv": "Sentence #,Word,POS,Tag\nSentence: "
    "1,we,P,O\n,\"met,\",V,O\n,'x',N,B-DAY\nSentence: 2,5,N,O\n",
    "sheet.csv": "tag;token\nO;we\nO;met,\nB-DAY;'x'\n;\nO;5\n",
    "rows.csv": "text,labels\n\"we met, 'x'\",O O B-DAY\n5,O\n",
    "lists.csv": (
        "id,tags,tokens\n"
        """1,"['O', 'O', 'B-DAY']","[""we"", ""met,"", ""'x'""]"\n"""
        """2,"[""O""]","['5']"\n"""
    ),
    "array.json": (
        '[{"tokens": ["we", "met,", "\'x\'"], "tags": ["O", "O", "B-DAY"]}, {"tokens": ["5"], '
        '"tags": ["O"]}]'
    ),
    "lines.jsonl": (
        '{"tokens": ["we", "met,", "\'x\'"], "tags": ["O", "O", "B-DAY"]}\n{"tokens": ["5"], '
        '"tags": ["O"]}\n'
    ),
}


def read(tmp_path, content, name="a.csv", **settings):
    (tmp_path / name).write_text(content, encoding="utf-8")
    data = read_tagged(tmp_path / name, TaggedConfig(**settings))
    return tuple(zip(data.tokens, data.tags, strict=True)), data


@pytest.mark.parametrize("name", FORMS)
def test_same_sentences_are_read_from_every_form(tmp_path, name):
    assert read(tmp_path, FORMS[name], name)[0] == SENTENCES


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"tokens": ["we", "met"], "ner_tags": [0, 12]}\n'),
        ("a.json", '[{"tokens": ["we", "met"], "ner_tags": [0, 12]}]'),
        ("a.csv", "tokens,ner_tags\n\"['we', 'met']\",\"[0, 12]\"\n"),
        ("a.csv", "tokens,ner_tags\n\"['we', 'met']\",[ 0 12]\n"),
    ],
)
def test_integers_are_names_of_tags_with_a_notice(tmp_path, name, content):
    with pytest.warns(UserWarning, match=r"the tags are numbers, .* \(0, 12\); to name them"):
        assert read(tmp_path, content, name, tag_column="ner_tags")[0] == (
            (("we", "met"), ("0", "12")),
        )


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        (
            '"ner_tags": [0, 1]',
            "no field 'tags'; .* 'tokens', 'ner_tags'; --data.tag-column ner_tags selects another",
        ),
        ('"tags": [0, -1]', "a list of strings or integers"),
        ('"tags": [0, true]', "a list of strings or integers"),
        ('"tags": [0]', "got 2 tokens and 1 tags"),
    ],
)
def test_other_tags_are_refused(tmp_path, tags, message):
    with pytest.raises(UserError, match=rf"a.jsonl, line 1: .*{message}"):
        read(tmp_path, f'{{"tokens": ["we", "met"], {tags}}}\n', "a.jsonl")


def test_columns_and_header_by_settings(tmp_path):
    table = "a\tb\tc\nx\tB\tO\n"
    assert read(tmp_path, table, "a.tsv")[0] == ((("a", "x"), ("c", "O")),)
    assert read(tmp_path, table, "a.tsv", header="yes")[0] == ((("x",), ("O",)),)
    assert read(tmp_path, table, "a.tsv", tag_column=2, header="yes")[0] == ((("x",), ("B",)),)
    assert read(tmp_path, table, "a.tsv", token_column="c", tag_column="a")[0] == (
        (("O",), ("x",)),
    )
    assert read(tmp_path, "token tag\nx O\n", "a.txt", header="no")[0] == (
        (("token", "x"), ("tag", "O")),
    )
    fields = '{"words": ["a"], "ner": ["O"]}\n'
    assert read(tmp_path, fields, "a.jsonl", token_column="words", tag_column="ner")[0] == (
        (("a",), ("O",)),
    )
    with pytest.raises(UserError, match=r"line 1: no column 'd'; the header is 'a', 'b', 'c'"):
        read(tmp_path, table, "a.tsv", tag_column="d")
    with pytest.raises(UserError, match=r"by number with --data.header no, got 'c'"):
        read(tmp_path, table, "a.tsv", tag_column="c", header="no")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("token,tag\nx,O\ny,\n", r"line 3: expected a token and its tag, got 'y '"),
        (
            "text,tags\nx y,O O\nx y,O\n",
            r"line 3: expected one tag per token, got 2 tokens and 1 tags",
        ),
        ('text,tags\nx,"[(1)]"\n', r"line 2: expected a list of strings, got '\[\(1\)\]'"),
        ("token,tag\nx,O\n1\n", r"line 3: expected a token and its tag, got '1'"),
    ],
)
def test_bad_rows_are_named_or_left_out(tmp_path, content, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path, content)
    good = read(tmp_path, content + "\nz,O\n", on_bad="skip")
    assert good[0][-1] == (("z",), ("O",))
    assert len(good[1].skipped) == 1


def test_comments_before_sentences_and_marks_of_documents_are_skipped(tmp_path):
    content = "-DOCSTART-\n\n# id = 1\n# text = x y\nx\tO\n#\tB\n\n# O\ny O\n\n-DOCSTART- -X- O\n"
    assert read(tmp_path, content, "a.conll")[0] == (
        (("x", "#"), ("O", "B")),
        (("#", "y"), ("O", "O")),
    )
    words = [words for _, words, _ in read_words(tmp_path / "a.conll", TaggedConfig())]
    assert words == [("x", "#"), ("#", "y")]


def test_comment_with_as_many_columns_as_the_rows_is_skipped(tmp_path):
    content = "# id = 1\nx NN I O\n\n# NN I B\ny NN I O\n"
    assert read(tmp_path, content, "a.conll")[0] == ((("x",), ("O",)), (("#", "y"), ("B", "O")))


def test_conllu_needs_chosen_columns(tmp_path):
    rows = [
        f"{i}\t{form}\t{form}\t{tag}\t_\t_\t0\troot\t_\t_"
        for i, form, tag in ((1, "we", "PRON"), (2, "met", "VERB"))
    ]
    content = "\n".join(["# sent_id = a", *rows, ""])
    with pytest.raises(
        UserError, match=r"looks like CoNLL-U.*--data.token-column 2 --data.tag-column 4"
    ):
        read(tmp_path, content, "a.conllu")
    chosen = read(tmp_path, content, "a.conllu", token_column=2, tag_column=4)[0]
    assert chosen == ((("we", "met"), ("PRON", "VERB")),)
