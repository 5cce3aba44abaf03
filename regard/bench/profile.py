"""Time of operators by torch.profiler, FLOPs by torch.utils.flop_counter."""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from regard.compat.torch import onednn_operators

PYTHON = "Python and compiled loops"
"""The time outside operators."""


def profile_call(call: Callable[[], object], device: torch.device) -> list[Any]:
    """Return the operators of a call with their own time, without that of operators nested in them,
    by time; PYTHON is the last. The shares add up to 100 %."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, acc_events=True) as profiler, record_function(PYTHON):
        call()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
    times, counts, wall = {}, {}, 0.0
    for event in profiler.key_averages():
        if event.device_type == DeviceType.CPU:
            is_cpu = device.type == "cpu"
            times[event.key] = event.self_cpu_time_total if is_cpu else event.self_device_time_total
            counts[event.key] = event.count
            wall = max(wall, event.cpu_time_total if event.key == PYTHON else 0.0)
    if device.type != "cpu":  # which works while Python goes on
        times[PYTHON] = max(0.0, wall - sum(times.values()))
    total = sum(times.values()) or 1.0
    rows = []
    for name in sorted(times, key=lambda name: (name == PYTHON, -times[name])):
        if times[name] > 0 or name == PYTHON:
            row = {"operator": name, "percent": 100 * times[name] / total}
            rows.append(row | {"ms": times[name] / 1e3, "calls": counts[name]})
    return rows


def count_flops(call: Callable[[], object]) -> int:
    """Count the FLOPs of matrix products, attention and convolutions, forward and backward, padding
    included."""
    aten = torch.ops.aten
    attention = aten._scaled_dot_product_flash_attention_for_cpu
    gradient = aten._scaled_dot_product_flash_attention_for_cpu_backward
    formulas: dict[Any, Callable[..., int]] = {  # of the shapes of the arguments
        attention: lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value),
        gradient: lambda _, *shapes, **__: 2 * sdpa_flop_count(*shapes[:3]),
    }
    onednn = onednn_operators()
    if onednn is not None:
        product, weight_gradient = onednn
        formulas[product.overloadpacket] = lambda x, w, *_, **__: 2 * prod(x) * w[0]
        formulas[weight_gradient.overloadpacket] = lambda y, x, *_, **__: 2 * prod(y) * x[-1]
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        call()
    return counter.get_total_flops()
