"""Choices: functions from the scores a of a query to its attention weights.

| name         | weight_j                                                 | source                 |
|--------------|----------------------------------------------------------|------------------------|
| Soft         | exp(beta a_j) / sum_i exp(beta a_i)                      | lectures, A.5          |
| Hard         | 1 for j = argmax_i a_i, else 0                           | lectures, A.4; xu2015  |
| TopK         | exp(beta a_j) / sum over the k best i of exp(beta a_i)   |                        |
| Sparse       | [(alpha - 1) beta a_j - tau]_+^(1 / (alpha - 1))         | martins2016            |
| SinkSoft     | exp(beta a_j) / (exp(beta a_sink) + sum_i exp(beta a_i)) | openai2025, miller2023 |
| Sigmoid      | 1 / (1 + n exp(-beta a_j)), n: number of keys            | ramapuram2025          |
| Proportional | a_j / sum_i a_i                                          | katharopoulos2020      |
"""

from regard.attention.choices.base import Choice, Soft, SoftmaxForm
from regard.attention.choices.hard import Hard, ReinforceSamples, reinforce
from regard.attention.choices.proportional import Proportional, divide
from regard.attention.choices.sigmoid import Sigmoid
from regard.attention.choices.sink import SinkSoft
from regard.attention.choices.sparse import Sparse, entmax
from regard.attention.choices.top_k import KeySelection, TopK

__all__ = [
    "Choice",
    "Hard",
    "KeySelection",
    "Proportional",
    "ReinforceSamples",
    "Sigmoid",
    "SinkSoft",
    "Soft",
    "SoftmaxForm",
    "Sparse",
    "TopK",
    "divide",
    "entmax",
    "reinforce",
]
