"""Choices: functions from the scores a of a query to its attention weights.

| name         | weight_j                                                 | source                 |
|--------------|----------------------------------------------------------|------------------------|
| Soft         | exp(beta a_j) / sum_i exp(beta a_i)                      | lectures, A.5          |
| Hard         | 1 for j = argmax_i a_i, else 0                           | lectures, A.4; xu2015  |
| TopK         | exp(beta a_j) / sum over the k best i of exp(beta a_i)   |                        |
| Sparse       | [(alpha - 1) beta a_j - tau]_+^(1 / (alpha - 1))         | martins2016            |
| Proportional | a_j / sum_i a_i                                          | katharopoulos2020      |
"""

from regard.attention.choices.base import Choice, Soft, SoftmaxForm
from regard.attention.choices.hard import Hard, ReinforceSamples, reinforce
from regard.attention.choices.proportional import Proportional, divide
from regard.attention.choices.sparse import Sparse, entmax
from regard.attention.choices.top_k import KeySelection, TopK

__all__ = [
    "Choice",
    "Hard",
    "KeySelection",
    "Proportional",
    "ReinforceSamples",
    "Soft",
    "SoftmaxForm",
    "Sparse",
    "TopK",
    "divide",
    "entmax",
    "reinforce",
]
