"""Steps in fixed buffers: the numbers of the model's own steps, and their capture."""

import gc
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from regard.attention.choices import Soft
from regard.attention.masks import Padded, Unpadded, window
from regard.attention.scores import Dot
from regard.data.tokenizer import BOS, EOS, PAD
from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.sample import sample
from regard.decode.search import search
from regard.engines import buffers
from regard.engines.buffers import BufferedStepper, StepBuffers, steps_in_buffers
from regard.engines.torch import TorchEngine
from regard.layers.multihead import MultiHead
from regard.layers.positions.config import LearnedConfig
from regard.layers.positions.rotary import LinearScaling, Rotary
from regard.models.build import build
from regard.models.config import ModelConfig
from regard.models.cores.config import RecurrentConfig, TransformerConfig
from regard.settings.declare import convert
from regard.trace import Trace
from tests.engines.small import VOCAB, encoder_decoder, language_model
from tests.operations import count

SIZES: Any = {"layers": 2, "width": 12, "heads": 2, "feedforward": 20}
POSITIONS = ("sinusoidal", "learned", "alibi", "relative", "rotary", "none")
SPECIAL = {"bos": BOS, "eos": EOS, "pad": PAD}
BATCHES = [[7], [3, 9, 4, 6, 1], [*range(1, 20)], [7], [3, 9, 4, 6, 2]]


def model_of(make: Any = encoder_decoder, **changes: Any) -> Any:
    if isinstance(positions := changes.get("positions"), str):
        changes["positions"] = convert(TransformerConfig, "positions", positions)
    return make(TransformerConfig(**SIZES | changes)).double()


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

    def start(self, source: Any = None) -> Both:
        return Both(self.model.start(source), self.stepper.start(source))

    def step(self, tokens: torch.Tensor, state: Both) -> tuple[torch.Tensor, Both]:
        return self.steps(tokens.unsqueeze(1), state)

    def steps(self, tokens: torch.Tensor, state: Both) -> tuple[torch.Tensor, Both]:
        logits, own = self.model.steps(tokens, state.own)
        actual, buffered = self.stepper.steps(tokens, state.buffered)
        torch.testing.assert_close(actual, logits, rtol=0, atol=1e-11)
        self.num_buffered += type(buffered) is buffers.BufferedState
        return logits.clone(), Both(own, buffered)


def compare(
    model: Any, width: int, most: int, batches: list[list[int]] = BATCHES, extra: int | None = None
) -> int:
    """Return the number of steps in buffers: the last batch takes `most`, the others up to 9."""
    assert steps_in_buffers(model)
    comparison = Comparison(model, has_beams=width > 1)
    for number, lengths in enumerate(batches, 1):
        limit = most if number == len(batches) else min(most, 9)
        options = {"max_length": limit, "max_extra": limit if extra is None else extra}
        config = DecodeConfig(beam=width, n_best=width, **options)
        search(comparison, sentences(lengths), config=config, **SPECIAL)
    return comparison.num_buffered


# By default the texts below, which have no beams either, test the other positions of width 1.
WIDTH_1 = [
    pytest.param(name, 1, marks=() if name in ("sinusoidal", "relative") else pytest.mark.slow)
    for name in POSITIONS
]


@pytest.mark.parametrize(("positions", "width"), [*((name, 3) for name in POSITIONS), *WIDTH_1])
def test_steps_in_buffers_equal_the_models(positions: str, width: int) -> None:
    assert compare(model_of(positions=positions), width, 70) > 90


@torch.no_grad()
def compare_texts(model: Any, context: str = "restart") -> int:
    """Return the number of steps in buffers of a language model, for prompts of several lengths."""
    assert steps_in_buffers(model)
    comparison = Comparison(model, has_beams=False)
    cases = (1, None, 70), (7, 40, 50), (33, 40, 20), (60, None, 9), (60, 40, 9)
    for size, most, length in cases:
        (prompt,) = sentences([size])
        config = SampleConfig(length=length, temperature=1, context=context)
        list(sample(comparison, prompt, config, window=most, seed=size, banned=[PAD]))
    return comparison.num_buffered


