"""Distributed training of one model by several processes (DDP or FSDP2).

`torchrun --nproc-per-node N` starts N copies of the program. Each process computes a part of every
batch; after each step all hold the same weights (DDP) or their shard of them (FSDP2). Without
torchrun the world size is 1.
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
from torch.nn.parallel import DistributedDataParallel

from regard.attention.choices import Hard
from regard.errors import UserError
from regard.layers.blocks import DecoderBlock, EncoderBlock, InducedBlock
from regard.layers.lora import remove_adapters
from regard.training.tensors import is_sharded, load_tensors, tensors_of

Item = TypeVar("Item")

# The other processes wait while the main process validates, so this limits the time of a
# validation.
_TIMEOUT = timedelta(hours=4)


@dataclass(frozen=True, kw_only=True)
class World:
    """Process group, as seen from one of its processes."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_main(self) -> bool:
        """True for the process that writes files, validates and prints."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return each value summed over all processes, in float64."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def broadcast(self, item: Item) -> Item:
        """Return the item of the main process on every process."""
        if self.size == 1:
            return item
        box = [item]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def run_on_main(self, work: Callable[[], Item]) -> Item:
        """Run `work` on the main process; return its result or raise its error on every process."""
        item, error = None, None
        if self.is_main:
            try:
                item = work()
            except (UserError, OSError) as raised:
                error = raised
        item, error = self.broadcast((item, error))
        if error is not None:
            raise error
        return cast("Item", item)


def pick_device(name: str) -> torch.device:
    """Return the device `name`; for `auto` the accelerator if there is one, else the CPU."""
    if name == "auto":
        return torch.accelerator.current_accelerator() or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # fails on the meta device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0]  # then all backends of torch
        raise UserError(f"device {name} cannot be used here: {reason}") from error
    # cpu:0 does not compare equal to cpu.
    return torch.device("cpu") if device.type == "cpu" else device


@contextmanager
def join_process_group(device: str = "auto") -> Iterator[World]:
    """Join the process group of torchrun, or a world of size 1 without torchrun. Can be nested."""
    own_device = pick_device(device)
    is_joined = dist.is_initialized()
    if not is_joined and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World(device=own_device)
        return
    kind, backend = own_device.type, "gloo"
    if kind != "cpu":
        # Counts and decisions are exchanged between CPUs, so they do not wait for the accelerator.
        backend = f"cpu:gloo,{kind}:{dist.get_default_backend_for_device(kind)}"
        own_device = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0")))
    if not is_joined:
        if kind != "cpu":
            torch.accelerator.set_device_index(own_device)
        dist.init_process_group(backend, timeout=_TIMEOUT)
    try:
        yield World(rank=dist.get_rank(), size=dist.get_world_size(), device=own_device)
    finally:
        if not is_joined:
            dist.destroy_process_group()


class Replica:
    """Model of one process: a single model, a replica (DDP) or a shard (FSDP2)."""

    def __init__(self, model: nn.Module, world: World, *, shard: str, compiled: bool = False):
        if world.size > 1 and shard == "none":
            raise UserError(f"shard must be ddp or fsdp for {world.size} processes, got none.")
        self.world = world
        self.is_sharded = world.size > 1 and shard == "fsdp"
        # Decoding calls parts of the model that FSDP does not wrap, so it uses a whole copy of the
        # model.
        self._whole = copy.deepcopy(model) if self.is_sharded and world.is_main else model
        self.model: Any = model.to(world.device)
        self.objective: Any = _Objective(model)
        if compiled:
            compile_blocks(model)
        if world.size == 1:
            return
        for value in tensors_of(model).values():
            dist.broadcast(value, src=0)
        if not self.is_sharded:
            # Parameters of the scores of Hard("none"), and of no other choice, get no gradient.
            gradients = [part.gradient for part in model.modules() if isinstance(part, Hard)]
            self.objective = DistributedDataParallel(
                self.objective, init_sync=False, find_unused_parameters="none" in gradients
            )
            return
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415  # takes 0.7 s to import

        # FSDP warns of blocks that return views; outputs of blocks are never changed in place here.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        mesh = init_device_mesh(world.device.type, (world.size,))
        blocks = getattr(model, "blocks", None)
        for block in blocks() if callable(blocks) else ():
            fully_shard(block, mesh=mesh)
        fully_shard(self.objective, mesh=mesh)

    def accumulate(self, *, last: bool) -> AbstractContextManager[None]:
        """Return the context of a batch's backward pass; DDP synchronizes after the last only."""
        if isinstance(self.objective, DistributedDataParallel) and not last:
            return self.objective.no_sync()
        return nullcontext()

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return whole copies of tensors or shards, on the CPU of the main process; else empty."""
        copies = {}
        for name, value in tensors.items():
            full = value.full_tensor() if is_sharded(value) else value
            if self.world.is_main:
                copies[name] = full.detach().to("cpu", copy=True)
        return copies

    @contextmanager
    def evaluation_model(self, tensors: Mapping[str, Tensor] | None = None) -> Iterator[nn.Module]:
        """Yield a copy of the whole model in eval mode on the main process, with the current
        weights or `tensors`.

        For a sharded model, and one with adapters, `tensors` must be given, even if they are the
        current weights (see `gather` and `merged_tensors`).
        """
        model = copy.deepcopy(self._whole)
        if tensors is not None:
            remove_adapters(model)
            load_tensors(model, tensors, origin="the averaged weights")
        model.to(self.world.device).eval()
        with torch.no_grad():
            yield model


def compile_blocks(model: nn.Module) -> None:
    """Compile the blocks of a Transformer, whose layers share their code; the rest stays eager.

    Raises: UserError if the model has no such block.
    """
    kinds = EncoderBlock, InducedBlock, DecoderBlock
    blocks = [module for module in model.modules() if isinstance(module, kinds)]
    if not blocks:
        raise UserError("train.compile compiles the blocks of a Transformer: this model has none.")
    for block in blocks:
        block.compile(dynamic=True)


class _Objective(nn.Module):
    """Module whose forward pass is `model.loss`, as DDP and FSDP wrap the forward pass."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> Any:
        return self.model.loss(batch)  # pyrefly: ignore[not-callable]
