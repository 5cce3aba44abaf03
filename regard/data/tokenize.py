"""Texts to numbers and back: characters, words, or parts of words (BPE), learned from the training texts.

    text  --normalize-->  --cut-->  chunks  --model-->  pieces  --vocabulary-->  ids

Kind   chunk                                            model                       decode
char   a character, white space included                the chunk itself            pieces joined
word   what stands between white space                  the chunk itself            pieces joined by one space
bpe    a space (or the start) and the letters, the      byte pair encoding:         pieces joined, without the
       digit, or the run of signs that follows it       learned merges of pairs     space before the first

The space is part of a BPE chunk, so "man ," and "man," are told apart and decode(encode(text)) is the text,
whether it was tokenized before or not; only runs of white space become one space. Escapes such as &quot; stay
whole.

Four numbers are special in every vocabulary: PAD 0 fills up short rows, UNK 1 stands for what was not in the
training texts, BOS 2 and EOS 3 begin and end a target.

Source:  sennrich2016, section 3.2 (BPE), through the `tokenizers` library.
"""

import json
import os
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path

import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers

from regard.data.config import TokenizerConfig
from regard.data.growth import check_growth
from regard.errors import UserError
from regard.files import read_json

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
"""How the special pieces are shown, by id."""

# Inside the vocabulary their names end in a space, which no piece does: the text "</s>" must not become EOS.
_INNER_SPECIALS = tuple(name + " " for name in SPECIALS)
_ENTITY = r" ?&(?:[a-z]+|#[0-9]+);"
# Learning merges takes time quadratic in a chunk's length: a line that is one "word" must not be one chunk.
_RUN = "{1,64}"
_BPE_CHUNK = rf"{_ENTITY}| ?[\p{{L}}\p{{M}}]{_RUN}| ?\p{{N}}| ?[^\p{{L}}\p{{M}}\p{{N}}\s]{_RUN}"
_SHOWN_SPACE = "\u2581"
_FORMAT, _VERSION = "regard-tokenizer", 1
_PARALLEL = "TOKENIZERS_PARALLELISM"


