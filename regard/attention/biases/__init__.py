"""Biases: numbers added to scores, computed from positions or given as a tensor."""

from regard.attention.biases.alibi import Alibi
from regard.attention.biases.base import Bias, DistanceBias, SumOfBiases, TensorBias
from regard.attention.biases.relative import RelativeBias
from regard.attention.biases.shaw import ShawBias

__all__ = ["Alibi", "Bias", "DistanceBias", "RelativeBias", "ShawBias", "SumOfBiases", "TensorBias"]
