"""Attention maps from recorded calls: the weights of every read, for each sample and each output.

    map[h, i, j]    weight of key j for query i, in head h

In a search, query i is the read of step i in the row that the output came from: beams are resolved,
reads of other hypotheses are left out. Padding is removed. Weights are loaded when a map is
accessed.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.layers.read import INPUT_AFTER_STATE, KINDS, REVERSED_SOURCE, Role
from regard.look.arrays import MASKED
from regard.look.maps import IMPLIED, STATE, AttentionMap, SampleMaps
from regard.look.recording import Call, Recording
from regard.look.sample import Alternative, Axis, Beam, DecodingStep, Sample
from regard.look.vectors import ReadVectors, read_vectors
from regard.trace import SearchOutput, Segment, Trace

_Calls = dict[tuple[str, int | None], list[Call]]
"""Calls of each read and step (None: the encoder pass)."""
_Entry = tuple[Call, int] | None
"""A call and a row of it; None without a call."""


def resolve(recording: Recording, trace: Trace) -> list[SampleMaps]:
    """Return the samples of a recording, as they were given. Raises: ValueError if no read ran."""
    calls: dict[int, _Calls] = defaultdict(lambda: defaultdict(list))
    for name in recording.names:
        for call in recording.calls[name]:
            calls[call.segment][name, call.step].append(call)
    results = []
    for number, segment_number in enumerate(sorted(calls)):
        segment = trace.segments[segment_number]
        reads = _SegmentReads(recording, calls[segment_number], segment, number)
        for row in range(reads.num_rows()):
            sample = segment.sample(row)
            if sample is None and segment.samples is not None:
                continue
            index = row if segment.rows is None else segment.rows[row]
            sample = sample or Sample(title=f"row {index + 1}")
            outputs: Sequence[SearchOutput | None] = [*segment.outputs_of(row)] or [None]
            for rank, output in enumerate(outputs):
                # Batches are sorted by length; samples are returned as they were given.
                order = segment.batch, index, rank
                results.append((order, reads.sample_maps(row, rank, sample, output)))
    return [sample_maps for _, sample_maps in sorted(results, key=lambda result: result[0])]


class _Axes(dict[str, Axis]):
    """Axes of a sample: those given (padding may follow them), and those made for other reads."""

    def __init__(self, given: Mapping[str, Axis]):
        super().__init__(given)
        self.given = set(given)

    def derive(self, name: str, axis: Axis) -> None:
        """Add an axis that follows from the given ones."""
        self[name] = axis
        self.given.add(name)


@dataclass(eq=False)
class _SegmentReads:
    recording: Recording
    calls: _Calls
    segment: Segment
    number: int

    def num_rows(self) -> int:
        """Return the number of rows of the source."""
        segment = self.segment
        if segment.rows is not None:
            return len(segment.rows)
        if segment.samples is not None:
            return len(segment.samples)
        if segment.steps:
            return 1 + max(max(step.source_rows, default=0) for step in segment.steps)
        count = 1
        for call in itertools.chain.from_iterable(self.calls.values()):
            if call.weights.ndim > 2:
                count = max(count, len(call.weights))
        return count

    def sample_maps(
        self, row: int, rank: int, sample: Sample, output: SearchOutput | None
    ) -> SampleMaps:
        """Return the sample of a row with its maps; of a search, those of one output."""
        segment, steps, title = self.segment, sample.steps, sample.title
        axes = _Axes(sample.axes if output is None else sample.axes | _output_axes(sample, output))
        if output is not None:
            steps = _decoding_steps(segment, row, output, sample)
            if sample.text is not None and output.tokens:
                title = f"{title} -> {sample.text(output.tokens)}".strip()
        maps: list[AttentionMap] = []
        for name in self.recording.names:
            role = self.recording.roles[name]
            if role is None:
                role = Role("other", queries=f"{name}: queries", keys=f"{name}: keys")
            maps += self._encoder_maps(name, role, row, axes)
            if output is not None and segment.steps:
                first = self.calls[name, 0]
                if first and first[0].weights.shape[-2] > 1:  # of all steps (teacher forcing)
                    maps += self._call_maps(name, "", role, first[0], output.rows[0], axes=axes)
                    continue
                # The steps of the search, in the rows that the output came from.
                entries: list[_Entry] = []
                for step, step_row in enumerate(output.rows):
                    calls = self.calls[name, step]
                    entries.append((calls[0], step_row) if calls else None)
                if any(entry is not None for entry in entries):
                    source_row = segment.steps[0].source_rows[output.rows[0]]
                    owner = f"{source_row}.{rank}"
                    maps += self._stacked_maps(
                        name, role, entries, axes, owner, source_row=source_row
                    )
        maps.sort(key=lambda own: (KINDS.index(own.kind), own.layer, own.direction))
        kept = axes.given.union(*((own.queries, own.keys) for own in maps))
        sample = replace(
            sample,
            title=title,
            axes={name: axis for name, axis in axes.items() if name in kept},
            steps=steps,
            output_ids=() if output is None else output.tokens,
        )
        return SampleMaps(sample=sample, maps=tuple(maps))

    def _encoder_maps(self, name: str, role: Role, row: int, axes: _Axes) -> Iterator[AttentionMap]:
        """Yield the maps of the encoder pass; without a search, of all calls of the segment."""
        calls = []
        for call in self.calls[name, None]:
            if call.weights.ndim == 2 or row < len(call.weights):
                calls.append(call)
        # Each query of a set is the first item of its own row: there is no past.
        is_of_sets = role.kind == "chain" and role.keys == "queries"
        if not calls or is_of_sets:
            return
        if self.segment.steps and role.queries == "output":
            # The first context of a recurrent decoder, computed before its first step.
            role = replace(role, kind="other", queries="initial state")
            axes["initial state"] = Axis(labels=("start",), kind="state")
            suffix = ", before the first step"
            yield from self._call_maps(name, suffix, role, calls[0], row, axes=axes)
            return
        is_single = all(call.weights.shape[-2] == 1 for call in calls)
        if is_single and (len(calls) > 1 or role.kind == "chain"):
            queries = axes.get(role.queries)
            if role.kind == "recurrent" and queries is not None and len(calls) == len(queries) + 1:
                calls = calls[1:]
            entries = [(call, row) for call in calls]
            yield from self._stacked_maps(name, role, entries, axes, row, source_row=row)
            return
        for count, call in enumerate(calls, 1):
            suffix = f", call {count}" if count > 1 else ""
            call_role = role
            if count > 1:
                call_role = replace(role, queries=f"{role.queries} of call {count}")
            yield from self._call_maps(name, suffix, call_role, call, row, axes=axes)

    def _call_maps(
        self, read: str, suffix: str, role: Role, call: Call, row: int, *, axes: _Axes
    ) -> list[AttentionMap]:
        """Return the maps of one call; suffix: added to the read's name."""
        queries = _axis_name(axes, role.queries, call.weights.shape[-2])
        keys = _axis_name(axes, role.keys, call.weights.shape[-1])
        size = len(axes[queries]), len(axes[keys])

        def head(number: int) -> Tensor:
            return call.head(row, number)[: size[0], : size[1]]

        vectors = read_vectors([(call.vectors, row)], size, row)
        role, name = replace(role, queries=queries, keys=keys), read + suffix
        own = _map(name, role, call, f"{self.number}/{name}/{row}", head, vectors=vectors)
        return [own, *_state_maps(own, call, row, axes)]

    def _stacked_maps(
        self,
        name: str,
        role: Role,
        entries: Sequence[_Entry],
        axes: _Axes,
        owner: int | str,
        *,
        source_row: int,
    ) -> list[AttentionMap]:
        """Return the maps of calls of one query each.

        source_row: row of the items that they read, if that is not their own past.
        """
        recorded = [entry for entry in entries if entry is not None]
        last_call = recorded[-1][0]
        num_keys = max(call.first_key + call.weights.shape[-1] for call, _ in recorded)
        if role.kind == "chain":
            past_axis, entries = self._past_axis(role.keys, entries, axes)
            size = max(num_keys, len(entries))
            queries = keys = _axis_name(axes, past_axis, size, allow_shorter=False)
            count = len(axes[keys])
            entries = [*entries[:count], *[None] * (count - len(entries))]
        else:
            entries = recorded
            queries = _axis_name(axes, role.queries, len(entries))
            keys = _axis_name(axes, role.keys, num_keys)
        num_keys = len(axes[keys])

        def head(number: int) -> Tensor:
            # Keys of later calls do not exist yet, as if they were masked.
            dtype = last_call.head(recorded[-1][1], number).dtype
            rows = torch.full((len(entries), num_keys), MASKED, dtype=dtype)
            for row, entry in zip(rows, entries, strict=True):
                if entry is not None:
                    call, call_row = entry
                    shown = row[call.first_key :]
                    own = call.head(call_row, number)[0, : len(shown)]
                    shown[: len(own)] = own
            return rows

        asked = [None if entry is None else (entry[0].vectors, entry[1]) for entry in entries]
        vectors = read_vectors(asked, (len(entries), num_keys), source_row)
        role = replace(role, queries=queries, keys=keys)
        key = f"{self.number}/{name}/{owner}"
        own = _map(name, role, last_call, key, head, vectors=vectors)
        return [own, *_state_maps(own, last_call, recorded[-1][1], axes)]

    def _past_axis(
        self, axis: str, entries: Sequence[_Entry], axes: _Axes
    ) -> tuple[str, list[_Entry]]:
        """Return the axis of the items whose states a chain reads, and the entry of each."""
        if axis == REVERSED_SOURCE and "source" in axes:
            axes.derive(axis, axes["source"].reverse())
        if axis == INPUT_AFTER_STATE:
            steps = axes.get("decoder input", Axis.from_count(len(entries), "step"))
            axes.derive(axis, steps.prepend("start"))
            return axis, [None, *entries]  # nothing is read where the state from the encoder stands
        if axis == "decoder input" and self.segment.steps:
            return axis, list(entries)
        count = len(axes[axis]) if axis in axes else len(entries)
        name = "source" if axis == REVERSED_SOURCE else axis
        lengths = []  # of all rows of the batch: shorter ones are padded in front
        if self.segment.samples is not None:
            for row in range(self.num_rows()):
                sample = self.segment.sample(row)
                if sample and name in sample.axes:
                    lengths.append(len(sample.axes[name]))
        return axis, [*[None] * (max(lengths, default=count) - len(entries)), *entries]


