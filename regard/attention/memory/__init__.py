"""Memories of key-value pairs: fixed, growing (KV cache), static, ring, sliding, quantized and linear."""

from regard.attention.memory.base import KernelCache, KeyValueCache
from regard.attention.memory.growing import Memory
from regard.attention.memory.linear import LinearState, is_same_for_all_queries, read_sums, summarize, zero_hidden_keys
from regard.attention.memory.quantized import QuantizedMemory, QuantizedVectors
from regard.attention.memory.ring import RingMemory
from regard.attention.memory.sliding import SlidingMemory
from regard.attention.memory.static import StaticMemory

__all__ = [
    "KernelCache",
    "KeyValueCache",
    "LinearState",
    "Memory",
    "QuantizedMemory",
    "QuantizedVectors",
    "RingMemory",
    "SlidingMemory",
    "StaticMemory",
    "is_same_for_all_queries",
    "read_sums",
    "summarize",
    "zero_hidden_keys",
]
