"""Tokenizers: characters, words or subwords (BPE), learned from the training texts.

BPE merges the characters of a chunk: a space (or the start) and the following letters, digit or run
of punctuation. The space is part of a chunk, so "man ," and "man," differ and decode(encode(text))
is the text, whether it was pre-tokenized or not; only runs of white space become one space. Escapes
such as &quot; are not split.

With `keeps_space`, as for language models, all white space stays: the start is not a space, further
white space is a chunk of BPE, and of words each is a token, but for the one space between two.

Every vocabulary that is learned here has four special tokens: PAD 0 for padding, UNK 1 for parts
that are not in the vocabulary, BOS 2 and EOS 3 for the beginning and end of a target. Those of a
pretrained tokenizer (`PretrainedTokenizer`) have other ids, or are missing: models and
recipes take them from `Tokenizer.specials`.

Source:  sennrich2016, section 3.2 (BPE), through the `tokenizers` library.
"""

import json
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, cast

import msgspec
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from regard.data.config import PairTokenizerConfig, TextTokenizerConfig, TokenizerConfig
from regard.data.text.words import WORDS, describe_surrogate, split_words
from regard.errors import UserError
from regard.system.extras import import_extra
from regard.system.files import read_json

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
"""Display names of the special tokens of a vocabulary that is learned here, by id."""

# In the vocabulary their names end in a space, which no piece does: the text "</s>" must not become
# EOS.
_INNER_SPECIALS = tuple(name + " " for name in SPECIALS)
_ENTITY = r" ?&(?:[a-z]+|#[0-9]+);"
# Learning merges takes time quadratic in the length of a chunk: a line that is one "word" must not
# be one chunk.
_RUN = "{1,64}"
_BPE_CHUNK = (
    rf"{_ENTITY}| ?[\p{{L}}\p{{M}}]{_RUN}| ?\p{{N}}| ?[^\p{{L}}\p{{M}}\p{{N}}\s]{_RUN}"
    rf"|\s{_RUN}(?!\S)|\s"  # a space before a word is part of it
)
_SPACE = r"\s\x1c-\x1f"  # white space of Python
_WORD_ENDS = re.compile(r"(?<=\S) (?=\S)|(\s)")
SHOWN_SPACE = "\u2581"
_REPLACEMENT = "\ufffd"
_PARALLEL = "TOKENIZERS_PARALLELISM"
_UNCHANGED = normalizers.Sequence([])
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
"""Token of a byte of a character that is not in the vocabulary."""
_LANGUAGE = re.compile(">>.*?<<", re.DOTALL)
"""Code of the language of an output, before an input of Marian: one piece."""
_HIDDEN_BYTES = [*range(33), *range(127, 161), 173]
"""Bytes that byte-level BPE writes as the characters from 256 on."""


