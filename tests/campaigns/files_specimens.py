"""Small valid data sets in every format, with the command line that trains one step on each."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import soundfile
from PIL import Image

__all__ = ["SPECIMENS", "Specimen", "specimen"]

_TRAIN = (
    "--train.steps 1 --train.warmup 0 --train.validate-every 1 --train.tensorboard false "
    "--train.average 0 "
    "--train.precision float32 --threads 1 --model.dropout 0"
)
_CORE = (
    "--model.core transformer --model.core.width 8 --model.core.layers 1 --model.core.heads 2 "
    "--model.core.feedforward 8"
)
_TEXTS = f"--tokenizer.vocab-size 60 {_TRAIN} {_CORE}"
_IMAGES = f"--patch 4 {_TRAIN} {_CORE}"
_SETS = f"--model.num-queries 3 --batch 4 --downsampling-layers 2 {_TRAIN} {_CORE}"
_CONTAINERS = ("w64", "rf64", "aiff", "au", "caf")
WORDS = (
    "ein Hund",
    "zwei Katzen",
    "drei rote B\u00e4ume",
    "ein Haus am See",
    "kein Mensch",
    "viele Wege",
)


@dataclass(frozen=True)
class Specimen:
    """Files of a data set by name, the ones to damage, and the training options; {} in a word is
    their folder."""

    recipe: str
    words: str
    files: dict[str, bytes]
    mutated: tuple[str, ...]
    extra: dict[str, Any] = field(default_factory=dict)


def _lines(*rows: str) -> bytes:
    return "".join(f"{row}\n" for row in rows).encode()


def _json_lines(rows: list[Any]) -> bytes:
    return _lines(*(json.dumps(row, ensure_ascii=False) for row in rows))


def _pairs() -> list[tuple[str, str]]:
    return [(f"{text} {i}", f"a text {i} {text[::-1]}") for i, text in enumerate(WORDS * 2)]


def _translate(
    train: str, files: dict[str, bytes], more: str = "", mutated: tuple[str, ...] = ()
) -> Specimen:
    val = {"val.tsv": _lines(*(f"{a}\t{b}" for a, b in _pairs()[:3]))} if not more else {}
    paths = f"--data.train {{}}/{train} {more or '--data.val {}/val.tsv'}"
    words = f"translate {paths} --val-sample 2 --decode.max-ratio 1 {_TEXTS}"
    return Specimen("translate", words, files | val, mutated or (train,))


def _tsv() -> Specimen:
    return _translate("pairs.tsv", {"pairs.tsv": _lines(*(f"{a}\t{b}" for a, b in _pairs()))})


def _tsv_gz() -> Specimen:
    return _translate(
        "pairs.tsv.gz", {"pairs.tsv.gz": gzip.compress(_tsv().files["pairs.tsv"], mtime=0)}
    )


def _jsonl() -> Specimen:
    rows = [{"source": a, "target": b, "more": {"id": i}} for i, (a, b) in enumerate(_pairs())]
    return _translate("pairs.jsonl", {"pairs.jsonl": _json_lines(rows)})


def _parallel() -> Specimen:
    sides = {
        f"train.{end}": _lines(*(pair[i] for pair in _pairs()))
        for i, end in enumerate(("de", "en"))
    }
    vals = {
        f"val.{end}": _lines(*(pair[i] for pair in _pairs()[:3]))
        for i, end in enumerate(("de", "en"))
    }
    more = "--data.train-target {}/train.en --data.val {}/val.de --data.val-target {}/val.en"
    return _translate("train.de", sides | vals, more, ("train.de", "train.en"))


def _reviews(name: str, content: bytes, val: bytes, more: str = "") -> Specimen:
    ending = name.split(".", 1)[1]
    words = f"reviews --data.train {{}}/{name} --data.val {{}}/val.{ending} --word-dropout 0 {more} {_TEXTS}"
    return Specimen("reviews", words, {name: content, f"val.{ending}": val}, (name,))


def _reviews_tsv() -> Specimen:
    rows = [f"{text} {i}\t{('good', 'bad', '3')[i % 3]}" for i, text in enumerate(WORDS * 2)]
    return _reviews("reviews.tsv", _lines(*rows), _lines(*rows[:3]))


def _reviews_jsonl() -> Specimen:
    rows = [
        {"text": f"{text} {i}", "label": ("good", "bad", 3)[i % 3]}
        for i, text in enumerate(WORDS * 2)
    ]
    return _reviews("reviews.jsonl", _json_lines(rows), _json_lines(rows[:3]))


def _reviews_labels() -> Specimen:
    rows = [
        {"text": f"{text} {i}", "label": (["a"], ["a", "b"], [])[i % 3]}
        for i, text in enumerate(WORDS * 2)
    ]
    return _reviews(
        "labels.jsonl", _json_lines(rows), _json_lines(rows[:3]), "--data.target labels"
    )


def _reviews_numbers() -> Specimen:
    rows = [f"{text} {i}\t{i * 0.7 - 2:.2f}" for i, text in enumerate(WORDS * 2)]
    return _reviews("numbers.tsv", _lines(*rows), _lines(*rows[:3]), "--data.target number")


def _tags(name: str, content: bytes) -> Specimen:
    val = {f"val.{name.split('.')[1]}": content}
    words = f"tags --data.train {{}}/{name} --data.val {{}}/{next(iter(val))} {_TEXTS}"
    return Specimen("tags", words, {name: content} | val, (name,))


def _sentences() -> list[list[tuple[str, str]]]:
    return [
        [(word, "B-X" if word[0].isupper() else "O") for word in text.split()] for text in WORDS
    ]


def _conll() -> Specimen:
    rows = "\n\n".join(
        "\n".join(f"{word} {tag}" for word, tag in sentence) for sentence in _sentences()
    )
    return _tags("tags.conll", f"-DOCSTART- O\n\n{rows}\n".encode())


def _tags_jsonl() -> Specimen:
    rows = [
        {"tokens": [w for w, _ in sentence], "tags": [t for _, t in sentence]}
        for sentence in _sentences()
    ]
    return _tags("tags.jsonl", _json_lines(rows))


def _language() -> Specimen:
    content = _lines(*WORDS * 4)
    words = f"language --data.train {{}}/text.txt --data.val {{}}/val.txt --context 16 --batch 4 {_TEXTS}"
    return Specimen(
        "language", words, {"text.txt": content, "val.txt": content[:200]}, ("text.txt",)
    )


def _idx_bytes(array: np.ndarray) -> bytes:
    return (
        np.array([2051 if array.ndim == 3 else 2049, *array.shape], ">i4").tobytes()
        + array.tobytes()
    )


def _idx(packed: bool = False) -> Specimen:
    draw = np.random.default_rng(1)
    pixels, labels = draw.integers(0, 256, (12, 8, 8), np.uint8), np.arange(12, dtype=np.uint8) % 3
    end = ".gz" if packed else ""
    names = f"t-images-idx3-ubyte{end}", f"t-labels-idx1-ubyte{end}"
    contents = (_idx_bytes(pixels), _idx_bytes(labels))
    files = {
        n: gzip.compress(c, mtime=0) if packed else c for n, c in zip(names, contents, strict=True)
    }
    return Specimen("images", f"images --data.train {{}}/{names[0]} {_IMAGES}", files, names)


def _image(
    draw: np.random.Generator, form: str, size: tuple[int, int] = (8, 8), **options: Any
) -> bytes:
    out = io.BytesIO()
    pixels = draw.integers(0, 256, size, np.uint8)
    kinds = {"PPM": pixels, "PNG16": (pixels.astype(np.uint16) * 257)}
    image = Image.fromarray(kinds.get(form, np.stack((pixels,) * 3, -1)))
    image.save(out, {"PNG16": "PNG"}.get(form, form), **options)
    return out.getvalue()


def _folder(form: str, ending: str) -> Callable[[], Specimen]:
    def make() -> Specimen:
        draw = np.random.default_rng(2)
        files = {
            f"all/{name}/{i}{ending}": _image(draw, form)
            for name in ("cat", "dog")
            for i in range(3)
        }
        words = f"images --data.train {{}}/all --data.val-share 0.3 --data.size 8 {_IMAGES}"
        return Specimen("images", words, files, ("all/cat/1" + ending,))

    return make


def _list_files(name: str, content: bytes, more: str = "") -> Specimen:
    draw = np.random.default_rng(3)
    files = {f"{i}.png": _image(draw, "PNG") for i in range(6)}
    return Specimen(
        "images",
        f"images --data.train {{}}/{name} {more} {_IMAGES}",
        files | {name: content},
        (name,),
    )


def _list_tsv() -> Specimen:
    return _list_files(
        "list.tsv", _lines("file\tlabel", *(f"{i}.png\t{'ab'[i % 2]}" for i in range(6)))
    )


def _list_csv() -> Specimen:
    rows = (f'{i}.png,"{i * 1.5},{7 - i}"' for i in range(6))
    return _list_files("list.csv", _lines("file,label", *rows), "--data.target number")


def _list_jsonl() -> Specimen:
    rows = [{"file": f"{i}.png", "label": ["a", "b"][: i % 3]} for i in range(6)]
    return _list_files("list.jsonl", _json_lines(rows), "--data.target labels")


def _boxes(name: str, content: bytes, mutated: str = "") -> Specimen:
    draw = np.random.default_rng(4)
    images = {f"{i}.png": _image(draw, "PNG", (12, 16)) for i in range(4)}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for file, image in images.items():
            info = tarfile.TarInfo(file)
            info.size = len(image)
            archive.addfile(info, io.BytesIO(image))
    words = f"boxes --data.train {{}}/{name} --data.train-images {{}}/i.tar --data.width 16 --data.height 12 {_SETS}"
    return Specimen("boxes", words, {name: content, "i.tar": out.getvalue()}, (mutated or name,))


def _coco_content() -> dict[str, Any]:
    return {
        "images": [{"id": i, "file_name": f"{i}.png", "width": 16, "height": 12} for i in range(4)],
        "categories": [{"id": 1, "name": "red"}, {"id": 2, "name": "blue"}],
        "annotations": [
            {
                "id": i,
                "image_id": i % 4,
                "category_id": 1 + i % 2,
                "bbox": [i, 1.5, 4, 5],
                "iscrowd": 0,
                "area": 20,
            }
            for i in range(6)
        ],
    }


def _coco() -> Specimen:
    return _boxes("boxes.json", json.dumps(_coco_content()).encode())


def _boxes_csv() -> Specimen:
    rows = (f"{i % 4}.png,{i},1.5,4,5,{'red' if i % 2 else 'blue'}" for i in range(6))
    return _boxes("boxes.csv", _lines("file,x,y,width,height,label", *rows))


def _boxes_jsonl() -> Specimen:
    box = {"x": 1, "y": 2.5, "width": 3, "height": 4, "label": "red"}
    return _boxes(
        "boxes.jsonl",
        _json_lines([{"file": f"{i}.png", "boxes": [box] * (i % 3)} for i in range(4)]),
    )


def _tar() -> Specimen:
    return _boxes("boxes.json", _coco().files["boxes.json"], "i.tar")


def _sound(form: str = "WAV", **options: Any) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, np.sin(np.arange(2000) / 9) * 0.5, 8000, format=form, **options)
    return out.getvalue()


def _bare_mp3() -> bytes:
    """Remove the first frame, which states the length."""
    content = _sound("MP3")
    return content[content.index(content[:2], 2) :]


def _container(form: str) -> Specimen:
    return _events(f"a.{form}", _sound(form.upper()), f"a.{form}")


def _events(sound: str, content: bytes, mutated: str) -> Specimen:
    rows = (f"{sound},0.05,0.1,a", f"{sound},0.15,0.05,b", "val.wav,0.01,0.1,a")
    files = {
        "events.csv": _lines("file,onset,duration,label", *rows),
        sound: content,
        "val.wav": _sound(),
    }
    files["val.csv"] = _lines("file,onset,duration,label", "val.wav,0.01,0.1,a")
    words = (
        f"events --data.train {{}}/events.csv --data.val {{}}/val.csv --data.seconds 0.25 "
        f"--data.bands 8 "
        f"--channels 4 {_SETS}"
    )
    return Specimen("events", words, files, (mutated,))


def _npz(save: Callable[..., None] = np.savez) -> Specimen:
    out = io.BytesIO()
    lengths = np.array([100, 150, 120] * 4)
    samples = (np.random.default_rng(5).normal(0, 3000, lengths.sum())).astype(np.int16)
    label = np.array(["a", "b", "c"] * 4)
    offsets, index = np.cumsum([0, *lengths]), np.array([0, 5, 10] * 4)
    save(out, samples=samples, offsets=offsets, label=label, index=index, sample_rate=8000)
    words = (
        f"events --data.train {{}}/sounds.npz --data.seconds 0.25 --data.bands 8 --data.epoch-size "
        f"8 --data.val-size 2 "
        f"--data.test-size 2 --channels 4 {_SETS}"
    )
    return Specimen("events", words, {"sounds.npz": out.getvalue()}, ("sounds.npz",))


def _tracks() -> Specimen:
    rows = [
        f"{10 * t}.0\t{person}\t{person + 0.3 * t:.2f}\t{t * 0.1 - person:.2f}"
        for t in range(24)
        for person in (1, 2, 3)
    ]
    words = (
        f"tracks --data.train {{}}/tracks.txt --data.val {{}}/val.txt --batch 8 {_TRAIN} {_CORE}"
    )
    files = {"tracks.txt": _lines(*rows), "val.txt": _lines(*rows)}
    return Specimen("tracks", words, files, ("tracks.txt",))


def _captions(name: str, content: bytes) -> Specimen:
    draw = np.random.default_rng(6)
    files = {f"{i}.png": _image(draw, "PNG") for i in range(6)} | {name: content}
    words = (
        f"draw --data.train {{}}/{name} --data.val-share 0.3 --autoencoder-steps 1 "
        f"--autoencoder.codebook-size 4 "
        f"--model.core.decoder-layers 1 {_TRAIN} {_CORE}"
    )
    return Specimen("draw", words, files, (name,))


def _captions_tsv() -> Specimen:
    return _captions("captions.tsv", _lines(*(f"{i}.png\t{text}" for i, text in enumerate(WORDS))))


def _captions_jsonl() -> Specimen:
    rows = [{"image": f"{i}.png", "text": text} for i, text in enumerate(WORDS)]
    return _captions("captions.jsonl", _json_lines(rows))


SPECIMENS: dict[str, Callable[[], Specimen]] = {
    "tsv": _tsv,
    "tsv.gz": _tsv_gz,
    "jsonl": _jsonl,
    "parallel": _parallel,
    "reviews tsv": _reviews_tsv,
    "reviews jsonl": _reviews_jsonl,
    "reviews labels": _reviews_labels,
    "reviews numbers": _reviews_numbers,
    "conll": _conll,
    "tags jsonl": _tags_jsonl,
    "language": _language,
    "idx": _idx,
    "idx.gz": lambda: _idx(packed=True),
    "png": _folder("PNG", ".png"),
    "png16": _folder("PNG16", ".png"),
    "jpeg": _folder("JPEG", ".jpg"),
    "bmp": _folder("BMP", ".bmp"),
    "gif": _folder("GIF", ".gif"),
    "webp": _folder("WEBP", ".webp"),
    "tiff": _folder("TIFF", ".tif"),
    "pgm": _folder("PPM", ".pgm"),
    "list.tsv": _list_tsv,
    "list.csv": _list_csv,
    "list.jsonl": _list_jsonl,
    "coco": _coco,
    "boxes.csv": _boxes_csv,
    "boxes.jsonl": _boxes_jsonl,
    "tar": _tar,
    "events.csv": lambda: _events("a.wav", _sound(), "events.csv"),
    "wav": lambda: _events("a.wav", _sound(), "a.wav"),
    "wav float": lambda: _events("a.wav", _sound(subtype="FLOAT"), "a.wav"),
    "flac": lambda: _events("a.flac", _sound("FLAC"), "a.flac"),
    "ogg": lambda: _events("a.ogg", _sound("OGG"), "a.ogg"),
    "opus": lambda: _events("a.ogg", _sound("OGG", subtype="OPUS"), "a.ogg"),
    "mp3": lambda: _events("a.mp3", _sound("MP3"), "a.mp3"),
    "mp3 bare": lambda: _events("a.mp3", _bare_mp3(), "a.mp3"),
    "alac": lambda: _events("a.caf", _sound("CAF", subtype="ALAC_16"), "a.caf"),
    **{form: partial(_container, form) for form in _CONTAINERS},
    "npz": _npz,
    "npz packed": lambda: _npz(np.savez_compressed),
    "tracks": _tracks,
    "captions.tsv": _captions_tsv,
    "captions.jsonl": _captions_jsonl,
}


@cache
def specimen(name: str) -> Specimen:
    """Return the data set of this format."""
    return SPECIMENS[name]()
