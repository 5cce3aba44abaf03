"""Random small models decoded by torch and by compiled code: outputs, scores and errors.

An answer is equal if it is the same as torch's. It is a tie if torch in double precision gives the
engine's output the engine's score, and either scores both answers alike within the rounding of
float32, or also finds the other answer when its scores are perturbed by as little (a hypothesis may
have left the beam by a rounding error). A request that torch refuses must be refused with an error
of the same kind, and nothing else.
"""

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from regard.attention.masks import Padded
from regard.data.tokenizer import BOS, EOS, PAD
from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.hypothesis import Hypothesis
from regard.decode.stepper import Stepper
from regard.engines.engine import Engine
from regard.engines.registry import prepare
from regard.engines.torch import TorchEngine
from regard.errors import UserError
from regard.layers.positions.config import (
    SCALINGS,
    LearnedConfig,
    PositionsConfig,
    RotaryConfig,
    SinusoidalConfig,
)
from regard.models.build import build, build_language_model
from regard.models.config import LanguageModelConfig, ModelConfig
from regard.models.cores.config import WRITTEN, TransformerConfig, max_length_of
from tests.campaigns.campaign import Campaign, Outcome
from tests.decode.toys import score
from tests.engines.small import unsupported_reason
from tests.helpers import SEQUENCE_POSITIONS

__all__ = ["CAMPAIGN"]

BANNED = (PAD, BOS)
CLOSE = 2e-4
POSITIONS = {kind.name: kind for kind in SEQUENCE_POSITIONS}
"""Tolerance of scores, sums of dozens of float32 log-probabilities; relative above one."""


@dataclass(frozen=True)
class EngineCase:
    """Model and request."""

    model: Any
    text: str
    decode: DecodeConfig | None
    """None: a language model continues the inputs."""
    sample: SampleConfig
    inputs: list[list[int]]
    window: int | None


def make_case(seed: int, number: int) -> EngineCase:
    """Return the case of this number."""
    draw = random.Random(f"{seed} {number}")
    torch.manual_seed(draw.getrandbits(32))
    core, reads_source, vocab = _core(draw), draw.random() < 0.7, draw.choice([6, 7, 19, 33, 100])
    core = _with_pattern(draw, core, reads_source=reads_source)
    embeddings: dict[str, Any] = {
        "embedding_dim": draw.choice([None, None, 1, 5, 40]),
        "embedding_scale": draw.choice([None, None, "root", "one"]),
    }
    if reads_source:
        tie = draw.choice(["all", "target", "none"])
        source_vocab = vocab if tie == "all" else draw.choice([vocab, 5, 40])
        model = build(
            ModelConfig(core=core, tie=tie, **embeddings),
            source_vocab=source_vocab,
            target_vocab=vocab,
        )
    else:
        core = replace(core, decoder_layers=None)  # `layers` would have no effect
        model = build_language_model(LanguageModelConfig(core=core, **embeddings), vocab=vocab)
        source_vocab = vocab
    strength = draw.choice([0.0, 0.3, 1.0])
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(
                strength * (float(weight.std(correction=0)) or 0.5) * torch.randn_like(weight)
            )
    beam = draw.choice([1, 1, 2, 3, 4, 5, 8])
    decode = DecodeConfig(
        beam=beam,
        n_best=draw.randint(1, beam),
        length_penalty=draw.choice([0.0, 0.6, 1.0, 1.0, 2.0]),
        max_ratio=draw.choice([0.0, 1.0, 2.0]),
        max_extra=draw.choice([0, 1, 3, 10]),
        max_length=draw.choice([1, 7, 30, 512]),
        batch_tokens=draw.choice([8192, 8192, 50]),
    )
    context: Any = draw.choice(["restart", "restart", "last", "slide"])
    sample = SampleConfig(length=draw.choice([1, 2, 9, 30]), temperature=0, context=context)
    window = draw.choice([None, 1, 2, 8, 40])
    inputs = _inputs(draw, source_vocab, max_length_of(core) or draw.choice([4, 10, 30, 60, 200]))
    request = decode if reads_source else (sample, window)
    text = f"{core}, {embeddings}, vocab {source_vocab}, {vocab}, strength {strength}, {request}"
    text = f"{text}, {inputs}"
    return EngineCase(model.eval(), text, decode if reads_source else None, sample, inputs, window)


