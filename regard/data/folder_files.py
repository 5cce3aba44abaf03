"""Files in a folder of data that are not read: files of operating systems are ignored, others
counted. (no torch)"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from regard.system.terminal import format_count

_SYSTEM = {
    *(
        "__macosx",
        "@eadir",
        "#recycle",
        "#snapshot",
        "$recycle.bin",
        "system volume information",
        "lost+found",
    ),
    *("thumbs.db", "ehthumbs.db", "desktop.ini"),
}
"""Names of files and folders that operating systems create, in lower case, except those that begin
with a dot."""
_CONVERTED = (".heic", ".heif")
_SHOWN = 8


def is_ignored(name: str) -> bool:
    """Return True for the name of a hidden file or folder, or of one that operating systems
    create."""
    return name.startswith(".") or name.lower() in _SYSTEM


def count_suffixes(files: Sequence[Path]) -> str:
    """Count files by suffix, such as: 10 .heic (convert them to JPEG), 1 .txt."""
    counts = Counter(file.suffix.lower() or "without extension" for file in files).most_common()
    shown = [
        f"{count:,} {suffix}{' (convert them to JPEG)' if suffix in _CONVERTED else ''}"
        for suffix, count in counts[:_SHOWN]
    ]
    more = len(counts) - _SHOWN
    return ", ".join(shown + ([f"{more} other extensions"] if more > 0 else []))


def describe_skipped_files(folder: Path, files: Sequence[Path]) -> str:
    """Return the notice about files of a folder that are not read."""
    return f"{folder}: skipped {format_count(len(files), 'file')}: {count_suffixes(files)}; first: {files[0]}."