class Specials(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ids of the special tokens of a tokenizer; None for one that it lacks."""

    pad: int | None = None
    unk: int | None = None
    bos: int | None = None
    eos: int | None = None
    start: int | None = None
    """First input of a decoder: bos, or pad as in Marian and T5."""

    @property
    def filler(self) -> int:
        """Id of a text without tokens, and of a dropped token: unk, or the first one there is."""
        ids = (self.unk, self.pad, self.eos, self.bos, 0)
        return next(number for number in ids if number is not None)


@dataclass(frozen=True)
class Ends:
    """Ids before and after those of a text."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.before) + len(self.after)


NO_ENDS, SOURCE_ENDS, TARGET_ENDS = Ends(), Ends(after=(EOS,)), Ends((BOS,), (EOS,))


class Tokenizer(ABC):
    """Tokenizer with a fixed vocabulary: one that is trained here, or a pretrained one."""

    config: TokenizerConfig
    specials: Specials
    labels: Sequence[str]
    """Label of each token in pictures."""
    keeps_space = True
    banned: tuple[int, ...] = ()
    """Ids that a language model never generates."""
    text_ends = NO_ENDS
    source_ends = SOURCE_ENDS
    target_ends = TARGET_ENDS
    """Ids around a text that is classified, tagged or continued, a source, and a target."""

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def parts(self, text: str) -> list[tuple[int, str]]:
        """Return each token id of a text, with its part of the normalized text."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Convert token ids to a text, without special tokens."""

    @abstractmethod
    def save(self, path: str | Path) -> None:
        """Write the file that `load_tokenizer` reads."""

    def decode_prefix(self, ids: Sequence[int]) -> str:
        """Convert the first ids of an output to the beginning of its text, whatever ids follow.

        Bytes at the end may be part of a character, and are left out.
        """
        count = len(ids)
        while count and _BYTE.fullmatch(self.labels[ids[count - 1]]):
            count -= 1
        return self.decode(ids[:count]).rstrip(_REPLACEMENT)

    @property
    def noun(self) -> str:
        return {"word": "words", "char": "characters"}.get(self.config.kind, "subwords")

    def encode(self, text: str) -> list[int]:
        """Convert a text to token ids, without those around it; unk for unknown parts."""
        return [number for number, _ in self.parts(text)]

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        # The batch method of the library starts threads, after which a forked process warns.
        return [self.encode(text) for text in texts]

    def normalize(self, text: str) -> str:
        """Return a reference in the form of outputs."""
        return text

    def tokens(self, content: str | Iterable[int], ends: Ends = NO_ENDS) -> list[str]:
        r"""Return a label for each token: its space is shown as "\u2581", an unknown part of a text
        as <unk:part>.

        ends: ids around the content, which have labels, too.
        """
        parts = self.parts(content) if isinstance(content, str) else [(i, "") for i in content]
        before, after = ([(i, "") for i in side] for side in (ends.before, ends.after))
        labels = []
        for number, part in (*before, *parts, *after):
            self.check(number)
            is_unknown = part and number == self.specials.unk
            labels.append(f"<unk:{part}>" if is_unknown else self.labels[number])
        return labels

    def segment(self, text: str) -> list[str]:
        """Return the part of the normalized text for each token, known or not."""
        return [part for _, part in self.parts(text)]

    def unknown(self, text: str) -> tuple[str, ...]:
        """Return the unknown parts of a text, each once: words (kind word) or characters."""
        unknown = (part for number, part in self.parts(text) if number == self.specials.unk)
        return tuple(dict.fromkeys(unknown))

    def is_unknown(self, ids: Iterable[int]) -> bool:
        """Return True if the ids of a text are all unk, but for spaces and those around it."""
        inner = {*ids} - {*self.text_ends.before, *self.text_ends.after}
        return {i for i in inner if self.labels[i] != SHOWN_SPACE} == {self.specials.unk}

    def shorten(self, text: str, most: int) -> str:
        """Return the longest beginning of a text with at most `most` tokens, stripped."""
        text = text.strip()
        if len(self.encode(text)) <= most:
            return text
        # The number of tokens nearly always grows with the length; where it does not, the text is a
        # little shorter.
        fits, too_long = 0, len(text)
        while too_long - fits > 1:
            middle = (fits + too_long) // 2
            is_short = len(self.encode(text[:middle])) <= most
            fits, too_long = (middle, too_long) if is_short else (fits, middle)
        return text[:fits].rstrip()

    def check(self, number: int) -> None:
        if not 0 <= number < len(self):
            raise ValueError(f"a token id must be from 0 to {len(self) - 1}, got {number}")


class TrainedFile(msgspec.Struct, tag_field="format", tag="regard-tokenizer"):
    """File of a tokenizer that is trained here."""

    version: Literal[1]
    config: TextTokenizerConfig
    pieces: Sequence[str]
    merges: Sequence[tuple[str, str]]
    keeps_space: bool = False


class TrainedTokenizer(Tokenizer):
    """Tokenizer that is trained here. Create one with `TrainedTokenizer.train`."""

    specials = Specials(pad=PAD, unk=UNK, bos=BOS, eos=EOS, start=BOS)
    banned = (PAD, UNK, BOS, EOS)

    def __init__(
        self,
        config: TokenizerConfig,
        *,
        pieces: Sequence[str],
        merges: Sequence[tuple[str, str]] = (),
        keeps_space: bool = False,
    ) -> None:
        """Create a tokenizer from its `pieces`, from id 4 on, and, for BPE, its `merges`."""
        self.config, self.keeps_space = config, keeps_space
        self.merges = tuple(merges)
        names = _INNER_SPECIALS if config.kind == "word" else SPECIALS
        self.pieces = (*names, *pieces)
        self.labels = (*SPECIALS, *[piece.replace(" ", SHOWN_SPACE) for piece in pieces])
        self._numbers = {piece: number for number, piece in enumerate(self.pieces)}
        self.normalizer = _normalizer(config, keeps_space)
        self.engine = _engine(config, self._numbers, self.merges, keeps_space)

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        config: TokenizerConfig,
        *,
        keeps_space: bool = False,
        origin: str = "texts",
    ) -> Self:
        """Learn a vocabulary from texts, which are iterated twice for BPE.

        Words and characters are selected by frequency, with ties in the order of their code points.
        BPE starts with the characters, and merges the most frequent pair of pieces until the
        vocabulary is full or no pair occurs twice.
        """
        if config.kind == "pretrained":
            raise UserError("tokenizer.kind pretrained needs an imported run, given as --init")
        if config.kind == "bpe" and iter(texts) is texts:
            raise TypeError("`texts` must be iterable more than once for BPE, got an iterator")
        normalizer, counts = _normalizer(config, keeps_space), Counter[str]()
        for text in texts:
            normal = _normalize(text, normalizer, origin)
            counts.update(_simple_chunks(normal, config, keeps_space))
        frequent = [piece for piece, count in counts.items() if count >= config.min_count]
        by_frequency = sorted(frequent, key=lambda piece: (-counts[piece], piece))
        pieces = by_frequency[: config.vocab_size - len(SPECIALS)]
        if not pieces:
            problem = f"no token occurs at least {config.min_count} times (tokenizer.min-count)"
            raise UserError(f"{origin}: {problem}.")
        if config.kind != "bpe":
            return cls(config, pieces=pieces, keeps_space=keeps_space)
        normal = (_normalize(text, normalizer, origin) for text in texts)
        pieces, merges = _learn_merges(normal, pieces, config)
        return cls(config, pieces=pieces, merges=merges, keeps_space=keeps_space)

    def encode(self, text: str) -> list[int]:
        normal = _normalize(text, self.normalizer)
        if self.config.kind == "bpe":
            return self.engine.encode(normal).ids
        chunks = _simple_chunks(normal, self.config, self.keeps_space)
        return [self._numbers.get(chunk, UNK) for chunk in chunks]

    def normalize(self, text: str) -> str:
        normal = _normalize(text, self.normalizer)
        return normal.removeprefix(" ") if self.config.kind == "bpe" else normal

    def decode(self, ids: Iterable[int]) -> str:
        """Convert token ids to a text. PAD, BOS and EOS are omitted; UNK becomes <unk>."""
        shown = [*ids]
        for number in shown:
            self.check(number)
        return self.engine.decode([i for i in shown if i not in (PAD, BOS, EOS)])

    def save(self, path: str | Path) -> None:
        pieces, config = self.pieces[len(SPECIALS) :], cast("TextTokenizerConfig", self.config)
        file = TrainedFile(1, config, pieces, self.merges, self.keeps_space)
        content = json.dumps(msgspec.to_builtins(file), ensure_ascii=False, indent=0)
        Path(path).write_text(content + "\n", encoding="utf-8")

    def parts(self, text: str) -> list[tuple[int, str]]:
        normal = _normalize(text, self.normalizer)
        encoding = self.engine.encode(normal)
        parts = [normal[first:last] for first, last in encoding.offsets]
        return list(zip(encoding.ids, parts, strict=True))


