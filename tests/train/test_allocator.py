import subprocess
import sys
from pathlib import Path

import pytest

from regard.train import allocator


def test_freed_memory_stays_in_the_process_where_glibc_is() -> None:
    # In a process of its own: the setting cannot be taken back.
    code = (
        "import platform, sys, regard.train.allocator as a; "
        "print(a.keep_freed_memory() == (platform.libc_ver()[0] == 'glibc'), 'torch' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_nothing_is_done_on_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.platform, "libc_ver", lambda: ("", ""))
    assert not allocator.keep_freed_memory()