def _map(
    name: str,
    role: Role,
    call: Call,
    key: str,
    head: Callable[[int], Tensor],
    *,
    vectors: ReadVectors | None,
) -> AttentionMap:
    heads: tuple[str, ...] = ("",)
    if call.weights.ndim > 3:
        count = math.prod(call.weights.shape[1:-2])
        heads = tuple(f"head {number}" for number in range(1, count + 1))
    return AttentionMap(
        key=key,
        name=name,
        kind=role.kind,
        layer=role.layer,
        direction=role.direction,
        measure="weight" if call.state is None else IMPLIED,
        queries=role.queries,
        keys=role.keys,
        heads=heads,
        facts=call.facts,
        head=head,
        vectors=None if vectors is None else lambda: vectors,
    )


def _state_maps(own: AttentionMap, call: Call, row: int, axes: _Axes) -> list[AttentionMap]:
    """Return the map of S after a call of a memory that is written; of other calls none."""
    if call.state is None:
        return []
    state = torch.from_numpy(call.state)[row].flatten(0, -3)  # (head, key_dim, value_dim)
    names = []
    for kind, size in zip(("key number", "value number"), state.shape[1:], strict=True):
        axes.setdefault(f"{kind}s", Axis.from_count(size, kind))
        names.append(_axis_name(axes, f"{kind}s", size))
    changes = {"key": f"{STATE}/{own.key}", "measure": STATE}
    head = state.__getitem__
    return [replace(own, **changes, queries=names[0], keys=names[1], head=head)]


