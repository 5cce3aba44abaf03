"""Scores: functions of a query q and a key k that measure how well they match.

| name           | score                                      | source                       |
|----------------|--------------------------------------------|------------------------------|
| Dot            | <q, k>                                     | luong2015, section 3.1       |
| ScaledDot      | <q, k> / sqrt(d)                           | vaswani2017, section 3.2.1   |
| General        | <W_q q, W_k k>                             | lectures, A.11; luong2015    |
| Additive       | v . tanh(W_q q + W_k k)                    | lectures, A.9; bahdanau2015  |
| Concat         | v . tanh(W [q; k])                         | luong2015                    |
| BareAdditive   | v . tanh(q + k)                            | bahdanau2015, A.1.2          |
| Cosine         | <q, k> / (|q| |k|)                         | graves2014                   |
| Location       | (W q)_j for key j                          | luong2015, equation 8        |
| SoftCap        | cap tanh(score / cap)                      | gemma2024                    |
| FeatureMap     | <phi(q), phi(k)>                           | katharopoulos2020, 3.2       |
| RandomFeatures | ~ exp(<q, k> / sqrt(d))                    | choromanski2021, 2.3 and 2.4 |
"""

from regard.attention.scores.additive import Additive, BareAdditive, Concat
from regard.attention.scores.base import Form, InnerProduct, Score, TanhSum
from regard.attention.scores.cosine import Cosine
from regard.attention.scores.dot import Dot, General, ScaledDot
from regard.attention.scores.features import (
    FeatureMap,
    Features,
    RandomFeatures,
    elu_plus_one,
    softmax,
)
from regard.attention.scores.location import Location
from regard.attention.scores.soft_cap import SoftCap

__all__ = [
    "Additive",
    "BareAdditive",
    "Concat",
    "Cosine",
    "Dot",
    "FeatureMap",
    "Features",
    "Form",
    "General",
    "InnerProduct",
    "Location",
    "RandomFeatures",
    "ScaledDot",
    "Score",
    "SoftCap",
    "TanhSum",
    "elu_plus_one",
    "softmax",
]
