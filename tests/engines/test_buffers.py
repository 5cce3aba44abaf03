"""Steps in fixed buffers: the numbers of the model's own steps, and their capture."""

from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from regard.attention.masks import Unpadded
from regard.data.tokenizer import BOS, EOS, PAD
from regard.decode.config import DecodeConfig
from regard.decode.search import search
from regard.engines import buffers
from regard.engines.buffers import BufferedStepper, CapturedStep, steps_in_buffers
from regard.engines.torch import TorchEngine
from regard.layers.positions.config import LearnedConfig
from regard.models.build import build
from regard.models.config import ModelConfig
from regard.models.cores.config import RecurrentConfig, TransformerConfig
from regard.settings.declare import convert
from regard.trace import Trace
from tests.engines.small import VOCAB, encoder_decoder

SIZES: Any = {"layers": 2, "width": 12, "heads": 2, "feedforward": 20}
POSITIONS = ("sinusoidal", "learned", "alibi", "relative", "none")
SPECIAL = {"bos": BOS, "eos": EOS, "pad": PAD}
BATCHES = [[7], [3, 9, 4, 6, 1], [*range(1, 20)], [3, 9, 4, 6, 2], [7]]


def model_of(**changes: Any) -> Any:
    if isinstance(positions := changes.get("positions"), str):
        changes["positions"] = convert(TransformerConfig, "positions", positions)
    return encoder_decoder(TransformerConfig(**SIZES | changes)).double()


