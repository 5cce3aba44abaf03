"""Memory check of models while they are built.

    with check_model_fits(copies=4):
        model = make()            # UserError as soon as `copies` copies of its parameters exceed
        the available memory

Every parameter and buffer is counted when a module registers it, so the check works for any model
at no cost.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from regard.errors import UserError, is_out_of_memory
from regard.system.memory import available_memory

COPIES_IN_TRAINING = 4
"""Copies of each parameter in training: the parameter, its gradient, and the two moving averages of
Adam."""


@contextmanager
def check_model_fits(*, copies: int = 1) -> Iterator[None]:
    """Check that `copies` copies of the parameters of a model built inside fit into memory.

    Raises: UserError with the needed and the available memory.
    """
    free = available_memory()
    needed, counted = 0, set()

    def count(module: nn.Module, name: str, value: Tensor | None) -> None:
        nonlocal needed
        # Allocators of other devices report this themselves.
        if value is None or value.device.type != "cpu" or id(value) in counted:
            return
        counted.add(id(value))  # tied parameters are registered twice
        needed += (
            value.numel() * value.itemsize * (copies if isinstance(value, nn.Parameter) else 1)
        )
        if free is not None and needed > free:
            raise UserError(_too_large(f"more than {_format_size(needed)}", free, copies))

    hooks = [
        register_module_parameter_registration_hook(count),
        register_module_buffer_registration_hook(count),
    ]
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            _too_large(
                f"more than {_format_size(needed)}, and then an allocation failed", free, copies
            )
        ) from error
    finally:
        for hook in hooks:
            hook.remove()


def _too_large(needed: str, free: int | None, copies: int) -> str:
    parameters = (
        "its parameters alone"
        if copies == 1
        else f"its parameters, {copies} times as training keeps them,"
    )
    available = "this machine has less" if free is None else f"there are {_format_size(free)}"
    return (
        f"the model does not fit into memory: {parameters} need {needed}; {available}. Fewer "
        f"layers or a smaller width "
        "help."
    )


def _format_size(size: int) -> str:
    return f"{size / 2**30:,.3g} GiB" if size >= 2**30 else f"{size / 2**20:,.3g} MiB"
