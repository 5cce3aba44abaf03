"""The pretended device refuses what a real one refuses, and counts what waits for it."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from regard.ops.copies import copy_to, cpu_copy
from tests.devices.pretended import CUDA, MixedDevicesError, pretended_cuda

MIXED: dict[str, Callable[[Tensor], object]] = {
    "add": lambda x: x + torch.arange(3),
    "stack": lambda x: torch.stack((x, torch.ones(3))),
    "stack of scalars": lambda x: torch.stack((x.sum(), torch.ones(()))),
    "mask": lambda x: x.masked_fill(torch.ones(3, dtype=torch.bool), 0.0),
    "index_select": lambda x: x.index_select(0, torch.arange(2)),
    "gather": lambda x: x.gather(0, torch.arange(2)),
    "index of the CPU": lambda x: torch.ones(3)[x.long()],
    "product": lambda x: x @ torch.ones(3),
    "module": nn.Linear(3, 2),
    "generator": lambda x: torch.rand(3, generator=torch.Generator(), device=x.device),
    "out": lambda x: torch.add(x, 1, out=torch.ones(3)),
}


@pytest.mark.parametrize("name", MIXED)
def test_tensors_of_two_devices_are_refused(name: str) -> None:
    with pretended_cuda():
        x = torch.ones(3, device="cuda")
        with pytest.raises(MixedDevicesError):
            MIXED[name](x)


def test_scalars_and_indices_of_the_cpu_are_taken() -> None:
    with pretended_cuda() as device:
        x = torch.tensor([1.0, 2.0, 3.0], device="cuda")
        assert ((x * torch.tensor(2.0)).device, x[torch.tensor([2, 0])].device) == (CUDA, CUDA)
        assert device.indices() == ["outside"]
        assert x[[2, 0]].tolist() == [3.0, 1.0]


def test_what_waits_for_the_device_is_counted() -> None:
    with pretended_cuda() as device:
        x = torch.ones(3).to("cuda")
        assert len(device.uploads) == 1
        results = x.sum().item(), x.tolist(), bool(x[0] > 0), x.cpu(), x[x > 2], x.nonzero()
        assert len(device.reads) == len(results)
        x[x > 2] = 1.0  # one value for all needs no count
        (x.double() + 1).exp()
        assert len(device.reads) == len(results)


def test_copies_on_the_device_are_known_on_the_cpu_until_they_change() -> None:
    numbers = torch.arange(3)
    with pretended_cuda() as device:
        copy = copy_to(numbers, "cuda")
        assert cpu_copy(copy).tolist() == [0, 1, 2]
        assert not device.reads
        assert cpu_copy(copy[1:]).tolist() == [1, 2]
        copy += 1
        assert cpu_copy(copy).tolist() == copy_to(copy, "cpu").tolist() == [1, 2, 3]
        with torch.inference_mode():
            assert cpu_copy(copy_to(numbers, "cuda")).tolist() == [0, 1, 2]
        assert len(device.reads) == 4


def test_modules_move_with_their_ties_and_learn_as_on_the_cpu() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    other, x = copy.deepcopy(model), torch.randn(5, 3)
    with pretended_cuda():
        other = copy.deepcopy(other.to("cuda"))
        assert other[2].weight is other[0].weight
        for module, source in ((model, x), (other, x.to("cuda"))):
            optimizer = torch.optim.AdamW(module.parameters(), fused=True)
            module(source).square().sum().backward()
            optimizer.step()
        assert other[0].weight.device == other[0].weight.grad.device == CUDA
        assert torch.equal(other[2].weight.cpu(), model[0].weight)
