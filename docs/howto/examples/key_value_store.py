"""A key-value store of 10,000 pairs: exact reads, reads of noisy keys by the best match, and soft
reads."""

import time

import torch
from torch.nn.functional import normalize

import regard

PAIRS, KEY_DIM, VALUE_DIM = 10_000, 64, 8

torch.manual_seed(1)
keys = normalize(torch.randn(PAIRS, KEY_DIM), dim=-1)
values = torch.randn(PAIRS, VALUE_DIM)
order = torch.randperm(PAIRS)

begin = time.perf_counter()
memory = regard.Memory(keys[:0], values[:0]).put(keys, values)
stored = time.perf_counter()
exact = bool((memory[keys[order]] == values[order]).all())
found = time.perf_counter()
print(
    f"stored {len(memory):,} pairs in {stored - begin:.2f} s, found all in {found - stored:.2f} s, "
    f"all equal: {exact}"
)

noisy = keys[order] + 0.05 * torch.randn(PAIRS, KEY_DIM)
none = not memory.contains(noisy).any()
best = memory.get(noisy, score=regard.Dot())
right = float((best == values[order]).all(-1).float().mean())
print(
    f"noisy keys: equal to a key: {'none' if none else 'some'}; best match right: "
    f"{100 * right:.2f} %"
)

for beta in (1.0, 10.0, 100.0):
    soft = regard.attend(noisy, memory, score=regard.Dot(), choice=regard.Soft(beta))
    error = float((soft - values[order]).square().mean().sqrt())
    print(f"soft read, beta {beta:6.0f}: distance from the stored value {error:.4f}")