def _core(draw: random.Random) -> TransformerConfig:
    options: dict[str, Any] = {}
    is_eager = draw.random() < 0.5  # of the usual ones
    for name, hint in get_type_hints(TransformerConfig).items():
        if (
            get_origin(hint) is Literal
        ):  # the default half of the time: most models are to be ones that engines run
            options[name] = draw.choice(
                [*get_args(hint), *[get_args(hint)[0]] * len(get_args(hint))]
            )
    heads = draw.choice([1, 2, 3, 4, 8])
    width = draw.choice([1, 2, 3, 5, 8, 12, 16, 31, 33, 48, 64])
    if is_eager or draw.random() < 0.5:
        width = -(-width // heads) * heads
    options |= {"heads": heads, "width": width, "feedforward": draw.choice([1, 7, 16, 33, 64, 100])}
    if is_eager and options["score"] in ("cosine", "additive"):
        options["score"] = "scaled-dot"
    positions = draw.choice(
        ["sinusoidal", "learned", "none"] if is_eager else [*POSITIONS, "sinusoidal", "rotary"]
    )
    options["positions"] = _positions(draw, positions, score=options["score"])
    options |= {
        "gated": draw.random() < 0.3,
        "bias": draw.random() < 0.8,
        "norm_eps": draw.choice([1e-5, 1e-5, 1e-2]),
    }
    options |= {"layers": draw.randint(1, 3), "decoder_layers": draw.choice([None, None, 1, 2, 3])}
    optional = {
        "head_dim": (0.3, draw.randint(1, 64)),
        "head_value_dim": (0.3, draw.randint(1, 33)),
        "key_heads": (
            0.3,
            draw.choice([size for size in range(1, heads + 1) if heads % size == 0]),
        ),
        "window": (0.4, draw.choice([1, 2, 5, 50])),
        "soft_cap": (0.05, 3.0),
    }
    options |= {
        name: value
        for name, (share, value) in optional.items()
        if draw.random() < share and not is_eager
    }
    if isinstance(options["positions"], RotaryConfig):  # the rotated numbers must fit into a head
        options["head_dim"] = 2 * draw.randint(1, 16)
    del options["decay"]  # drawn with the pattern
    if options["choice"] != "soft":
        del options["sink"]
    if options["score"] == "cosine":
        del options["qk_norm"]
    if options["norm_order"] == "none":
        options = {
            name: value for name, value in options.items() if name not in ("norm", "norm_eps")
        }
    return TransformerConfig(**options)


def _with_pattern(
    draw: random.Random, core: TransformerConfig, *, reads_source: bool
) -> TransformerConfig:
    """Draw the blocks with the window of a core, or without positions, and their rotary base."""
    letters = "L" if core.window is None else "SL"
    if core.positions.name in ("rotary", "alibi", "relative"):
        letters += "N"
    decoder = (core.decoder_layers or core.layers) if reads_source else core.layers
    stacks = ["".join(draw.choice(letters) for _ in range(core.layers))] if reads_source else []
    stacks.append("".join(draw.choice(f"{letters}DF") for _ in range(decoder)))
    pattern = "/".join(stacks)
    used = {*pattern} - {"/"}
    if used <= {"L"} or used <= {*"NDF"} or ("S" in used) != (core.window is not None):
        return core
    if isinstance(core.positions, RotaryConfig) and used >= {"S", "L"} and draw.random() < 0.5:
        core = replace(core, positions=replace(core.positions, window_base=100.0))
    decay = draw.choice(["item", "head", "none"]) if used & WRITTEN else "item"
    return replace(core, pattern=pattern, decay=decay)


def _positions(draw: random.Random, name: str, *, score: str) -> PositionsConfig:
    if name == "learned":
        return LearnedConfig(max_length=draw.choice([4, 10, 30, 60, 200]))
    if name == "rotary" and score in ("scaled-dot", "dot", "cosine"):
        scaling = draw.choice([*SCALINGS])
        options = {
            "dim": draw.choice([None, None, 2]),
            "interleaved": draw.random() < 0.5,
            "scaling": scaling,
        }
        if "original_max_length" in SCALINGS[scaling]:
            options["original_max_length"] = 16
        return RotaryConfig(**options, base=draw.choice([10.0, 10_000.0]))
    return SinusoidalConfig() if name == "rotary" else POSITIONS[name]()


def _inputs(draw: random.Random, vocab: int, most: int) -> list[list[int]]:
    lengths = [draw.choice([1, 1, 2, 3, 5, 9, 20]) for _ in range(draw.choice([1, 1, 2, 3, 7, 33]))]
    if draw.random() < 0.3:
        lengths = [min(length, max(1, most // 3)) for length in lengths]
    if draw.random() < 0.1:
        lengths[0] = draw.choice([most, most + 1, most - 1])
    inputs = [[draw.randrange(4, vocab) for _ in range(length)] for length in lengths]
    if draw.random() < 0.6:
        inputs = [[*ids, EOS] for ids in inputs]
    if draw.random() < 0.06:
        inputs[draw.randrange(len(inputs))] = draw.choice(
            [[], [-1], [vocab], [2**40], [PAD], [BOS], [EOS], [PAD, 4]]
        )
    return [] if draw.random() < 0.01 else inputs


Answer = list[list[Hypothesis]] | list[list[int]] | Exception


def get_answer(engine: Engine, case: EngineCase) -> Answer:
    """Return the engine's answer, or the error."""
    try:
        if case.decode is not None:
            return engine.search(case.inputs, config=case.decode, bos=BOS, eos=EOS, pad=PAD)
        seeds = [1] * len(case.inputs)
        return engine.generate(
            case.inputs, case.sample, window=case.window, seeds=seeds, banned=BANNED
        )
    except (ValueError, TypeError, UserError) as error:
        return error


def run(seed: int, number: int) -> Outcome:
    """Run one model with both engines."""
    case = make_case(seed, number)
    if unsupported_reason(case.model) is not None:
        return Outcome("refused", case.text)
    expected = get_answer(TorchEngine(case.model), case)
    answer = get_answer(prepare("compiled", case.model, threads=2, workers=number % 2 + 1), case)
    kind, detail = compare(case, answer, expected)
    if kind not in _FINE:
        return Outcome(kind, case.text, detail)
    problem = check_lower_precision(case, expected)
    if problem is not None:
        return Outcome("different", case.text, problem)
    return Outcome(kind, case.text)


def check_lower_precision(case: EngineCase, exact: Answer) -> str | None:
    """Check lower-precision answers: number of hypotheses, errors. Return the problem, or None."""
    for compute_type in ("bfloat16", "int8"):
        answer = get_answer(prepare("compiled", case.model, compute_type=compute_type), case)
        if isinstance(answer, Exception) or isinstance(exact, Exception):
            past = isinstance(answer, Exception) and "learned positions" in str(answer)
            if (
                type(answer) is not type(exact)
                and not past
                and "learned positions" not in str(exact)
            ):
                return f"{compute_type}: {answer!r} for {exact!r}"
        elif [*map(len, answer)] != [*map(len, exact)]:
            return f"{compute_type}: {[*map(len, answer)]} hypotheses for {[*map(len, exact)]}"
    return None


def compare(case: EngineCase, answer: Answer, expected: Answer) -> tuple[str, str]:
    """Return equal, tie, error, or a problem (refusal or different), with the detail."""
    if isinstance(answer, Exception) or isinstance(expected, Exception):
        if type(answer) is type(expected) and _sense(answer) == _sense(expected):
            return "error", ""
        return "refusal", f"{_sense(answer)} for {_sense(expected)}"
    if case.decode is None:
        texts = cast("list[list[int]]", answer), cast("list[list[int]]", expected)
        return compare_texts(case, *texts)
    outputs = cast("list[list[Hypothesis]]", answer), cast("list[list[Hypothesis]]", expected)
    return compare_outputs(case, *outputs)


def _sense(answer: Answer) -> str:
    """Return the text of an error without numbers; `an answer` if it is not an error."""
    if not isinstance(answer, Exception):
        return "an answer"
    return f"{type(answer).__name__} {re.sub(r'[0-9]+', 'N', str(answer).split(', got')[0])}"


def compare_outputs(
    case: EngineCase, actual: list[list[Hypothesis]], expected: list[list[Hypothesis]]
) -> tuple[str, str]:
    """Compare hypotheses."""
    assert case.decode is not None
    is_tie = False
    for source, outputs, references in zip(case.inputs, actual, expected, strict=True):
        if len(outputs) != len(references):
            return "different", f"{len(outputs)} hypotheses for {len(references)}"
        for hypothesis, reference in zip(outputs, references, strict=True):
            same = (hypothesis.tokens, hypothesis.finished) == (
                reference.tokens,
                reference.finished,
            )
            if (
                same
                and _close(hypothesis.score, reference.score)
                and _close(hypothesis.log_prob, reference.log_prob)
            ):
                continue
            is_tie = True
            exact = [_exact(case.model, source, output) for output in (hypothesis, reference)]
            if not _close(hypothesis.log_prob, exact[0], among=exact):
                return "different", f"log p off by {hypothesis.log_prob - exact[0]:.1e}"
            lengths = (hypothesis.length, reference.length)
            scores = [
                total / length**case.decode.length_penalty
                for total, length in zip(exact, lengths, strict=True)
            ]
            if not _close(*scores) and not _is_numerical_tie(case, source, outputs):
                return "different", f"score off by {scores[0] - scores[1]:.1e}"
    return ("tie", "") if is_tie else ("equal", "")


class PerturbedModel(torch.nn.Module):
    """Model whose scores are perturbed at random by a fraction of the largest score."""

    def __init__(self, model: Any, share: float):
        super().__init__()
        self.model, self.share = model, share

    def start(self, source: Padded) -> Any:
        """Start the model."""
        return self.model.start(source)

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Step the model and perturb its scores."""
        logits, state = self.model.step(tokens, state)
        largest = logits.where(logits > -1e20, 0.0).abs().amax()
        return logits + self.share * largest.clamp(min=1) * (2 * torch.rand_like(logits) - 1), state


def _is_numerical_tie(case: EngineCase, source: list[int], outputs: list[Hypothesis]) -> bool:
    """Return True if torch finds these outputs of scores perturbed by float32 rounding."""
    expected = [hypothesis.tokens for hypothesis in outputs]
    for attempt in range(150):
        perturbed = TorchEngine(PerturbedModel(case.model, 3e-7 * 10 ** (attempt / 100)))
        assert case.decode is not None
        (hypotheses,) = perturbed.search([source], config=case.decode, bos=BOS, eos=EOS, pad=PAD)
        if [hypothesis.tokens for hypothesis in hypotheses] == expected:
            return True
    return False


def _close(first: float, second: float, among: Sequence[float] = ()) -> bool:
    return abs(first - second) <= CLOSE * max(1.0, abs(first), abs(second), *map(abs, among))


def _exact(model: Any, source: Sequence[int], hypothesis: Hypothesis) -> float:
    """Return log p of a hypothesis in double precision."""
    targets = [[*hypothesis.tokens, EOS] if hypothesis.finished else list(hypothesis.tokens)]
    return _in_double(
        model,
        lambda: float(score(cast("Stepper[Any]", model), _pad(source), targets=targets, bos=BOS)),
    )


def _pad(source: Sequence[int]) -> Padded:
    return Padded(torch.tensor([list(source)]), torch.tensor([len(source)]))


def _in_double(model: Any, work: Callable[[], float]) -> float:
    model.double()
    try:
        with torch.no_grad():
            return work()
    finally:
        model.float()


def compare_texts(
    case: EngineCase, actual: list[list[int]], expected: list[list[int]]
) -> tuple[str, str]:
    """Compare continuations: where they first differ, both tokens must be equally likely."""
    is_tie = False
    for prompt, tokens, references in zip(case.inputs, actual, expected, strict=True):
        if len(tokens) != len(references):
            return "different", f"{len(tokens)} tokens for {len(references)}"
        if tokens == references:
            continue
        is_tie = True
        position = next(
            at
            for at, (token, reference) in enumerate(zip(tokens, references, strict=True))
            if token != reference
        )
        context = _context(prompt, references[:position], case.window)
        gap = _in_double(
            case.model,
            lambda context=context, pair=(tokens[position], references[position]): _gap(
                case.model, context, *pair
            ),
        )
        if not gap <= CLOSE:
            return "different", f"logits off by {gap:.1e}"
    return ("tie", "") if is_tie else ("equal", "")


def _context(prompt: list[int], generated: list[int], window: int | None) -> list[int]:
    """Return the context of the next token, as in `regard.decode.sample.sample`."""
    tokens, context = list(prompt), list(prompt if window is None else prompt[-window:])
    for token in generated:
        tokens.append(token)
        context = (
            [*context, token]
            if window is None or len(context) < window
            else tokens[-max(1, window // 2) :]
        )
    return context


def _gap(model: Any, context: list[int], first: int, second: int) -> float:
    state, logits = model.start(), torch.empty(0)
    for token in context:
        logits, state = model.step(torch.tensor([token]), state)
    largest = max(1.0, float(logits[0].abs().max()))
    return math.fabs(float(logits[0, first] - logits[0, second])) / largest


_FINE = ("equal", "tie", "error", "refused")
"""Same answer as torch; a tie; an error of both; a model that compiled code refuses."""

CAMPAIGN = Campaign(
    name="engines",
    about="random small models by torch and by compiled code",
    cases=1000,
    run=run,
    fine=frozenset(_FINE),
    seconds=240.0,
)
