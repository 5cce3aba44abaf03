"""Memories of key-value pairs, and key-value caches for decoding.

| name            | contents                                                    | source           |
|-----------------|-------------------------------------------------------------|------------------|
| Memory          | all pairs (k_j, v_j); `extend` appends in place if possible | lectures, A.1    |
| StaticMemory    | at most `capacity` pairs in slots, for compiled loops       |                  |
| RingMemory      | the last pairs, pair j in slot j mod (window + most - 1)    | beltagy2020      |
| SlidingMemory   | the last pairs, in tensors that grow and are cut            | beltagy2020      |
| QuantizedMemory | all pairs in int8: x = scale q, scale = max |x| / 127       | dettmers2022     |
| LinearState     | S = sum_j phi(k_j) v_j^T and z = sum_j phi(k_j)             | katharopoulos2020|
| FadingMemory    | S <- a S + k v^T: sums that fade                            | sun2023 |
| DeltaMemory     | S <- a S + b k (v - a S^T k)^T: the value at k is replaced  | yang2025a    |
"""

from regard.attention.memory.base import KeyValueCache
from regard.attention.memory.growing import Memory
from regard.attention.memory.linear import LinearState
from regard.attention.memory.quantized import QuantizedMemory, QuantizedVectors
from regard.attention.memory.ring import RingMemory
from regard.attention.memory.sliding import SlidingMemory, keep_last
from regard.attention.memory.static import StaticMemory
from regard.attention.memory.written import DeltaMemory, FadingMemory, WrittenMemory

__all__ = [
    "DeltaMemory",
    "FadingMemory",
    "KeyValueCache",
    "LinearState",
    "Memory",
    "QuantizedMemory",
    "QuantizedVectors",
    "RingMemory",
    "SlidingMemory",
    "StaticMemory",
    "WrittenMemory",
    "keep_last",
]
