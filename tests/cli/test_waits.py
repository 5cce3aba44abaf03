"""Somebody who waits for the compiler is told so, once."""

import logging

from regard.attention.kernels import compiled_cache
from regard.cli import waits


def test_first_of_several_compilations_is_told(monkeypatch, capsys):
    log = logging.getLogger(compiled_cache.__name__)
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "level", logging.NOTSET)
    made = [
        compiled_cache.kept_function(lambda x: x + 1, stamp="told"),
        compiled_cache.kept_function(lambda x: x - 1, stamp="told"),
    ]
    for _ in range(2):
        waits.tell_of_compiling()
    for one, result in zip(made, (2, 0), strict=True):
        monkeypatch.setattr(one, "_cache", compiled_cache._NoCache())
        assert one(1) == result
    out, err = capsys.readouterr()
    assert not out
    assert err == (
        "Compiling loops for this machine: this may take half a minute. They cannot be kept for later: "
        "set NUMBA_CACHE_DIR to a folder that can be written to.\n"
    )
