"""Choices: how scores become weights."""

from regard.attention.choices.base import Choice, Soft
from regard.attention.choices.hard import GRADIENTS, Hard, ReinforceSamples, reinforce
from regard.attention.choices.proportional import Proportional, divide
from regard.attention.choices.sparse import Sparse, entmax
from regard.attention.choices.top_k import KeySelection, SelectedKeys, TopK, best_keys

__all__ = [
    "GRADIENTS",
    "Choice",
    "Hard",
    "KeySelection",
    "Proportional",
    "ReinforceSamples",
    "SelectedKeys",
    "Soft",
    "Sparse",
    "TopK",
    "best_keys",
    "divide",
    "entmax",
    "reinforce",
]
