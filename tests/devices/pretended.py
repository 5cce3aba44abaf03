"""A pretended CUDA device: tensors that report `cuda:0` and compute on the CPU.

    with pretended_cuda() as device:
        torch.ones(3, device="cuda") + torch.arange(3)  # raises MixedDevicesError

A tensor is on the device if it was made or moved there, or computed from such tensors. As on a real
one, an operator of tensors on both devices raises, except for CPU scalars in elementwise operators
and CPU indices. `device.reads` lists what waits for the device (`item`, `tolist`, `nonzero`, copies
to the CPU), `device.uploads` what is copied to it: pairs of an operator and a function of the
package. Kernels for a GPU are not chosen, and autocast casts nothing.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode

ATEN = torch.ops.aten
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
PACKAGE = str(Path(__file__).parents[2] / "regard")
COPY, CONVERT = ATEN.copy_.default, ATEN._to_copy.default
INDEX = ATEN.index.Tensor, ATEN.index_put_.default, ATEN.index_put.default
WAITING = {
    *(ATEN._local_scalar_dense.default, ATEN.nonzero.default, ATEN.masked_select.default),
    *(ATEN.equal.default, ATEN.bincount.default, ATEN._unique2.default, ATEN.unique_dim.default),
    *(ATEN.unique_consecutive.default, ATEN.unique_dim_consecutive.default),
}
"""Operators whose result is on the CPU, or of a size that the CPU must know."""
WIDE_PRODUCT = ATEN.addmm.dtype_out
"""Operator that only CUDA has: a product of half precision with sums in float32."""
PACKING = ATEN._pack_padded_sequence.default, ATEN._pad_packed_sequence.default
"""Operators of packed sequences, whose lengths and sizes are integers on the CPU."""


class MixedDevicesError(RuntimeError):
    """Error of an operator of tensors on two devices."""


class OnDevice(Tensor):
    """Tensor on the pretended device; `inner` holds its numbers."""

    inner: Tensor
    device = property(lambda self: CUDA)  # pyrefly: ignore[bad-override]
    is_cuda = property(lambda self: True)  # pyrefly: ignore[bad-override]
    is_cpu = property(lambda self: False)  # pyrefly: ignore[bad-override]
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> Self:
        tensor = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device="meta",  # for the code of torch in C++: autograd runs, and CPU code does not
        )
        tensor.inner = inner
        return tensor

    def __getitem__(self, index: Any) -> Tensor:
        return super().__getitem__(index_on_device(index))

    def __setitem__(self, index: Any, values: Any) -> None:
        super().__setitem__(index_on_device(index), values)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("a tensor on cuda:0 cannot be converted to numpy")

    def __repr__(self, **_: Any) -> str:
        return f"OnDevice({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None):
        raise AssertionError(f"{operator} runs outside of pretended_cuda")


class Device(TorchDispatchMode):
    """Mode that computes the operators of tensors on the pretended device."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[str, str]] = []
        self.uploads: list[tuple[str, str]] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None):
        kwargs = dict(kwargs or {})
        tensors = [*find_tensors(args), *find_tensors(kwargs.values())]
        own = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
        target = kwargs.get("device")
        is_own = bool(own) if target is None else target.type != "cpu"
        if not own and not is_own:
            return operator(*args, **kwargs)
        if operator in (COPY, CONVERT):
            is_own = is_own if operator is CONVERT else isinstance(args[0], OnDevice)
            if is_own != isinstance(tensors[-1], OnDevice):
                self.record(self.uploads if is_own else self.reads, operator)
        else:
            self.check(operator, args, kwargs)
        if operator in WAITING or (operator in INDEX and selects_by_mask(operator, args)):
            self.record(self.reads, operator)
        if target is not None:
            kwargs["device"] = CPU
        wrappers = {id(tensor.inner): tensor for tensor in own}
        given = args, kwargs
        args = map_tensors(unwrap, args)
        kwargs = {name: map_tensors(unwrap, value) for name, value in kwargs.items()}
        if operator is WIDE_PRODUCT:
            total, left, right, dtype = args
            results = kwargs["out"].copy_(total + left.to(dtype) @ right.to(dtype))
        else:
            results = operator(*args, **kwargs)
        if any(tensor.stride() != tensor.inner.stride() for tensor in own):
            with torch._C._DisableTorchDispatch():  # transpose_ changes the wrapper, too
                operator(*given[0], **given[1])
        if not is_own:
            return results

        def wrap(inner: Tensor) -> Tensor:
            if operator in PACKING and is_sizes(inner):
                return inner
            given = wrappers.get(id(inner))  # of an operator in place
            return OnDevice(inner) if given is None else given

        return map_tensors(wrap, results)

    def check(self, operator: Any, args: Any, kwargs: Any) -> None:
        """Raise MixedDevicesError if a real device refuses an operator of these tensors."""
        generator = kwargs.get("generator")
        if generator is not None:
            raise MixedDevicesError(f"{operator}: expected a generator of cuda, got one of the CPU")
        is_elementwise = torch.Tag.pointwise in operator.tags
        for number, arg in enumerate([*args, *kwargs.values()]):
            for tensor in find_tensors((arg,)):
                if isinstance(tensor, OnDevice):
                    continue
                if operator in PACKING and is_sizes(tensor):
                    continue
                assert not tensor.is_meta, f"{operator}: tensor {number} has no numbers"
                if operator in INDEX and number == 1:
                    self.record(self.uploads, operator)
                elif not (tensor.dim() == 0 and (is_elementwise or operator in INDEX)):
                    shape = tuple(tensor.shape)
                    raise MixedDevicesError(f"{operator}: tensor {number}, {shape}, is on the CPU")

    @staticmethod
    def record(places: list[tuple[str, str]], operator: Any) -> None:
        frame = sys._getframe(2)
        while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
            frame = frame.f_back
        place = "outside"
        if frame is not None:
            place = f"{frame.f_code.co_filename.removeprefix(PACKAGE)[1:]}:{frame.f_code.co_name}"
        places.append((str(operator), place))

    def indices(self) -> list[str]:
        """Return where an index was made on the CPU, which is copied whenever it is used."""
        return [place for operator, place in self.uploads if operator.startswith("aten.index")]


