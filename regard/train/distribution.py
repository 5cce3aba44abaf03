"""Several processes that train one model: who is there, and how the model is shared among them.

`torchrun --nproc-per-node N` starts N copies of the program. Each takes its part of every batch; after each
step all hold the same weights (DDP), or each its part of them (FSDP2). Without torchrun there is a world of
one.
"""

import copy
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from regard.errors import UserError
from regard.train.contracts import Loss, Trainable
from regard.train.weights import fill, tensors_of

Item = TypeVar("Item")

# While the first process validates the others wait for it, so this bounds the time of a validation.
_TIMEOUT = timedelta(hours=4)


@dataclass(frozen=True, kw_only=True)
class World:
    """The processes that train together, seen from one of them."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes, validates and talks."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value summed over all processes, in float64."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def share(self, item: Item) -> Item:
        """The main process's item, on every process."""
        if self.size == 1:
            return item
        box = [item]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def on_main(self, work: Callable[[], Item]) -> Item:
        """What `work` gives on the main process, on every process; what it refuses, all refuse."""
        item, error = None, None
        if self.is_main:
            try:
                item = work()
            except (UserError, OSError) as refused:
                if self.size == 1:
                    raise
                error = refused
        item, error = self.share((item, error))
        if error is not None:
            raise error
        return cast("Item", item)


def pick_device(name: str) -> torch.device:
    """The device called `name`; for `auto` the accelerator if there is one, else the CPU."""
    if name == "auto":
        return torch.accelerator.current_accelerator() or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # which meta cannot say
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"device {name} cannot be used here: {str(error).splitlines()[0]}") from error
    return torch.device("cpu") if device.type == "cpu" else device  # cpu:0 is the same, but does not compare as equal


@contextmanager
def joined(device: str = "auto") -> Iterator[World]:
    """The world that torchrun made for this process, or a world of one; entering it twice is fine."""
    picked = pick_device(device)
    if dist.is_initialized():
        yield World(rank=dist.get_rank(), size=dist.get_world_size(), device=_own(picked))
        return
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World(device=picked)
        return
    picked = _own(picked)
    backend = "gloo"
    if picked.type != "cpu":
        # Small things (counts, decisions) travel between CPUs and so do not wait for the accelerator.
        backend = f"cpu:gloo,{picked.type}:{dist.get_default_backend_for_device(picked.type)}"
        torch.accelerator.set_device_index(picked)
    dist.init_process_group(backend, timeout=_TIMEOUT)
    try:
        yield World(rank=dist.get_rank(), size=dist.get_world_size(), device=picked)
    finally:
        dist.destroy_process_group()


class Replica:
    """A model as one of several processes holds it: whole, whole and kept equal (DDP), or its part
    (FSDP2)."""

    def __init__(self, model: nn.Module, world: World, *, shard: str, compiled: bool = False):
        if not (callable(getattr(model, "loss", None)) and callable(getattr(model, "count", None))):
            raise TypeError(f"model must have loss(batch) and count(batch), but is {type(model).__name__}.")
        if world.size > 1 and shard == "none":
            raise UserError(f"shard is none, but {world.size} processes were started; say ddp or fsdp.")
        self.world = world
        self.is_sharded = world.size > 1 and shard == "fsdp"
        # Decoding calls parts of a model that FSDP does not watch, so it gets a whole copy of the model.
        self._whole = copy.deepcopy(model) if self.is_sharded and world.is_main else model
        self.model = model.to(world.device)
        self._objective: nn.Module = _Objective(model)
        if compiled:
            self._objective.compile(dynamic=True)
        if world.size > 1:
            self._spread()

    def loss(self, batch: Any) -> Loss:
        """The model's loss of this process's rows."""
        return cast("Loss", self._objective(batch))

    def count(self, batch: Any) -> int:
        """Target tokens of this process's rows."""
        return int(cast("Trainable", self.model).count(batch))

    def adding_up(self, *, last: bool) -> AbstractContextManager[None]:
        """Where the gradient of one of a step's batches is computed: DDP sends gradients after the last one
        only."""
        if isinstance(self._objective, DistributedDataParallel) and not last:
            return self._objective.no_sync()
        return nullcontext()

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole copies of (parts of) tensors, on the CPU of the main process; the others get none."""
        copies = {}
        for name, value in tensors.items():
            full = value.full_tensor() if isinstance(value, DTensor) else value
            if self.world.is_main:
                copies[name] = full.detach().to("cpu", copy=True)
        return copies

    @contextmanager
    def holding(self, tensors: Mapping[str, Tensor] | None = None) -> Iterator[nn.Module]:
        """The whole model on the main process, ready to decode: with its present weights, or with these.

        In shards the present weights must be given, as `whole` made them. Afterwards all is as before.
        """
        model, before = self._whole, None
        if tensors is not None and not self.is_sharded:
            before = {name: value.clone() for name, value in tensors_of(model).items()}
        if tensors is not None:
            fill(model, tensors, origin="the averaged weights")
        model.to(self.world.device).eval()
        try:
            with torch.no_grad():
                yield model
        finally:
            if before is not None:
                fill(model, before, origin="the present weights")
            if self.is_sharded:
                model.to("cpu")
            self.model.train()

    def _spread(self) -> None:
        """Give every process the main one's weights, and hook the model up so that gradients are shared."""
        for value in tensors_of(self.model).values():
            dist.broadcast(value, src=0)
        if not self.is_sharded:
            self._objective = DistributedDataParallel(self._objective, init_sync=False)
            return
        # A block may return a view: nothing here changes a block's result in place, which is what FSDP warns of.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        mesh = init_device_mesh(self.world.device.type, (self.world.size,))
        blocks = getattr(self.model, "blocks", None)
        for block in blocks() if callable(blocks) else ():
            fully_shard(block, mesh=mesh)
        fully_shard(self._objective, mesh=mesh)


class _Objective(nn.Module):
    """Calls `model.loss` as a forward pass, which is what DDP and FSDP watch."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> Any:
        return self.model.loss(batch)  # pyrefly: ignore[not-callable]


def _own(device: torch.device) -> torch.device:
    """This process's own one of several accelerators of a machine."""
    if device.type == "cpu":
        return device
    return torch.device(device.type, int(os.environ.get("LOCAL_RANK", "0")))
