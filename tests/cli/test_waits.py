"""The notice about compilation is printed once."""

import logging

from regard.attention.kernels import compiled_cache
from regard.cli import waits


def test_notice_is_printed_for_the_first_compilation_only(monkeypatch, capsys):
    log = logging.getLogger(compiled_cache.__name__)
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "level", logging.NOTSET)
    functions = [
        compiled_cache.compile_cached(lambda x: x + 1, stamp="notice"),
        compiled_cache.compile_cached(lambda x: x - 1, stamp="notice"),
    ]
    for _ in range(2):
        waits.announce_compiling()
    for function, result in zip(functions, (2, 0), strict=True):
        monkeypatch.setattr(function, "_cache", compiled_cache._NoCache())
        assert function(1) == result
    out, err = capsys.readouterr()
    assert not out
    assert err == (
        "Compiling loops for this machine: this may take half a minute. They cannot be cached: "
        "set NUMBA_CACHE_DIR to a folder that can be written to.\n"
    )
