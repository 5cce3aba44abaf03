"""Temperature scaling of the probabilities of classes.

    p(c | x) = softmax(z / T)_c      T: minimum of -sum_i [(1 - e) log p(y_i | x_i) + e m_i]

z: scores; y_i: right class of the n validation inputs; m_i: mean of log p over the other classes;
e = 1 / (n + 2). Without e, T would be 0 where no validation input is wrong: e is the share of
errors that none among n implies (rule of succession). The most likely class remains.

Source: guo2017, section 4.2 (temperature scaling); e: platt1999, section 2.2.
"""

import math

from torch import Tensor

MAX_TEMPERATURE = 20.0
"""Largest temperature; the smallest one is its inverse."""
_TINY = 1e-38


def fit_temperature(probabilities: Tensor, target: Tensor) -> float:
    """Return T for the probabilities at T = 1 (rows, classes) and the right classes (rows,)."""
    from scipy.optimize import minimize_scalar  # noqa: PLC0415  # takes 0.5 s to import

    count, smoothing = len(target), 1 / (len(target) + 2)
    scores = probabilities.double().clamp(min=_TINY).log()
    others = max(scores.shape[1] - 1, 1)

    def loss(log_temperature: float) -> float:
        log_p = (scores / math.exp(log_temperature)).log_softmax(-1)
        right = log_p.gather(1, target[:, None]).squeeze(1)
        wrong = (log_p.sum(-1) - right) / others
        return -float(((1 - smoothing) * right + smoothing * wrong).sum()) / count

    most = math.log(MAX_TEMPERATURE)
    found = minimize_scalar(loss, bounds=(-most, most), method="bounded", options={"xatol": 1e-5})
    return math.exp(found.x)


def divide_by_temperature(probabilities: Tensor, temperature: float) -> Tensor:
    """Return the probabilities (rows, classes) of the scores divided by a temperature."""
    scores = probabilities.double().clamp(min=_TINY).log() / temperature
    return scores.softmax(-1).to(probabilities)
