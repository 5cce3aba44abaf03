"""Biases: numbers that are added to scores, computed from positions or given as a tensor.

| name         | bias_ij                                 | source                     |
|--------------|-----------------------------------------|----------------------------|
| Alibi        | -slope_h |p_i - j|                      | press2022, section 3       |
| RelativeBias | table[h, bucket(j - p_i)]               | raffel2020, section 2.1    |
| ShawBias     | q_i . a[clip(j - p_i, -k, k)] / sqrt(d) | shaw2018, sections 3.1-3.3 |
| TensorBias   | tensor_ij                               |                            |
| SumOfBiases  | left_ij + right_ij                      |                            |

p_i is the position of query i, j that of key j, h the head. DistanceBias is the base class of
biases of j - p_i alone.
"""

from regard.attention.biases.alibi import Alibi
from regard.attention.biases.base import Bias, DistanceBias, SumOfBiases, TensorBias
from regard.attention.biases.relative import RelativeBias
from regard.attention.biases.shaw import ShawBias

__all__ = ["Alibi", "Bias", "DistanceBias", "RelativeBias", "ShawBias", "SumOfBiases", "TensorBias"]
