import subprocess
import sys
from pathlib import Path

import pytest

from regard.system import allocator


def test_freed_memory_is_kept_with_glibc() -> None:
    # In a separate process, as the setting cannot be undone.
    code = (
        "import platform, sys, regard.system.allocator as a; "
        "print(a.keep_freed_memory() == (platform.libc_ver()[0] == 'glibc'), 'torch' in "
        "sys.modules)"
    )
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert result.stdout.split() == ["True", "False"], result.stderr


def test_other_systems_are_left_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.platform, "libc_ver", lambda: ("", ""))
    assert not allocator.keep_freed_memory()