def _token_labels(sample: Sample, output: SearchOutput) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return labels of the output tokens and the decoder input; empty if the sample has none."""
    if sample.tokens is None or not output.tokens:
        return (), ()
    labels = tuple(sample.tokens(output.tokens))
    begin = sample.begin if output.begin is None else sample.tokens([output.begin])[0]
    inputs = (*sample.decoder_input, *(begin, *labels)[len(sample.decoder_input) :])[: len(labels)]
    return (*inputs[1:], labels[-1]), inputs


def _decoding_steps(
    segment: Segment, row: int, output: SearchOutput, sample: Sample
) -> tuple[DecodingStep, ...]:
    """Return the steps of the search that led to one output; empty without labels for tokens."""
    if sample.tokens is None or not output.tokens:
        return ()
    tokens = sample.tokens
    text = sample.text or (lambda ids: " ".join(tokens(ids)))
    prefixes: list[tuple[int, ...]] = []
    if segment.steps:
        prefixes = [()] * len(segment.steps[0].source_rows)
    steps = []
    labels, _ = _token_labels(sample, output)
    for t, (step_row, token) in enumerate(zip(output.rows, output.tokens, strict=True)):
        step, likely = segment.steps[t], {}
        if step_row < len(step.tokens):
            likely = dict(zip(step.tokens[step_row], step.log_probs[step_row], strict=True))
        log_prob = likely.get(token, -math.inf)
        if t < len(output.log_probs):
            log_prob = output.log_probs[t]
        beams: list[Beam] = []
        if step.beam is not None:
            parents = zip(step.beam.rows, step.beam.tokens, strict=True)
            prefixes = [(*prefixes[parent], new_token) for parent, new_token in parents]
            next_rows = segment.steps[t + 1].source_rows if t + 1 < len(segment.steps) else []
            next_row = output.rows[t + 1] if t + 1 < len(output.rows) else None
            for index, source_row in enumerate(next_rows):
                score = step.beam.log_probs[index]
                if source_row == row and score > -math.inf:
                    is_prefix = index == next_row
                    beams.append(Beam(text=text(prefixes[index]), score=score, is_prefix=is_prefix))
            beams.sort(key=lambda beam: -beam.score)
        alternatives = []
        for likely_token, value in likely.items():
            name, probability = tokens([likely_token])[0], math.exp(min(0.0, value))
            alternatives.append(Alternative(token=name, probability=probability))
        shown = DecodingStep(
            token=labels[t],
            probability=math.exp(min(0.0, log_prob)),
            alternatives=tuple(alternatives),
            beams=tuple(beams),
        )
        steps.append(shown)
    return tuple(steps)


def _output_axes(sample: Sample, output: SearchOutput) -> dict[str, Axis]:
    """Return the axes of the output ("output") and of the decoder input ("decoder input")."""
    labels, input_labels = _token_labels(sample, output)
    if not labels:
        steps = Axis.from_count(len(output.rows), "step")
        return {"output": sample.output or steps, "decoder input": steps}
    if sample.output is None:
        output_axis = Axis(labels=labels, kind="token")
        return {"output": output_axis, "decoder input": replace(output_axis, labels=input_labels)}
    axis = replace(sample.output, labels=labels)
    places = (None, *axis.places[:-1]) if axis.places else ()
    return {"output": axis, "decoder input": replace(axis, labels=input_labels, places=places)}


def _axis_name(axes: _Axes, name: str, size: int, *, allow_shorter: bool = True) -> str:
    """Return the name of an axis of this size, adding a numbered axis if the named one differs.

    allow_shorter: accept a given axis of fewer entries (the rest of `size` is padding).
    """
    axis = axes.setdefault(name, Axis.from_count(size))
    is_given = name in axes.given
    if len(axis) == size or (is_given and (len(axis) < size or not allow_shorter)):
        return name
    sized_name = f"{name} ({size})"
    axes.setdefault(sized_name, Axis.from_count(size))
    return sized_name
