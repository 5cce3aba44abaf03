"""Scores: how well a key matches a query."""

from regard.attention.scores.additive import Additive, BareAdditive, Concat
from regard.attention.scores.base import Form, InnerProduct, Score, TanhSum
from regard.attention.scores.cosine import Cosine
from regard.attention.scores.dot import Dot, General, ScaledDot
from regard.attention.scores.features import (
    FeatureMap,
    Features,
    RandomFeatures,
    check_not_negative,
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
    "check_not_negative",
    "elu_plus_one",
    "softmax",
]
