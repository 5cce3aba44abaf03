"""Load on `regard serve`: throughput, latency, overload, equality and memory; see __main__.

    throughput, peer     closed loops, beside offline `predict` and CTranslate2 behind FastAPI
    overload             three times the capacity, in an open loop
    equality, soak       answers equal to offline ones; memory, threads and descriptors

Rules: server, load generator and what it is compared with are processes of their own; contestants
take turns, and a ratio is taken by round; what other processes used in the meantime is reported.
"""