class Tokenizer:
    """A vocabulary with its rule for cutting texts. Make one with `Tokenizer.train` or `Tokenizer.load`.

    `len(tokenizer)` is the size of the vocabulary, the special pieces included; at most `config.vocab_size`.
    """

    def __init__(
        self, config: TokenizerConfig, *, pieces: Sequence[str], merges: Sequence[tuple[str, str]] = ()
    ) -> None:
        """`pieces` by id, from 4 on (after the special ones); `merges`, for BPE, in their order."""
        self.config = config
        self.merges = tuple(merges)
        self._pieces = (*_INNER_SPECIALS, *pieces)
        self._numbers = {piece: number for number, piece in enumerate(self._pieces)}
        self._normalizer = _normalizer(config)
        self._bpe = _bpe(self._numbers, self.merges) if config.kind == "bpe" else None

    @classmethod
    def train(cls, texts: Iterable[str], config: TokenizerConfig, *, origin: str = "") -> "Tokenizer":
        """Learn a vocabulary from texts; the same texts give the same vocabulary, in any process.

        Words and characters are kept by how often they occur, ties in the order of their code points. BPE
        keeps the characters first, then merges the most frequent pair of pieces until the vocabulary is full
        or no pair occurs twice.

        origin:  the files that the texts are from, for messages.
        Raises:  UserError if the texts hold nothing to learn from, or as `encode`.
        """
        normalizer = _normalizer(config)
        normal = [_normal(text, normalizer, config, origin) for text in texts]
        counts = Counter(piece for text in normal for piece in _simple_chunks(text, config))
        often = [piece for piece, count in counts.items() if count >= config.min_count]
        pieces = sorted(often, key=lambda piece: (-counts[piece], piece))[: config.vocab_size - len(SPECIALS)]
        if not pieces:
            before = f"{origin}: " if origin else ""
            raise UserError(
                f"{before}no vocabulary of {config.kind} pieces can be learned: the {len(normal)} texts hold none "
                f"that occurs at least min_count = {config.min_count} times."
            )
        if config.kind != "bpe":
            return cls(config, pieces=pieces)
        pieces, merges = _learn_merges(normal, pieces, config)
        return cls(config, pieces=pieces, merges=merges)

    def __len__(self) -> int:
        return len(self._pieces)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without BOS and EOS; UNK for each word or character that was never seen.

        Raises:  UserError if the text is not Unicode, or normalization makes it too long (regard.data.growth).
        """
        normal = _normal(text, self._normalizer, self.config)
        if self._bpe:
            return self._bpe.encode(normal, add_special_tokens=False).ids
        return [self._numbers.get(chunk, UNK) for chunk in _simple_chunks(normal, self.config)]

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """The ids of each text."""
        # Not the library's own batch: it starts threads, after which a forked process warns.
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids. PAD, BOS and EOS say nothing; UNK is shown as <unk>.

        Raises:  ValueError if an id is not in the vocabulary.
        """
        shown = []
        for number in ids:
            self._check(number)
            if number not in (PAD, BOS, EOS):
                shown.append(SPECIALS[UNK] if number == UNK else self._pieces[number])
        if self.config.kind == "word":
            return " ".join(shown)
        text = "".join(shown)
        return text.removeprefix(" ") if self.config.kind == "bpe" else text

    def tokens(self, content: str | Iterable[int]) -> list[str]:
        r"""One label for each id, for pictures: the piece itself, with its space drawn as "\u2581".

        For a text, what is unknown is shown as <unk:what it was>; for ids, as <unk>.
        """
        if not isinstance(content, str):
            return [self._label(number) for number in content]
        return [f"<unk:{part}>" if number == UNK else self._label(number) for number, part in self._parts(content)]

    def cut(self, text: str) -> list[str]:
        """The parts of a text, normalized, that its ids stand for, known or not."""
        return [part for _, part in self._parts(text)]

    def unknown(self, text: str) -> tuple[str, ...]:
        """What a text holds that was never seen in training: words (kind word) or characters, each once."""
        return tuple(dict.fromkeys(part for number, part in self._parts(text) if number == UNK))

    def save(self, path: str | Path) -> None:
        """Write everything to a JSON file."""
        content = {
            "format": _FORMAT,
            "version": _VERSION,
            "config": asdict(self.config),
            "pieces": self._pieces[len(SPECIALS) :],
            "merges": self.merges,
        }
        Path(path).write_text(json.dumps(content, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read what `save` wrote.

        Raises:  UserError if the file is missing, is no tokenizer, is damaged, or is from a newer version.
        """
        content = read_json(Path(path))
        try:
            return cls._of(content)
        except _Damaged as error:
            raise UserError(f"{path}: not a tokenizer that this version can read: {error}.") from error

    @classmethod
    def _of(cls, content: object) -> "Tokenizer":
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise _Damaged(f'expected "format": "{_FORMAT}"')
        version = content.get("version")
        if version != _VERSION:
            newer = isinstance(version, int) and version > _VERSION
            raise _Damaged(f"expected version {_VERSION}, got {version!r}{', from a newer regard' if newer else ''}")
        config = _config_of(content.get("config"))
        pieces = _pieces_of(content.get("pieces"), config)
        return cls(config, pieces=pieces, merges=_merges_of(content.get("merges"), {*pieces}, config))

    def _parts(self, text: str) -> list[tuple[int, str]]:
        """Each id of a text, and the part of the normalized text that it stands for."""
        normal = _normal(text, self._normalizer, self.config)
        if not self._bpe:
            return [(self._numbers.get(chunk, UNK), chunk) for chunk in _simple_chunks(normal, self.config)]
        encoding = self._bpe.encode(normal, add_special_tokens=False)
        return [(number, normal[a:b]) for number, (a, b) in zip(encoding.ids, encoding.offsets, strict=True)]

    def _label(self, number: int) -> str:
        self._check(number)
        return SPECIALS[number] if number < len(SPECIALS) else self._pieces[number].replace(" ", _SHOWN_SPACE)

    def _check(self, number: int) -> None:
        if not 0 <= number < len(self):
            raise ValueError(f"an id must be between 0 and {len(self) - 1}, but is {number} instead.")


def train_tokenizers(
    sources: Sequence[str], targets: Sequence[str], config: TokenizerConfig, *, origin: str = ""
) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of the source and of the target side; one and the same object when `config.joint`."""
    if config.joint:
        both = Tokenizer.train([*sources, *targets], config, origin=origin)
        return both, both
    first, second = (Tokenizer.train(side, config, origin=origin) for side in (sources, targets))
    return first, second


class _Damaged(Exception):  # noqa: N818 - it never leaves this module
    """What is wrong with the content of a tokenizer's file."""


def _normalizer(config: TokenizerConfig) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if config.normalize != "none":
        steps.append(normalizers.NFC() if config.normalize == "nfc" else normalizers.NFKC())
    if config.lowercase:
        steps.append(normalizers.Lowercase())
    if config.kind != "char":
        steps += [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    if config.kind == "bpe":
        steps.append(normalizers.Prepend(" "))  # so that a word is the same piece at the start as elsewhere
    return normalizers.Sequence(steps)


def _simple_chunks(normal: str, config: TokenizerConfig) -> Sequence[str]:
    """The words or the characters of a normalized text, where they are the pieces (BPE: to begin with)."""
    return (normal.split(" ") if normal else []) if config.kind == "word" else normal


def _bpe_cutter() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(_BPE_CHUNK), behavior="isolated")


def _bpe(numbers: dict[str, int], merges: Sequence[tuple[str, str]]) -> tokenizers.Tokenizer:
    model = models.BPE(vocab=numbers, merges=list(merges), unk_token=_INNER_SPECIALS[UNK], fuse_unk=False)
    engine = tokenizers.Tokenizer(model)
    engine.pre_tokenizer = _bpe_cutter()
    return engine


def _learn_merges(
    normal: Sequence[str], alphabet: Sequence[str], config: TokenizerConfig
) -> tuple[list[str], list[tuple[str, str]]]:
    """All pieces (characters, then merges) and the merges, of texts that are normalized already."""
    engine = tokenizers.Tokenizer(models.BPE())
    engine.pre_tokenizer = _bpe_cutter()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size - len(SPECIALS),
        min_frequency=2,
        # The library breaks ties at random when it limits the alphabet itself.
        initial_alphabet=list(alphabet),
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    with _no_threads():
        engine.train_from_iterator(normal, trainer)
    model = json.loads(engine.to_str())["model"]
    vocabulary = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return vocabulary, [(left, right) for left, right in model["merges"]]


@contextmanager
def _no_threads() -> Generator[None, None, None]:
    """Keep the library from starting threads: a process that is forked later would warn, or hang."""
    before = os.environ.get(_PARALLEL)
    os.environ[_PARALLEL] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PARALLEL]
        else:
            os.environ[_PARALLEL] = before


def _normal(text: str, normalizer: normalizers.Normalizer, config: TokenizerConfig, origin: str = "") -> str:
    """The normalized text. Raises UserError if it would be too long, or for half a surrogate pair."""
    before = f"{origin}: " if origin else ""
    try:
        text.encode()  # half a surrogate pair comes from decoding bytes wrongly
        check_growth(text, config.normalize)
    except UnicodeEncodeError as error:
        raise UserError(f"{before}the text is not valid Unicode: {text[:60]!r} ({error.reason}).") from None
    except ValueError as error:
        raise UserError(f"{before}{error}.") from None
    return normalizer.normalize_str(text)


def _config_of(content: object) -> TokenizerConfig:
    names = {field.name for field in fields(TokenizerConfig)}
    if not isinstance(content, Mapping) or not set(content) <= names:
        raise _Damaged(f'expected "config": {{...}} of {", ".join(sorted(names))}')
    try:
        return TokenizerConfig(**content)
    except UserError as error:
        raise _Damaged(f"in its config, {error}") from error


def _pieces_of(pieces: object, config: TokenizerConfig) -> list[str]:
    is_list = isinstance(pieces, list) and pieces
    if not is_list or not all(isinstance(piece, str) and piece for piece in pieces):
        raise _Damaged('expected "pieces": [texts]')
    try:
        "".join(pieces).encode()
    except UnicodeEncodeError as error:
        raise _Damaged(f"a piece is not valid Unicode ({error.reason})") from error
    if len({*pieces, *_INNER_SPECIALS}) != len(pieces) + len(SPECIALS):
        raise _Damaged("a piece occurs twice")
    if config.kind == "char" and max(map(len, pieces)) > 1:
        raise _Damaged(f"a piece is no single character: {max(pieces, key=len)!r}")
    return pieces


def _merges_of(merges: object, pieces: set[str], config: TokenizerConfig) -> list[tuple[str, str]]:
    if not isinstance(merges, list) or (merges and config.kind != "bpe"):
        raise _Damaged('expected "merges": [pairs of pieces] for bpe, and [] otherwise')
    for merge in merges:
        if not isinstance(merge, list) or len(merge) != 2 or not all(isinstance(part, str) for part in merge):
            raise _Damaged(f"a merge must be two pieces, but is {merge!r}")
        if not {*merge, "".join(merge)} <= pieces:
            raise _Damaged(f"the merge {merge!r} is not made of pieces of the vocabulary")
    return [(left, right) for left, right in merges]
