"""Seeds of random draws, each a pure function of (seed, epoch, step) and what is drawn."""

import hashlib


def derive_seed(*numbers: int) -> int:
    """Return a seed derived from a sequence of numbers: 63 bits of its SHA-256."""
    digest = hashlib.sha256("/".join(map(str, numbers)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
