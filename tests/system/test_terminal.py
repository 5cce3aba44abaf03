from regard.system.terminal import escape_text, one_line


def test_escaped_writes_what_would_move_or_recolor_a_terminal() -> None:
    assert (
        escape_text("a\x1b[31mb\x07\x9bc\u202ed\udc80e\rf")
        == "a\\x1b[31mb\\x07\\x9bc\\u202ed\\udc80e\\rf"
    )


def test_escaped_leaves_text_of_any_script_as_it_is() -> None:
    text = "na\u00efve \u0645\u06cc\u200c\u062e\n\t\U0001f468\u200d\U0001f469"
    assert escape_text(text) == text


def test_one_line_joins_lines_and_shortens_the_middle() -> None:
    assert one_line("a\n b\tc") == "a b c"
    short = one_line("a" * 5000 + "the end")
    assert len(short) <= 1000
    assert short.startswith("aaa")
    assert short.endswith("the end")
