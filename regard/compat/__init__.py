"""Every private API of torch, numba, llvmlite and OpenMP that regard uses, one module per library,
each tested."""