def find_tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among values, and those in lists and tuples among them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from find_tensors(value)


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Apply a function to a tensor, or to the tensors in lists and tuples."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)([map_tensors(function, part) for part in value])
    return value


def unwrap(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor on the device, or the tensor on the CPU itself."""
    return tensor.inner if isinstance(tensor, OnDevice) else tensor


def is_sizes(tensor: Tensor) -> bool:
    """Return True for the lengths, or sizes of batches, of packed sequences."""
    return tensor.dtype == torch.int64 and tensor.dim() == 1


def index_on_device(index: Any) -> Any:
    """Return an index with tensors on the device for lists and arrays, as torch makes them."""
    if isinstance(index, tuple):
        return tuple(map(index_on_device, index))
    is_list = isinstance(index, list | range | np.ndarray)
    return torch.tensor(index, device=CUDA) if is_list else index


def selects_by_mask(operator: Any, args: Any) -> bool:
    """Return True for x[mask] and x[mask] = values, which count the mask; not for one value."""
    has_mask = any(index is not None and index.dtype == torch.bool for index in args[1])
    return has_mask and (operator is ATEN.index.Tensor or args[2].numel() != 1)


class Move(torch.autograd.Function):
    """Copy between the devices, whose gradient is copied back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, target: torch.device) -> Tensor:
        ctx.source = x.device
        return CONVERT(x, device=target)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return CONVERT(grad, device=ctx.source), None


@contextmanager
def pretended_cuda() -> Iterator[Device]:
    """Run with a pretended device `cuda`, on which operators compute eagerly."""
    from regard.attention.kernels.selection import KERNELS  # noqa: PLC0415  # after tests.shapes
    from regard.ops import dispatch  # noqa: PLC0415

    convert, autocast = Tensor.to, torch.autocast
    is_enabled, dtype_of = torch.is_autocast_enabled, torch.get_autocast_dtype
    depth = torch._C._len_torch_dispatch_stack

    def to(self: Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> Tensor:
        if args and isinstance(args[0], Tensor):
            device, dtype, is_queued, memory_format = args[0].device, args[0].dtype, False, None
        else:
            device, dtype, is_queued, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        options = {} if memory_format is None else {"memory_format": memory_format}
        if device is not None and device.type != self.device.type:
            assert not (is_queued and device.type == "cpu"), "read before the numbers arrive"
            self, copy = Move.apply(self, device), False
        return convert(self, self.dtype if dtype is None else dtype, copy=copy, **options)

    def make_from(make: Any) -> Any:
        def make_on_device(data: Any, *, device: Any = None, **options: Any) -> Tensor:
            return make(data, device=CPU, **options).to(device or torch.empty(0).device)

        return make_on_device

    find = dispatch.find

    def find_but_triton(operation: str) -> Any:
        found = find(operation)  # kernels for a GPU have tests of their own
        return None if found is None or found.requires == "triton" else found

    changes = [
        (torch.Tensor, "to", to),
        (torch.Tensor, "cpu", lambda self, **_: self.to("cpu")),
        (torch.Tensor, "pin_memory", lambda self: self),
        (torch, "tensor", make_from(torch.tensor)),
        (torch, "as_tensor", make_from(torch.as_tensor)),
        (torch, "autocast", lambda kind, *args, **kwargs: autocast("cpu", *args, **kwargs)),
        (torch, "is_autocast_enabled", lambda kind=None: is_enabled("cpu")),
        (torch, "get_autocast_dtype", lambda kind: dtype_of("cpu")),
        (torch._C, "_len_torch_dispatch_stack", lambda: depth() - 1),  # eager but for this mode
        (torch.backends.cudnn, "is_acceptable", lambda _: False),
        (dispatch, "find", find_but_triton),
        (torch.cuda, "_lazy_init", lambda: None),
        (torch.cuda, "is_bf16_supported", lambda **_: True),
        (torch.cuda, "default_generators", (torch.Generator(),)),
        (KERNELS["flex"], "unsupported_reason", lambda _: "wrappers are not compiled"),
    ]
    _device_constructors()  # remembers the functions of its first call, which must not be ours
    before = torch.__future__.get_swap_module_params_on_conversion()
    with ExitStack() as stack:
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, before)
        torch.__future__.set_swap_module_params_on_conversion(True)
        for owner, name, value in changes:
            stack.enter_context(patch.object(owner, name, value))
        yield stack.enter_context(Device())
