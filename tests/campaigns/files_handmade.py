"""Handmade files and the expected outcome of each: the first cases of the campaign `files`."""

import functools
import gzip
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import soundfile
from PIL import Image

from tests.campaigns.files_specimens import specimen

__all__ = ["HANDMADE", "Handmade"]

_HEAD = b"file,x,y,width,height,label\n"
_REGULAR = ("idx", "tar")
"""Formats that are read from regular files only, as images are."""
_EVENTS = b"file,onset,duration,label\n"


class Handmade(NamedTuple):
    """Specimen with other content in one file (a word: no regular file), and the expected outcome.

    A pipe holds what the file held; formats that need a regular file refuse it.
    """

    name: str
    specimen: str
    file: str
    content: Callable[[], bytes] | bytes | str
    expected: str = "refused"


def _of(name: str, file: str = "") -> bytes:
    good = specimen(name)
    return good.files[file or good.mutated[0]]


@functools.cache
def _bomb(unit: bytes = b"\0", size: int = 3 << 30) -> bytes:
    """Return a gzip file of several parts that decompresses to `size` bytes."""
    part = 1 << 26
    return gzip.compress(unit * (part // len(unit)), 6, mtime=0) * (size // part)


def _npz(**changes: Any) -> bytes:
    with np.load(io.BytesIO(_of("npz"))) as content:
        arrays = {name: content[name] for name in content}
    out = io.BytesIO()
    np.savez(
        out, **{name: array for name, array in (arrays | changes).items() if array is not None}
    )
    return out.getvalue()


def _member(name: str, content: bytes, method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(_of("npz"))) as source,
        zipfile.ZipFile(out, "w", method) as target,
    ):
        for member in source.namelist():
            target.writestr(member, content if member == f"{name}.npy" else source.read(member))
    return out.getvalue()


def _npy(shape: str, dtype: str = "<i2", body: bytes = b"") -> bytes:
    head = (
        f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode()
        + b"\n"
    )
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + body


def _encrypt() -> bytes:
    content = bytearray(_of("npz"))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = -1
        while (start := content.find(mark, start + 1)) >= 0:
            content[start + offset] |= 1
    return bytes(content)


def _packed_bomb() -> bytes:
    """Return an archive with a member of 1.2 GB of zeros."""
    return _member("samples", _npy("(600000000,)") + bytes(1_200_000_000), zipfile.ZIP_DEFLATED)


def _patch(content: bytes, offset: int, value: int, size: int, order: str = "little") -> bytes:
    return content[:offset] + value.to_bytes(size, order) + content[offset + size :]  # type: ignore[arg-type]


def _flac(stated: int) -> bytes:
    """Return a FLAC file whose header states this number of samples (0: unknown)."""
    content = _of("flac")
    number = int.from_bytes(content[18:26], "big") >> 36 << 36 | stated
    return content[:18] + number.to_bytes(8, "big") + content[26:]


def _silence() -> bytes:
    """Return a file of 0.2 MB with 50 million samples that its header does not state."""
    out = io.BytesIO()
    with soundfile.SoundFile(out, "w", 655_350, 1, format="FLAC") as file:
        for _ in range(50):
            file.write(np.zeros(1_000_000, np.int16))
    content = out.getvalue()
    number = int.from_bytes(content[18:26], "big") >> 36 << 36
    return content[:18] + number.to_bytes(8, "big") + content[26:]


def _arrays() -> Iterator[Handmade]:
    flipped = bytearray(_of("npz"))
    flipped[len(flipped) // 3] ^= 255
    npz: dict[str, Any] = {
        "zip crc": bytes(flipped),
        "truncated": _of("npz")[:-30],
        "no zip": b"no zip" * 9,
        "empty zip": b"PK\x05\x06" + bytes(18),
        "encrypted": _encrypt,
        "npy": _npy("(3,)", body=bytes(6)),
        "claims 10^13": lambda: _member("samples", _npy("(10000000000000,)")),
        "claims -1": lambda: _member("samples", _npy("(-1,)")),
        "claims overflow": lambda: _member("samples", _npy("(4294967296, 4294967296)")),
        "bad header": lambda: _member("samples", _npy("__import__('os')")),
        "zip bomb": _packed_bomb,
        "objects": lambda: _npz(label=np.array(["a", None] * 6, object)),
        "index text": lambda: _npz(index=np.array(["x"] * 12)),
        "rate array": lambda: _npz(sample_rate=np.array([8000, 8000])),
        "rate nan": lambda: _npz(sample_rate=np.nan),
        "rate 0": lambda: _npz(sample_rate=0),
        "rate huge": lambda: _npz(sample_rate=2**62),
        "label nan": lambda: _npz(label=np.full(12, np.nan)),
        "label empty": lambda: _npz(label=np.array([""] * 12)),
        "label latin-1": lambda: _npz(label=np.array([b"\xe4"] * 12)),
        "no label": lambda: _npz(label=None),
        "samples float": lambda: _npz(samples=np.zeros(1480)),
        "samples empty": lambda: _npz(samples=np.zeros(0, np.int16)),
        "offsets from 1": lambda: _npz(
            offsets=np.cumsum([1, *[100, 150, 120] * 4]) - np.array([0] * 12 + [1])
        ),
        "offsets falling": lambda: _npz(offsets=np.cumsum([0, *[100, 150, 120] * 4])[::-1]),
        "offsets huge": lambda: _npz(offsets=np.array([0, 2**63] * 6 + [1480], np.uint64)),
        "offsets float": lambda: _npz(offsets=np.cumsum([0.0, *[100, 150, 120] * 4])),
        **{
            f"{name} scalar": lambda name=name: _npz(**{name: np.int16(1)})
            for name in ("samples", "offsets", "label")
        },
    }
    yield from (
        Handmade(f"npz {name}", "npz", "sounds.npz", content) for name, content in npz.items()
    )


def _sounds() -> Iterator[Handmade]:
    wav = _of("wav")
    yield from (Handmade(f"wav first {n} bytes", "wav", "a.wav", wav[:n]) for n in range(46))
    for rate in (0, 1, 999, 768_001, 2**31 - 1, 2**32 - 1):
        yield Handmade(f"wav rate {rate}", "wav", "a.wav", _patch(wav, 24, rate, 4))
    for channels in (0, 65, 65535):
        yield Handmade(f"wav {channels} channels", "wav", "a.wav", _patch(wav, 22, channels, 2))
    yield Handmade("wav 0 bits", "wav", "a.wav", _patch(wav, 34, 0, 2))
    yield Handmade("wav format 0", "wav", "a.wav", _patch(wav, 20, 0, 2))
    yield Handmade("wav no data", "wav", "a.wav", wav.replace(b"data", b"atad"))
    yield Handmade("wav nan", "wav float", "a.wav", lambda: _of("wav float")[:-4] + b"\0\0\xc0\x7f")
    for stated in (0x7FFF_F000, 0xFFFF_FFFF, 0xFFFF_FFDB):
        yield Handmade(
            f"wav of a stream {stated}", "wav", "a.wav", _patch(wav, 40, stated, 4), "accepted"
        )
    streamed = _patch(_patch(wav, 4, 0, 4), 40, 0, 4)
    yield Handmade("wav that was never finished", "wav", "a.wav", streamed, "accepted")
    yield Handmade("wav and junk", "wav", "a.wav", wav + b"junk" * 7, "accepted")
    yield Handmade("wav claims 2^31", "wav", "a.wav", _patch(wav, 40, 1 << 31, 4))
    for form in (
        "wav",
        "w64",
        "rf64",
        "aiff",
        "au",
        "caf",
        "alac",
        "flac",
        "ogg",
        "opus",
        "mp3",
        "mp3 bare",
    ):
        (file,) = specimen(form).mutated
        yield Handmade(f"{form} cut off", form, file, _of(form)[:-100])
    for stated in ((1 << 36) - 1, 1 << 31):
        yield Handmade(f"flac claims {stated}", "flac", "a.flac", _flac(stated))
    yield Handmade("flac of a stream", "flac", "a.flac", _flac(0), "accepted")
    yield Handmade("flac of silence", "flac", "a.flac", _silence, "accepted")
    rows = {
        "onset 400 digits": b"a.wav," + b"9" * 400 + b",1,a",
        "onset nan": b"a.wav,nan,1,a",
        "denormal duration": b"a.wav,0.1,1e-320,a",
        "underscore": b"a.wav,0.1,1_0,a",
        "folder": b".,0.1,0.1,a",
        "traversal": b"../../../../../../etc/passwd,0.1,0.1,a",
        "device": b"/dev/zero,0.1,0.1,a",
        "no file": b",0.1,0.1,a",
        "null": b"a\0.wav,0.1,0.1,a",
        "latin-1": b"a.wav,0.1,0.1,\xe4",
    }
    for name, row in rows.items():
        yield Handmade(f"events csv {name}", "events.csv", "events.csv", _EVENTS + row + b"\n")


def _coco(change: Callable[[dict[str, Any]], object]) -> Callable[[], bytes]:
    def make() -> bytes:
        content = json.loads(_of("coco"))
        change(content)
        return json.dumps(content).encode()

    return make


def _boxes() -> Iterator[Handmade]:
    values: dict[str, tuple[str, str, list[Any]]] = {
        "bbox": ("annotations", "bbox", ["1234", [True] * 4, [1e-320] * 4, [10**400] * 4, [1, 2], {},
                                         [1, 2, float("nan"), 4], [1, 2, float("inf"), 4], [1, 2, -3, 4], None]),
        "image_id": ("annotations", "image_id", [[], {}, None, True, 99, 1.5, "0"]),
        "category_id": ("annotations", "category_id", [[], {}, None, True, 99]),
        "iscrowd": ("annotations", "iscrowd", ["yes", 0.5, 2, [1]]),
        "image id": ("images", "id", [1, [], {}, True, None, 1.5, float("nan"), 2.0**60]),
        "file": ("images", "file_name", ["", None, "x" * 5000, "../0.png", "/etc/passwd", "\ud800", "1.png", "a\0", 5]),
        "width": ("images", "width", [17, 0, -1, "17", 16.5, True, None]),
        "category": ("categories", "id", [2, [], None]),
        "category name": ("categories", "name", ["", None, "\ud800", [], True]),
    }  # fmt: skip
    for name, (part, key, replacements) in values.items():
        for value in replacements:
            change = _coco(
                lambda content, part=part, key=key, value=value: content[part][0].update(
                    {key: value}
                )
            )
            yield Handmade(f"coco {name} {repr(value)[:30]}", "coco", "boxes.json", change)
    fine = [
        ("annotations", "id", 1),
        ("annotations", "id", []),
        ("annotations", "iscrowd", None),
        ("images", "width", "16"),
    ]
    for part, key, value in [*fine, ("images", "id", 0.0), ("annotations", "image_id", 0.0)]:
        change = _coco(
            lambda content, part=part, key=key, value=value: content[part][0].update({key: value})
        )
        yield Handmade(f"coco {part} {key} {value!r}", "coco", "boxes.json", change, "accepted")
    yield Handmade(
        "coco crowd",
        "coco",
        "boxes.json",
        _coco(lambda c: c["annotations"][0].update(iscrowd=1)),
        "accepted",
    )
    annotations = [{"image_id": 0, "category_id": 1, "bbox": [1, 1, 2, 2]}] * 300
    yield Handmade(
        "coco 300 boxes in one image",
        "coco",
        "boxes.json",
        _coco(lambda c: c.update(annotations=annotations)),
    )
    yield Handmade("coco no boxes", "coco", "boxes.json", _coco(lambda c: c.update(annotations=[])))
    for name, content in {
        "nested": b"[" * 100_000,
        "list": b"[]",
        "twice": b'{"images": [], "images": []}',
    }.items():
        yield Handmade(f"coco {name}", "coco", "boxes.json", content)
    good = b"0.png,1,1,4,5,red\n"
    rows = {
        "CR": _HEAD.replace(b"\n", b"\r") + good,
        "CR inside": _HEAD + b"0.png,1,1,4,5,re\rd\n",
        "null": _HEAD + b"0.png,1,1,4,5,re\0d\n",
        "huge field": _HEAD + b"0.png,1,1,4,5," + b"x" * 200_000 + b"\n",
        "double header": b"file,x,x,y,width,height,label\n0.png,1,1,1,4,5,red\n",
        "latin-1": _HEAD + b"0.png,1,1,4,5,gr\xfcn\n",
        "open quote": _HEAD + b'0.png,1,1,4,5,"red\n' + good,
        "400 digits": _HEAD + b"0.png,1,1,4," + b"9" * 400 + b",red\n",
        "underscore": _HEAD + b"0.png,1,1,4,5_0,red\n",
        "empty name": _HEAD + b",1,1,4,5,red\n",
        "header alone": _HEAD,
        "mark alone": b"\xef\xbb\xbf",
    }
    yield from (
        Handmade(f"boxes csv {name}", "boxes.csv", "boxes.csv", content)
        for name, content in rows.items()
    )
    box = b'{"file": "0.png", "boxes": [{"x": 1, "y": 1, "width": 2, "height": 2, "label": "a"}]}'
    lines = {
        "400 digits": box.replace(b"1", b"9" * 400),
        "nested": b"[" * 100_000,
        "twice": b'{"file": "0.png", "boxes": []}\n{"file": "0.png", "boxes": []}',
        "key twice": b'{"file": "0.png", "file": "1.png", "boxes": []}',
        "label null": b'{"file": "0.png", "boxes": [{"x": 1, "y": 1, "width": 2, "height": 2, "label": null}]}',
        "boxes text": b'{"file": "0.png", "boxes": "1234"}',
    }  # fmt: skip
    yield from (
        Handmade(f"boxes jsonl {n}", "boxes.jsonl", "boxes.jsonl", content)
        for n, content in lines.items()
    )


def _tiff(mode: str) -> bytes:
    out = io.BytesIO()
    Image.new(mode, (8, 8)).save(out, "TIFF")
    return out.getvalue()


def _png(width: int, height: int) -> bytes:
    """Return a PNG whose header states this size."""
    content = _patch(_patch(_of("png"), 16, width, 4, "big"), 20, height, 4, "big")
    return _patch(content, 29, zlib.crc32(content[12:29]), 4, "big")


def _images() -> Iterator[Handmade]:
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
    files: dict[str, Any] = {
        "eps": eps,
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="8" height="8"/>',
        "pdf": b"%PDF-1.4\n1 0 obj\n",
        "float": lambda: _tiff("F"),
        "32 bits": lambda: _tiff("I"),
        "huge": lambda: _png(60_000, 60_000),
        "wide": lambda: _png(2**31 - 1, 1),
        "no pixels": lambda: _png(0, 8),
        "cut": lambda: _of("png")[:60],
        "pipe": "pipe",
        "zeros": "zeros",
    }
    yield Handmade("folder named as an image", "png", "all/cat/1.png", "folder", "accepted")
    yield from (
        Handmade(f"image {name}", "png", "all/cat/1.png", content)
        for name, content in files.items()
    )
    images, labels = "t-images-idx3-ubyte", "t-labels-idx1-ubyte"
    sizes = (
        (30, 0, 0),
        (-30, -8, 8),
        (4194304, 2097152, 2097152),
        (12, 8, 9),
        (0, 8, 8),
        (2**31 - 1,) * 3,
    )
    for size in sizes:
        content = np.array([2051, *size], ">i4").tobytes() + bytes(768)
        yield Handmade(f"idx {size}", "idx", images, content)
    yield from (Handmade(f"idx {n} bytes", "idx", images, _of("idx")[:n]) for n in range(20))
    yield from (
        Handmade(f"idx labels {n} bytes", "idx", labels, _of("idx", labels)[:n]) for n in range(12)
    )
    yield Handmade("idx trailing", "idx", images, lambda: _of("idx") + b"\0")
    yield Handmade("gz bomb boxes", "boxes.jsonl", "boxes.jsonl", _bomb)
    yield Handmade("tar of zeros", "tar", "i.tar", bytes(10240))
    yield Handmade("tar cut", "tar", "i.tar", lambda: _of("tar", "i.tar")[:700])
    yield Handmade("gz bomb idx", "idx.gz", f"{images}.gz", _bomb)
    yield Handmade(
        "gz stored block", "idx.gz", f"{images}.gz", b"\x1f\x8b\x08" + bytes(7) + b"\x01\0\0\0\0"
    )
    rest = b"2.png,2\n3.png,5\n4.png,3\n"
    lists = {
        "CR lines": b"0.png,1\r1.png,2\r",
        "CR inside": b"0.png,1\n1.p\rng,2\n",
        "huge field": b"0.png,1\n1.png," + b"2" * 200_000 + b"\n",
        "nan": b"0.png,1\n1.png,nan\n" + rest,
        "1e308": b"0.png,1\n1.png,1e308\n" + rest,
        "1e-320": b"0.png,0\n1.png,1e-320\n",
        "near": b"".join(b"%d.png,100000000%d\n" % (i, i % 2) for i in range(6)),
        "latin-1": b"0.png,1\n1.png,\xe4\n",
        "open quote": b'0.png,1\n1.png,"2\n',
        "device": b"/dev/zero,1\n1.png,2\n",
    }
    yield from (
        Handmade(f"list csv {name}", "list.csv", "list.csv", content)
        for name, content in lists.items()
    )
    row = b'{"file": "0.png", "label": [1' + b"0" * 400 + b"]}\n"
    yield Handmade(
        "list jsonl nested",
        "list.jsonl",
        "list.jsonl",
        b'{"file": "0.png", "label": ' + b"[" * 100_000,
    )
    yield Handmade(
        "list jsonl 400 digits", "list.jsonl", "list.jsonl", row * 3, "accepted"
    )  # a label like others


def _texts() -> Iterator[Handmade]:
    digits = b"9" * 400
    for specimen_name in (
        "tsv",
        "jsonl",
        "parallel",
        "reviews tsv",
        "conll",
        "language",
        "tracks",
        "captions.tsv",
    ):
        yield Handmade(
            f"{specimen_name} mark alone",
            specimen_name,
            specimen(specimen_name).mutated[0],
            b"\xef\xbb\xbf",
        )
    for specimen_name in (
        "tsv",
        "conll",
        "language",
        "tracks",
        "idx",
        "npz",
        "wav",
        "coco",
        "tar",
        "captions.tsv",
    ):
        for kind in ("pipe", "zeros", "folder"):
            expected = "accepted" if kind == "pipe" and specimen_name not in _REGULAR else "refused"
            yield Handmade(
                f"{specimen_name} {kind}",
                specimen_name,
                specimen(specimen_name).mutated[0],
                kind,
                expected,
            )
    yield Handmade("gz bomb tsv", "tsv.gz", "pairs.tsv.gz", lambda: _bomb(b"a\tb\n"))
    yield Handmade("gz bomb lines", "tsv.gz", "pairs.tsv.gz", lambda: _bomb(b"\n", 1 << 26))
    yield Handmade("gz bomb language", "language", "text.txt", lambda: _bomb(b"text "))
    yield Handmade("NFKC", "tsv", "pairs.tsv", lambda: "\ufdfa".encode() * 5_000_000 + b"\ta\n")
    yield Handmade(
        "NFKC allowed",
        "tsv",
        "pairs.tsv",
        lambda: _of("tsv") + "\ufdfa".encode() * 400 + b"\ta\n",
        "accepted",
    )
    yield Handmade(
        "latin-1 reviews", "reviews tsv", "reviews.tsv", b"ein Hund\tgut\nzwei B\xe4ume\tschlecht\n"
    )
    rows = b"".join(f"text {i}\tclass{i}\n".encode() for i in range(10_000))
    yield Handmade(
        "10000 classes", "reviews tsv", "reviews.tsv", lambda: _of("reviews tsv") + rows, "accepted"
    )
    numbers = {
        "nan": b"nan",
        "inf": b"-inf",
        "1e308": b"1e308",
        "400 digits": digits,
        "1e-320": b"1e-320",
        "1e30": b"1e30",
    }
    for name, value in numbers.items():
        yield Handmade(
            f"number {name}", "reviews numbers", "numbers.tsv", b"a\t0\nb\t" + value + b"\n"
        )
        if name != "1e-320":
            yield Handmade(
                f"tracks {name}", "tracks", "tracks.txt", _of("tracks") + b"10 9 " + value + b" 1\n"
            )
    yield Handmade("tracks twice", "tracks", "tracks.txt", _of("tracks") * 2)
    yield Handmade("one class", "reviews tsv", "reviews.tsv", b"a\tx\nb\tx\n")
    yield Handmade(
        "class nan",
        "reviews tsv",
        "reviews.tsv",
        _of("reviews tsv") + b"no number\tnan\n",
        "accepted",
    )
    yield Handmade("surrogate", "jsonl", "pairs.jsonl", b'{"source": "\\ud800", "target": "a"}\n')
    yield Handmade(
        "tags surrogate", "tags jsonl", "tags.jsonl", b'{"tokens": ["\\ud800"], "tags": ["O"]}\n'
    )
    yield Handmade("nested", "jsonl", "pairs.jsonl", b'{"source": ' + b"[" * 100_000 + b"\n")
    yield Handmade(
        "key twice", "jsonl", "pairs.jsonl", b'{"source": "a", "source": "b", "target": "c"}\n'
    )
    yield Handmade("one character", "language", "text.txt", b"a", "accepted")
    yield Handmade("spaces", "language", "text.txt", b" \n \n")
    yield Handmade("no tags", "conll", "tags.conll", b"ein\nHund\n")
    yield Handmade(
        "caption traversal", "captions.tsv", "captions.tsv", b"../../../../etc/passwd\ta\n" * 3
    )


HANDMADE: tuple[Handmade, ...] = (*_arrays(), *_sounds(), *_boxes(), *_images(), *_texts())
