"""Learning rate schedules.

    warm-up        step <= warmup:   lr * step / warmup
    after it       inverse_sqrt:     lr * sqrt(warmup / step)
                   cosine:           lr * (1 + cos(pi q)) / 2
                   linear:           lr * (1 - q)
                   constant:         lr

`step` counts from 1; q is the completed fraction of the run between the end of the warm-up and the end of the run.
Source: vaswani2017, section 5.3, where lr = width^-0.5 * warmup^-0.5 (inverse_sqrt); loshchilov2017 (cosine).
"""

import math

from regard.train.config import TrainConfig


def learning_rate(config: TrainConfig, *, step: int, done: float, warm_at: float) -> float:
    """Return the learning rate of step number `step` (from 1).

    done:    completed fraction of the run.
    warm_at: value of `done` at the end of the warm-up, where the decay begins.
    """
    if step <= config.warmup:
        return config.lr * (step / config.warmup)
    if config.schedule == "inverse_sqrt":
        return config.lr * math.sqrt(max(config.warmup, 1) / step)
    decayed = min(max((done - warm_at) / (1 - warm_at), 0.0), 1.0) if warm_at < 1 else 1.0
    if config.schedule == "cosine":
        return config.lr * (1 + math.cos(math.pi * decayed)) / 2
    if config.schedule == "linear":
        return config.lr * (1 - decayed)
    return config.lr
