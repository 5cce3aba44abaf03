"""Private APIs of torch, checked with torch 2.11 to 2.13.

No public API returns whether an operator is being traced, mapped or differentiated in forward mode,
whether a module has hooks, or whether a tensor was changed in place.
"""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_GLOBAL_HOOKS: Sequence[Mapping[int, Any]] = (
    nn.modules.module._global_forward_hooks,
    nn.modules.module._global_forward_pre_hooks,
    nn.modules.module._global_backward_hooks,
    nn.modules.module._global_backward_pre_hooks,
)


def register_named_tuple(cls: type, name: str) -> None:
    """Register a named tuple for the programs of torch.export."""
    _pytree._register_namedtuple(cls, serialized_type_name=name)
    torch.serialization.add_safe_globals([cls])


def is_transformed() -> bool:
    """Return True inside a function transform: vmap, grad, jvp and the others of torch.func."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_eager() -> bool:
    """Return True if operators run at once: not compiled, mapped, traced or observed."""
    if torch.compiler.is_compiling() or is_transformed():
        return False
    return torch._C._len_torch_dispatch_stack() == 0


def scan(step: Callable[[Any, Tensor], tuple[Any, Any]], state: Any, items: Tensor) -> Any:
    """Return the last state and all outputs of step(state, item) -> (state, output), no views."""
    return torch._higher_order_ops.scan(step, state, items, dim=1)


def is_forward_ad() -> bool:
    """Return True inside forward-mode automatic differentiation."""
    return forward_ad._current_level >= 0


def is_batched(tensor: Tensor) -> bool:
    """Return True for a tensor that vmap maps over."""
    return torch._C._functorch.is_batchedtensor(tensor)


def is_wrapped(tensor: Tensor) -> bool:
    """Return True for a tensor that a transform of torch.func has wrapped."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def unwrap(tensor: Tensor) -> Tensor:
    """Return the tensor without the wrappers of torch.func."""
    while is_wrapped(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def version_of(tensor: Tensor) -> int:
    """Return how often the tensor was changed in place, which is unknown of inference tensors."""
    return tensor._version


def has_global_hooks() -> bool:
    """Return True if a hook is registered for all modules."""
    return any(_GLOBAL_HOOKS)


def has_hooks(module: nn.Module) -> bool:
    """Return True if a hook is registered on the module itself."""
    if module._forward_hooks or module._forward_pre_hooks:
        return True
    return bool(module._backward_hooks or module._backward_pre_hooks)


def is_compiled(module: nn.Module) -> bool:
    """Return True for the result of torch.compile(module) and after module.compile()."""
    return hasattr(module, "_orig_mod") or module.__dict__.get("_compiled_call_impl") is not None


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Return the module's own parameters by name, None where it was registered without one."""
    return module._parameters


def linear_weights(layer: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias, as parameters if they are ones: attributes of modules are slower."""
    parameters = layer._parameters
    weight = parameters.get("weight")
    if weight is None or "bias" not in parameters:
        return layer.weight, layer.bias
    return weight, parameters["bias"]


def runs_original_forward(kind: type, *modules: nn.Module) -> bool:
    """Return True if each module is exactly of this class, without hooks or another forward.

    Only then may its weights be used without calling it.
    """
    if any(_GLOBAL_HOOKS):
        return False
    for module in modules:
        if type(module) is not kind or "forward" in vars(module):
            return False
        if has_hooks(module) or module._compiled_call_impl:
            return False
    return True


def run_pre_hooks(module: nn.Module, *inputs: Any) -> None:
    """Run the forward pre-hooks of a module, of which a method uses the weights before `forward`.

    Hooks set weights, as those of torch.nn.utils.prune do.
    """
    for key, hook in module._forward_pre_hooks.items():
        options = ({},) if key in module._forward_pre_hooks_with_kwargs else ()
        hook(module, inputs, *options)


def has_no_hooks(*modules: nn.Module) -> bool:
    """Return True if these modules and their submodules run their original forward."""
    parts = (part for module in modules for part in module.modules())
    return all(runs_original_forward(type(part), part) for part in parts)


def run_while_tracing(function: FunctionT) -> FunctionT:
    """Mark a function of constants: torch.compile calls it, and keeps its result in the program."""
    function._dynamo_marked_constant = True  # pyrefly: ignore[missing-attribute]
    return function


def has_hooked_weights(*modules: nn.Module | None) -> bool:
    """Return True if a module with parameters or submodules, or one of these, has hooks."""
    for module in modules:
        if module is None or not (module._parameters or module._modules):
            continue
        if not has_no_hooks(module):
            return True
    return False


def disable_compile(function: Callable[..., None]) -> Callable[..., None]:
    """Exclude a function from compilation, if torch._dynamo is loaded."""
    return torch.compiler.disable(function) if "torch._dynamo" in sys.modules else function


def limit_recompilation(limit: int) -> AbstractContextManager[None]:
    """Set how many variants of a function torch.compile makes before it falls back."""
    return torch._dynamo.config.patch(recompile_limit=limit)


def interpolate_(tensors: Sequence[Tensor], others: Sequence[Tensor], weight: float) -> None:
    """Move each tensor toward its counterpart in place: x + weight (y - x), in one pass."""
    torch._foreach_lerp_(list(tensors), list(others), weight)


@functools.cache
def onednn_operators() -> tuple[Any, Any] | None:
    """Return oneDNN's linear map and its gradients; None where torch has none."""
    if not torch.backends.mkldnn.is_available():
        return None
    try:
        return (
            torch.ops.mkldnn._linear_pointwise.default,
            torch.ops.aten.mkldnn_linear_backward_weights.default,
        )
    except (AttributeError, RuntimeError):
        return None


class ShapesOnly(TorchDispatchMode):
    """Mode in which initializers on the meta device only give shapes.

    Those of torch itself import its compiler, which takes a second and 130 MB.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise the mode imports the compiler

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name.endswith("_"):
            return args[0]
        if name == "randn":
            return torch.empty(args[0], **kwargs)
        if name == "mul" and not isinstance(args[1], Tensor):
            return torch.empty_like(args[0])
        return func(*args, **(kwargs or {}))
