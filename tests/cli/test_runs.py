"""The notice about compilation is printed once."""

import logging

from regard.cli import runs
from regard.native import cache


def test_notice_is_printed_for_the_first_compilation_only(monkeypatch, capsys):
    log = logging.getLogger(cache.__name__)
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "level", logging.NOTSET)

    def no_folder(*_):
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(cache, "_Cache", no_folder)
    for _ in range(2):
        runs.announce_compiling()
    assert cache.compile_cached(lambda x: x + 1, stamp="notice")(1) == 2
    assert cache.compile_cached(lambda x: x - 1, stamp="notice")(1) == 0
    out, err = capsys.readouterr()
    assert not out
    assert err == (
        "Compiling loops for this machine: this may take half a minute. They cannot be cached: "
        "set NUMBA_CACHE_DIR to a folder that can be written to.\n"
    )