def sentences(lengths: list[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(len(lengths))
    return [torch.randint(4, VOCAB, (size,), generator=generator).tolist() for size in lengths]


@dataclass
class Both:
    """State of the model, and the state in buffers."""

    own: Any
    buffered: Any

    def select(self, index: torch.Tensor) -> "Both":
        return Both(self.own.select(index), self.buffered.select(index))

    def reorder(self, index: torch.Tensor) -> "Both":
        return Both(self.own.reorder(index), self.buffered.reorder(index))


class Comparison:
    """Stepper that steps in both ways, and compares the logits."""

    def __init__(self, model: Any, *, has_beams: bool):
        self.model, self.stepper = model, BufferedStepper(model, has_beams=has_beams)
        self.num_buffered = 0

    def start(self, source: Any) -> Both:
        return Both(self.model.start(source), self.stepper.start(source))

    def step(self, tokens: torch.Tensor, state: Both) -> tuple[torch.Tensor, Both]:
        logits, own = self.model.step(tokens, state.own)
        actual, buffered = self.stepper.step(tokens, state.buffered)
        torch.testing.assert_close(actual, logits, rtol=0, atol=1e-11)
        self.num_buffered += type(buffered) is buffers.BufferedState
        return logits.clone(), Both(own, buffered)


def compare(model: Any, width: int, most: int, batches: list[list[int]] = BATCHES) -> int:
    assert steps_in_buffers(model)
    comparison = Comparison(model, has_beams=width > 1)
    config = DecodeConfig(beam=width, n_best=width, max_length=most, max_extra=most)
    for lengths in batches:
        search(comparison, sentences(lengths), config=config, **SPECIAL)
    return comparison.num_buffered


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("positions", POSITIONS)
def test_steps_in_buffers_equal_the_models(positions: str, width: int) -> None:
    assert compare(model_of(positions=positions), width, 70) > 250


@pytest.mark.parametrize("changes", [{"key_heads": 1}, {"norm_order": "post"}, {"score": "cosine"}])
def test_other_parts_in_buffers_equal_the_models(changes: dict[str, Any]) -> None:
    assert compare(model_of(**changes), 3, 9, BATCHES[:3]) > 10


def test_searches_in_buffers_return_the_same_tokens() -> None:
    model = model_of().float()
    for width in (1, 3):
        stepper = BufferedStepper(model, has_beams=width > 1)
        config = DecodeConfig(beam=width, max_length=12, max_extra=12)
        for lengths in BATCHES:
            pair = []
            for steps in (model, stepper):
                results = search(steps, sentences(lengths), config=config, **SPECIAL)
                pair.append([best.tokens for best, *_ in results])
            assert pair[0] == pair[1]


def test_learned_positions_end_as_in_the_model() -> None:
    model = model_of(positions=LearnedConfig(max_length=40))
    stepper = BufferedStepper(model, has_beams=False)
    config = DecodeConfig(beam=1, max_length=60, max_extra=60)
    for steps in (model, stepper):
        with pytest.raises(ValueError, match="at most 40 positions were learned, got 41"):
            search(steps, sentences([19] * 30), config=config, bos=BOS, eos=EOS, pad=PAD)


def test_changed_weights_are_used() -> None:
    model = model_of(positions="learned")
    comparison = Comparison(model, has_beams=False)
    config = DecodeConfig(beam=1, max_length=9)
    for _ in range(2):
        search(comparison, sentences([5, 5]), config=config, **SPECIAL)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
    kept = comparison.stepper._kept
    model.float()
    comparison.stepper.start(Unpadded.of(torch.full((1, 3), 5)))
    assert kept
    assert not comparison.stepper._kept


class OwnNorm(nn.LayerNorm):
    """Norm of a user, which may do anything."""


UNSUPPORTED = {
    "window": {"window": 3},
    "rotary": {"positions": "rotary"},
    "choice": {"choice": "topk"},
    "additive": {"score": "additive"},
    "capped": {"soft_cap": 5.0},
    "kernel": {"kernel": "reference"},
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_other_reads_step_in_the_model(name: str) -> None:
    assert not steps_in_buffers(model_of(**UNSUPPORTED[name]))


def test_hooks_own_parts_training_and_recurrent_cores_step_in_the_model() -> None:
    model = model_of()
    assert steps_in_buffers(model)
    handle = model.core.decoder[1].feedforward.register_forward_hook(lambda *_: None)
    assert not steps_in_buffers(model)
    handle.remove()
    assert not steps_in_buffers(model.train())
    model.eval()
    model.core.decoder[0].feedforward.activation = lambda x: x
    assert not steps_in_buffers(model)
    model = model_of()
    model.core.decoder[0].add_attention.norm = OwnNorm(12)
    assert not steps_in_buffers(model)
    config = ModelConfig(core=RecurrentConfig(width=8, hidden=8))
    assert not steps_in_buffers(build(config, source_vocab=VOCAB, target_vocab=VOCAB).eval())


class FakeGraph(TorchDispatchMode):
    """CUDA graph on a CPU: records operators with their tensors, and runs them again.

    As with a graph, capture changes no tensor, and numbers of Python are those of the capture.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []
        self.replays = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, schema = kwargs or {}, func._schema
        before = None
        if schema.is_mutable:
            before = args[0].clone()
        output = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, output, before))
        return output

    def restore(self) -> None:
        for _, args, _, _, before in reversed(self.calls):
            if before is not None:
                args[0].copy_(before)

    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, output, before in self.calls:
            is_view = any(value.alias_info is not None for value in func._schema.returns)
            if before is not None:
                func(*args, **kwargs)
            elif not is_view and isinstance(output, torch.Tensor):
                output.copy_(func(*args, **kwargs))
            elif isinstance(output, tuple):  # attention and norms, whose first output is read
                output[0].copy_(func(*args, **kwargs)[0])


@contextmanager
def capture(graph: FakeGraph) -> Any:
    with graph:
        yield
    graph.restore()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[FakeGraph]:
    made: list[FakeGraph] = []

    def make() -> FakeGraph:
        made.append(FakeGraph())
        return made[-1]

    monkeypatch.setattr(torch.cuda, "CUDAGraph", make)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    return made


def test_the_second_call_is_captured_and_later_ones_replayed(graphs: list[FakeGraph]) -> None:
    value, calls = torch.ones(3), []

    def function() -> torch.Tensor:
        calls.append(1)
        value.add_(1)
        return 2 * value

    step = CapturedStep(function, torch.device("cuda"))
    assert [step()[0].item() for _ in range(4)] == [4, 6, 8, 10]
    value.fill_(10)
    assert step()[0].item() == 22
    assert (len(calls), len(graphs), graphs[0].replays) == (2, 1, 4)
    step = CapturedStep(function, torch.device("cpu"))
    assert [step()[0].item() for _ in range(3)] == [24, 26, 28]
    assert len(graphs) == 1


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("width", [1, 3])
def test_replayed_steps_equal_the_models(
    graphs: list[FakeGraph], monkeypatch: pytest.MonkeyPatch, width: int, positions: str
) -> None:
    cuda = torch.device("cuda")
    # Constants are kept from the warm-up, as on a device.
    monkeypatch.setattr("regard.ops.constants.is_eager", lambda: True)
    monkeypatch.setattr(buffers, "CapturedStep", lambda function, _: CapturedStep(function, cuda))
    batches = [[3, 9, 4, 6, 1], [7, 2, 9, 5, 5], [*range(1, 20)], [3, 9, 4, 6, 1]]
    num_steps = compare(model_of(positions=positions), width, 40, batches)
    assert graphs
    replays = sum(graph.replays for graph in graphs)
    assert num_steps / 2 < replays < num_steps


def test_the_engine_steps_in_buffers_on_a_gpu_without_a_trace() -> None:
    engine, cuda = TorchEngine(model_of()), torch.device("cuda")
    for width in (1, 3):
        with engine._stepper(cuda, DecodeConfig(beam=width)) as stepper:
            assert type(stepper) is BufferedStepper
            assert stepper._has_beams == (width > 1)
    with engine._stepper(cuda, DecodeConfig(), trace=Trace()) as stepper:
        assert stepper is engine._model
    with engine._stepper(torch.device("cpu"), DecodeConfig()) as stepper:
        assert stepper is engine._model
    with TorchEngine(model_of(window=3))._stepper(cuda, DecodeConfig()) as stepper:
        assert type(stepper) is not BufferedStepper
