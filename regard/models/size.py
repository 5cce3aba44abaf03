"""How large a model may be on this machine, seen while it is built: before there is no room, not after.

    with fitting_memory(copies=4):
        model = make()            # UserError once its parameters, each kept `copies` times, need more than there is

Every parameter and buffer is counted when a module registers it, so this holds for any model, and costs nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from regard.available import available_memory
from regard.errors import UserError, is_out_of_memory

TRAINED = 4
"""Copies of each parameter that training keeps: the parameter, its gradient, and Adam's two running means."""


@contextmanager
def fitting_memory(*, copies: int = 1) -> Iterator[None]:
    """Refuse a model whose parameters, each kept `copies` times, are larger than memory.

    Raises: UserError with what is needed and what there is.
    """
    free = available_memory()
    taken, seen = 0, set()

    def count(module: nn.Module, name: str, value: Tensor | None) -> None:
        nonlocal taken
        # On other devices than the CPU their own allocator says so.
        if value is None or value.device.type != "cpu" or id(value) in seen:
            return
        seen.add(id(value))  # tied parameters are registered twice
        taken += value.numel() * value.itemsize * (copies if isinstance(value, nn.Parameter) else 1)
        if free is not None and taken > free:
            raise UserError(_too_large(f"more than {_gib(taken)}", free, copies))

    hooks = [register_module_parameter_registration_hook(count), register_module_buffer_registration_hook(count)]
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(_too_large(f"more than {_gib(taken)}, and then an allocation failed", free, copies)) from error
    finally:
        for hook in hooks:
            hook.remove()


def _too_large(needed: str, free: int | None, copies: int) -> str:
    what = "its parameters alone" if copies == 1 else f"its parameters, {copies} times as training keeps them,"
    there = "this machine has less" if free is None else f"there are {_gib(free)}"
    return f"the model does not fit into memory: {what} need {needed}; {there}. Fewer layers or a smaller width help."


def _gib(size: int) -> str:
    return f"{size / 2**30:,.3g} GiB" if size >= 2**30 else f"{size / 2**20:,.3g} MiB"