class PretrainedFile(msgspec.Struct, tag_field="format", tag="regard-pretrained-tokenizer"):
    """File of a pretrained tokenizer, which is kept whole."""

    version: Literal[1]
    model: dict[str, Any] | bytes
    """JSON of the `tokenizers` library, or a model of `sentencepiece`."""
    size: int
    """Size of the vocabulary of the model, which may be larger than that of the tokenizer."""
    specials: Specials = Specials()
    ends: Ends = NO_ENDS
    vocabulary: tuple[str, ...] = ()
    """Pieces by id, if they have other ids than in the model of `sentencepiece` (Marian)."""
    splits_specials: bool = False
    """Names of special tokens in a text are text."""


class PretrainedTokenizer(Tokenizer):
    """Tokenizer of a pretrained model, with the ids and texts of the library that it is from."""

    config = TokenizerConfig(kind="pretrained", normalize="none")

    def __init__(self, file: PretrainedFile) -> None:
        self.file, self.specials = file, file.specials
        self.text_ends = self.source_ends = file.ends
        start = () if file.specials.start is None else (file.specials.start,)
        self.target_ends = Ends((*start, *file.ends.before), file.ends.after)
        self.model, is_bytes = _open(file.model), False
        if isinstance(file.model, bytes):
            pieces = file.vocabulary or map(self.model.id_to_piece, range(len(self.model)))
            self.numbers = {piece: number for number, piece in enumerate(pieces)}
            added = {*msgspec.structs.astuple(file.specials)}
        else:
            self.model.encode_special_tokens = file.splits_specials
            self.numbers = self.model.get_vocab()
            added = self.model.get_added_tokens_decoder()
            is_bytes = "ByteLevel" in repr(self.model.decoder)
        names = {i: piece for piece, i in self.numbers.items()}
        self._pieces = {i: piece for i, piece in names.items() if i not in added}
        if is_bytes:
            names |= {i: _bytes_label(piece) for i, piece in self._pieces.items()}
        self.labels = [names.get(i, f"<extra {i}>") for i in range(file.size)]

    def parts(self, text: str) -> list[tuple[int, str]]:
        _normalize(text, _UNCHANGED)
        if isinstance(self.file.model, bytes):
            found = _LANGUAGE.match(text) if self.file.vocabulary else None
            code = "" if found is None else found[0]
            pieces = [code] * bool(code) + self.model.encode(text[len(code) :], out_type=str)
            ids: Any = [self.numbers.get(piece, self.specials.unk) for piece in pieces]
            parts = [piece.replace(SHOWN_SPACE, " ") for piece in pieces]
        else:
            encoding = self.model.encode(text, add_special_tokens=False)
            ids, parts = encoding.ids, [text[first:last] for first, last in encoding.offsets]
        return list(zip(ids, parts, strict=True))

    def decode(self, ids: Iterable[int]) -> str:
        if not isinstance(self.file.model, bytes):
            return self.model.decode([*ids])
        pieces = [self._pieces[number] for number in ids if number in self._pieces]
        return self.model.decode_pieces(pieces).replace(SHOWN_SPACE, " ").strip()

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(msgspec.json.encode(self.file) + b"\n")


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read a file that a tokenizer saved. Raises UserError if it is missing or damaged."""
    file = read_json(Path(path), TrainedFile | PretrainedFile)
    if isinstance(file, PretrainedFile):
        return PretrainedTokenizer(file)
    pieces, merges, keeps_space, config = file.pieces, file.merges, file.keeps_space, file.config
    if not config.split_punctuation:  # saved again, the file has the same bytes
        config = msgspec.convert(msgspec.to_builtins(config), TokenizerConfig)
    return TrainedTokenizer(config, pieces=pieces, merges=merges, keeps_space=keeps_space)


def train_tokenizers(
    sources: Sequence[str],
    targets: Sequence[str],
    config: PairTokenizerConfig,
    *,
    origin: str = "text",
) -> tuple[TrainedTokenizer, TrainedTokenizer]:
    """Train the tokenizers of the source and target side; one for both if `config.joint`."""
    if config.joint:
        both = TrainedTokenizer.train([*sources, *targets], config, origin=origin)
        return both, both
    train = TrainedTokenizer.train
    return train(sources, config, origin=origin), train(targets, config, origin=origin)


def _normalizer(config: TokenizerConfig, keeps_space: bool) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if config.normalize != "none":
        steps.append(normalizers.NFC() if config.normalize == "nfc" else normalizers.NFKC())
    if config.lowercase:
        steps.append(normalizers.Lowercase())
    if config.kind != "char" and not keeps_space:
        steps += [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    if config.kind == "bpe" and not keeps_space:
        # A word is the same piece at the start as elsewhere.
        steps.append(normalizers.Prepend(" "))
    return normalizers.Sequence(steps)


def _simple_chunks(normal: str, config: TokenizerConfig, keeps_space: bool) -> Sequence[str]:
    """Split a normalized text into words or characters, the pieces (for BPE the initial ones)."""
    if config.kind != "word":
        return normal
    if _splits_punctuation(config):
        return split_words(normal)[0]
    if keeps_space:
        return [chunk for chunk in _WORD_ENDS.split(normal) if chunk]
    return normal.split(" ") if normal else []


def _splits_punctuation(config: TokenizerConfig) -> bool:
    return isinstance(config, TextTokenizerConfig) and config.split_punctuation


def _engine(
    config: TokenizerConfig,
    vocabulary: dict[str, int],
    merges: Sequence[tuple[str, str]],
    keeps_space: bool,
) -> tokenizers.Tokenizer:
    """Return a tokenizer of the library that encodes and decodes normalized texts."""
    unknown = list(vocabulary)[UNK]
    model: Any = models.WordLevel(vocabulary, unk_token=unknown)
    splits, joined = [pre_tokenizers.Split(" ", "removed")], list[Any]([decoders.Fuse()])
    if config.kind == "char":
        splits = [pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")]
    elif config.kind == "bpe":
        model = models.BPE(vocabulary, list(merges), unk_token=unknown, fuse_unk=False)
        splits = [pre_tokenizers.Split(Regex(_BPE_CHUNK), "isolated")]
        joined += [] if keeps_space else [decoders.Strip(" ", 1, 0)]
    else:
        splits = [WORDS] if _splits_punctuation(config) else splits
        joined = [decoders.Replace(unknown, SPECIALS[UNK])]
        joined += [decoders.WordPiece(prefix="  ", cleanup=False), decoders.Fuse()]
    if config.kind == "word" and keeps_space:
        # No space is added before white space, nor between it and a word.
        joined.insert(2, decoders.Replace(Regex(f"^ (?=[{_SPACE}]$)"), ""))
        joined.append(decoders.Replace(Regex(f"(?<=[{_SPACE}]) (?=[^{_SPACE}])"), ""))
        splits = [
            pre_tokenizers.Split(Regex(f"(?<=[^{_SPACE}]) (?=[^{_SPACE}])"), "removed"),
            pre_tokenizers.Split(Regex(f"[{_SPACE}]"), "isolated"),
        ]
    engine = tokenizers.Tokenizer(model)
    engine.pre_tokenizer = pre_tokenizers.Sequence(splits)
    engine.decoder = decoders.Sequence(joined)
    return engine


def _learn_merges(
    normal: Iterable[str], alphabet: Sequence[str], config: TokenizerConfig
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the pieces of BPE (characters, then merged ones) from normalized texts, and merges."""
    engine = tokenizers.Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.Split(Regex(_BPE_CHUNK), behavior="isolated")
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size - len(SPECIALS),
        min_frequency=2,
        # The library breaks ties at random when it limits the alphabet itself.
        initial_alphabet=list(alphabet),
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    # The library would start threads, after which forked processes warn or hang.
    before = os.environ.get(_PARALLEL)
    os.environ[_PARALLEL] = "false"
    engine.train_from_iterator(normal, trainer)
    if before is None:
        del os.environ[_PARALLEL]
    else:
        os.environ[_PARALLEL] = before
    model = json.loads(engine.to_str())["model"]
    vocabulary = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return vocabulary, [(left, right) for left, right in model["merges"]]


def _bytes_label(piece: str) -> str:
    """Return the label of a piece of bytes, which may be a part of a character."""
    content = bytes(ord(c) if ord(c) < 256 else _HIDDEN_BYTES[ord(c) - 256] for c in piece)
    try:
        return content.decode().replace(" ", SHOWN_SPACE)
    except UnicodeDecodeError:
        return f"<{content.hex(' ').upper()}>"


def _open(model: dict[str, Any] | bytes) -> Any:
    """Return the tokenizer of a library from its model."""
    if not isinstance(model, bytes):
        engine = tokenizers.Tokenizer.from_str(json.dumps(model))
        engine.no_truncation()
        engine.no_padding()
        return engine
    library = import_extra("sentencepiece", "the tokenizer")
    return library.SentencePieceProcessor(model_proto=model)


def _normalize(text: str, normalizer: normalizers.Normalizer, origin: str = "text") -> str:
    """Normalize a text. Raises UserError for a lone surrogate, of wrongly decoded bytes."""
    try:
        return normalizer.normalize_str(text)
    except UnicodeEncodeError as error:
        raise UserError(f"{origin}: {describe_surrogate(text, error)}.") from None