@pytest.mark.parametrize("context", [pytest.param("restart", marks=pytest.mark.slow), "last"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_texts_in_buffers_equal_the_models(positions: str, context: str) -> None:
    assert compare_texts(model_of(language_model, positions=positions), context) > 100


BART = {"norm_order": "post", "embedding_norm": True, "shared_positions": False}


@pytest.mark.parametrize(
    "changes",
    [
        {"key_heads": 1},
        {"norm_order": "post"},
        {"score": "cosine"},
        {"score": "general"},
        {"qk_norm": "l2", "gate": "head"},
        BART | {"positions": "learned"},
        {"final_norm": False, "attention_bias": "qkv"},
    ],
)
def test_other_parts_in_buffers_equal_the_models(changes: dict[str, Any]) -> None:
    assert compare(model_of(**changes), 3, 9, BATCHES[:3]) > 10


@pytest.mark.parametrize("width", [1, 3])
def test_steps_equal_the_models_after_sentences_that_end(width: int) -> None:
    assert compare(model_of(), width, 40, [[*range(1, 20)], [4, 2, 9]], extra=3) > 25


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
    for is_inference in (True, False):  # its tensors cannot be changed outside of it
        with torch.inference_mode(is_inference):
            search(comparison, sentences([5] * 7), config=config, **SPECIAL)
    kept = comparison.stepper._buffers
    assert kept.cache_info().currsize
    model.float()
    comparison.stepper.start(Unpadded.of(torch.full((1, 3), 5)))
    assert not kept.cache_info().currsize


@pytest.mark.parametrize("part", ["choice", "score", "scaling", "positions"])
def test_changed_settings_are_used(part: str) -> None:
    model = model_of(positions="rotary")
    comparison = Comparison(model, has_beams=False)
    config = DecodeConfig(beam=1, max_length=9)
    search(comparison, sentences([5, 5]), config=config, **SPECIAL)
    kept = comparison.stepper._buffers
    assert kept.cache_info().currsize
    comparison.stepper.start(Unpadded.of(torch.full((1, 3), 5)))
    assert kept.cache_info().currsize
    if part == "choice":
        model.core.decoder[0].attention.read.choice = Soft(3.0)
    elif part == "score":
        model.core.decoder[0].attention.read.score = Dot().eval()
    elif part == "positions":
        model.core.decoder[0].attention.positions = None  # other layers keep it
    else:
        model.core.positions.scaling = LinearScaling(2.0)
    comparison.stepper.start(Unpadded.of(torch.full((1, 3), 5)))
    assert not kept.cache_info().currsize


class OwnNorm(nn.LayerNorm):
    """Norm of a user, which may do anything."""


UNSUPPORTED = {
    "window": {"window": 3},
    "choice": {"choice": "topk"},
    "additive": {"score": "additive"},
    "capped": {"soft_cap": 5.0},
    "kernel": {"kernel": "reference"},
    "sink": {"sink": "zero"},
    "sigmoid": {"choice": "sigmoid"},
    "registers": {"registers": 1},
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
    handle = model.writer.inputs.register_forward_hook(lambda *_: None)
    assert not steps_in_buffers(model)
    handle.remove()
    assert not steps_in_buffers(model.train())
    model.eval()
    model.core.decoder[0].feedforward.activation = lambda x: x
    assert not steps_in_buffers(model)
    model = model_of()
    model.core.decoder[1].cross = MultiHead(12, num_heads=3)
    assert not steps_in_buffers(model)
    model = model_of()
    model.core.decoder[1].cross.read.mask = window(2)
    assert not steps_in_buffers(model)
    model = model_of(positions="rotary")
    model.core.decoder[1].attention.positions = Rotary(4)
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
def capture(graph: FakeGraph, **_: Any) -> Any:
    assert not graph.calls  # a graph takes one capture
    assert not gc.isenabled()
    with graph:
        yield
    graph.restore()


class CapturedBuffers(StepBuffers):
    """Buffers whose step is captured, as on a GPU."""

    made: ClassVar[list["CapturedBuffers"]] = []

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.num_runs = self.num_steps = 0
        self._is_captured = True
        self.made.append(self)

    def run(self) -> torch.Tensor:
        self.num_runs += 1
        return super().run()

    def _step(self) -> torch.Tensor:
        self.num_steps += 1
        return super()._step()


def pretend_to_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: device)
    monkeypatch.setattr(buffers, "StepBuffers", CapturedBuffers)
    monkeypatch.setattr(CapturedBuffers, "made", [])


REPLAYED = [
    *((name, 3) for name in POSITIONS),
    *((name, 0) for name in ("sinusoidal", "relative", "rotary")),
    *(pytest.param(name, 0, marks=pytest.mark.slow) for name in ("learned", "alibi", "none")),
    *(pytest.param(name, 1, marks=pytest.mark.slow) for name in POSITIONS),
]


@pytest.mark.parametrize(("positions", "width"), REPLAYED)
def test_replayed_steps_equal_the_models(
    monkeypatch: pytest.MonkeyPatch, width: int, positions: str
) -> None:
    # Constants are kept from the warm-up, as on a device.
    monkeypatch.setattr("regard.ops.constants.is_eager", lambda: True)
    pretend_to_capture(monkeypatch)
    batches = [[3, 9, 4, 6, 1], [7, 2, 9, 5, 5], [*range(1, 20)], [3, 9, 4, 6, 1]]
    if width:
        num_steps = compare(model_of(positions=positions), width, 40, batches)
    else:
        num_steps = compare_texts(model_of(language_model, positions=positions))
    assert sum(made.num_runs for made in CapturedBuffers.made) == num_steps
    for made in CapturedBuffers.made:
        # The first call is not captured, the second one is captured, and replayed as later ones.
        assert made.num_steps == min(2, made.num_runs)
        assert (made._graph.replays if made._graph else 0) == made.num_runs - 1
    assert num_steps - len(CapturedBuffers.made) > num_steps / 2


def test_a_capture_that_failed_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_to_capture(monkeypatch)
    model, config = model_of(), DecodeConfig(beam=1, max_length=6)
    stepper, step = BufferedStepper(model, has_beams=False), CapturedBuffers._step

    def fail(self: Any) -> torch.Tensor:
        logits = step(self)
        if self.num_steps == 2:
            raise RuntimeError("out of memory")
        return logits

    monkeypatch.setattr(CapturedBuffers, "_step", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        search(stepper, [[7, 5]], config=config, **SPECIAL)
    assert search(stepper, [[7, 5]], config=config, **SPECIAL) == search(
        model, [[7, 5]], config=config, **SPECIAL
    )
    assert [made._graph.replays > 0 for made in CapturedBuffers.made] == [True]
    assert gc.isenabled()


def test_the_engine_steps_in_buffers_on_a_gpu_without_a_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, cuda = TorchEngine(model_of()), torch.device("cuda")
    for width in (1, 3):
        with engine._stepper(cuda, DecodeConfig(beam=width)) as stepper:
            assert type(stepper) is BufferedStepper
            assert stepper is engine._steppers[width > 1]
    with engine._stepper(cuda, DecodeConfig(), trace=Trace()) as stepper:
        assert stepper is engine._model
    with engine._stepper(torch.device("cpu"), DecodeConfig()) as stepper:
        assert stepper is engine._model
    with engine._stepper(cuda, SampleConfig()) as stepper:
        assert stepper is engine._steppers[False]
    with engine._stepper(cuda, SampleConfig(context="slide")) as stepper:
        assert stepper is engine._model
    with TorchEngine(model_of(window=3))._stepper(cuda, DecodeConfig()) as stepper:
        assert type(stepper) is not BufferedStepper
    monkeypatch.setattr("regard.engines.torch.unsupported_reason", lambda: "REGARD_NATIVE is 0")
    with engine._stepper(cuda, DecodeConfig()) as stepper:
        assert stepper is engine._model


@torch.no_grad()
def test_layers_share_masks_and_beams_are_reordered_at_once() -> None:
    core = TransformerConfig(layers=6, width=24, heads=3, kernel="sdpa")
    model, tokens, found = encoder_decoder(core), torch.tensor([5, 6, 7, 8]), []
    source = Padded(torch.full((4, 9), 5), torch.tensor([9, 5, 3, 1]))
    for has_beams in (False, True):
        stepper = BufferedStepper(model, has_beams=has_beams)
        _, state = stepper.step(tokens, stepper.step(tokens, stepper.start(source))[1])
        found.append(len(count(state.buffers.run).computed))
    assert found == [150, 155]


@torch.no_grad()
def test_layers_share_angles() -> None:
    options, found = {"layers": 6, "width": 24, "heads": 3, "kernel": "sdpa"}, []
    for positions in ("none", "rotary"):
        model = model_of(language_model, **options, positions=positions)
        stepper = BufferedStepper(model, has_beams=False)
        _, state = stepper.steps(torch.tensor([[5, 6]]), stepper.start())
        _, state = stepper.step(torch.tensor([7]), state)
        found.append(len(count(state.buffers.run).computed))
    assert found == [103, 103 + 2 + 14 * 6]  # two gathers, and a layer's two rotations
