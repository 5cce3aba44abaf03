"""Texts of odd Unicode: scripts, marks, signs, white space, control characters, special tokens."""

import random

_PARTS = (
    "the", "Quick", "fox's", "don't", "1999", "3.14", "!?", "...", "&quot;", "\u00df", "\u0130",
    "caf\u00e9", "e\u0301", "\u212b", "\ufb01ne", "\uff21\uff22\uff11", "\u03a3\u03c2", "\u20ac",
    "\u4e2d\u6587", "\u65e5\u672c\u8a9e", "\ud55c\uad6d", "\u1112\u1161\u11ab", "\U0001d504",
    "\u0627\u0644\u0633\u0644\u0627\u0645", "\u05e9\u05dc\u05d5\u05dd", "\u0928\u092e\u0938\u094d",
    "\u0e2a\u0e27\u0e31\u0e2a", "\U0001f600", "\U0001f468\u200d\U0001f469", "\U0001f1e9\U0001f1ea",
    "<s>", "</s>", "<pad>", "<unk>", "[CLS]", "<|endoftext|>", "\u2581", "##i", "\u0120", "\u0301",
    "\u200b", "\ufeff", "\u00ad", "\u202e", "\x00", "\x1c", "\x7f", "\ufffd", "\ufdd0", "\ue000",
)  # fmt: skip
_SPACES = (" ", " ", " ", "", "  ", "\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2028", "\x85", "\v")


def odd_texts(count: int, *, seed: int = 1, without: tuple[str, ...] = ()) -> list[str]:
    """Return texts, the first of which are odd by themselves."""
    draw = random.Random(seed)
    parts = [part for part in _PARTS if part not in without]
    texts = ["", " ", "  ", "\n", " a", "a ", *parts]
    while len(texts) < count:
        text = ""
        for _ in range(draw.randrange(1, 9)):
            number = draw.choice((draw.randrange(32, 0xD800), draw.randrange(0xE000, 0x11000)))
            text += draw.choice((*parts, chr(number))) + draw.choice(_SPACES)
        texts.append(text)
    return texts[:count]
