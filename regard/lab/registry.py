"""Names of the claims, and the verdicts of this version. Importing it needs no torch."""

import difflib
import json
from pathlib import Path

from regard.errors import UserError

_TOPICS = {
    "recurrence": {
        "last-state-forgets": "the last state forgets a long source, attention does not",
        "attention-improves": "attention improves a sequence-to-sequence model tremendously",
        "knows-where-to-focus": "the decoder knows where to focus",
        "costs": "attention costs O(m t) in place of O(m + t)",
        "self-attentive-rnn": "an RNN with self-attention forgets less",
        "relevant-context": "self-attention looks at what is relevant to the new word",
        "path-length": "the path between two positions grows, so that GRU and LSTM need attention",
    },
    "reads": {
        "variance": "the variance of q . k is the size of the keys, and 1 if scaled",
        "vanishing-gradient": "without 1 / sqrt(d) the gradient of the softmax vanishes",
        "hard-attention": "hard attention is not differentiable, and is learned by estimators",
        "soft-becomes-hard": "soft attention becomes hard attention as beta grows",
        "dictionary": "attention is a dictionary",
        "shares": "the weights are shares: positive, with sum 1 over the keys",
        "multiply-by-zero": "a mask multiplies the weights with 0",
        "energy": "the energy of an autoencoder is low on the data",
    },
    "transformers": {
        "parallel": "attention computes all positions at once, an RNN one after the other",
        "order": "self-attention keeps no order; positions do",
        "heads": "several heads do more than one",
        "influence": "u_i depends on every input, and most on x_i",
        "feed-forward": "the feed-forward network is two 1x1 convolutions",
        "norm-axis": "layer norm is batch norm over the other axis",
        "transformer-against-rnn": "Transformers are more accurate than RNNs, with much data",
    },
}
CLAIMS = {name: text for claims in _TOPICS.values() for name, text in claims.items()}
"""Statement of each claim."""
UNDECIDED_HERE = {
    "The Transformer outperforms all (deck 001)": "needs data and models of the size of the papers;"
    " the claim transformer-against-rnn tests it on dates, benchmarks/README.md on Multi30k",
    "BLEU falls with the length of the sentence (deck 001)": "needs hours of training on sentences;"
    " last-state-forgets tests its cause, benchmarks/README.md has the curve of Multi30k",
    "The FBI sentence (deck 001)": "a picture of one sentence decides nothing; relevant-context"
    " tests its statement, and `look --view chain` draws it",
    "The brain, human attention (deck 000)": "is a motivation, not a statement on models",
}
"""Sentences of the lectures that no experiment of minutes can decide, with the reason."""
VERDICTS = Path(__file__).parent / "verdicts.json"


def module_of(name: str) -> str:
    """Return the module of a claim. Raises: UserError with the nearest names for an unknown one."""
    if name not in CLAIMS:
        near = difflib.get_close_matches(name, CLAIMS, n=3)
        hint = f"the nearest are {', '.join(near)}" if near else "`regard lab` lists them"
        raise UserError(f"unknown claim {name!r}; {hint}")
    (topic,) = [topic for topic, claims in _TOPICS.items() if name in claims]
    return f"regard.lab.{topic}.{name.replace('-', '_')}"


def known_verdicts() -> dict[str, str]:
    """Return the verdict of each claim with this version, as docs/lab has them."""
    return json.loads(VERDICTS.read_text(encoding="utf-8"))
