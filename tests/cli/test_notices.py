"""The notice about compilation is printed once."""

import logging

from regard.cli import notices
from regard.native import cache


def test_notice_is_printed_for_the_first_compilation_only(monkeypatch, capsys):
    log = logging.getLogger(cache.__name__)
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "level", logging.NOTSET)
    functions = [
        cache.compile_cached(lambda x: x + 1, stamp="notice"),
        cache.compile_cached(lambda x: x - 1, stamp="notice"),
    ]
    for _ in range(2):
        notices.announce_compiling()
    for function, result in zip(functions, (2, 0), strict=True):
        monkeypatch.setattr(function, "_cache", cache._NoCache())
        assert function(1) == result
    out, err = capsys.readouterr()
    assert not out
    assert err == (
        "Compiling loops for this machine: this may take half a minute. They cannot be cached: "
        "set NUMBA_CACHE_DIR to a folder that can be written to.\n"
    )
