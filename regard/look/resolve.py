"""Attention maps from recorded calls: the weights of every read, for each sample and each of its
outputs.

    map[h, i, j]    weight of key j for query i, in head h

In a search, query i is the read of step i in the row that the output came from: beams are resolved,
reads of other hypotheses are left out. Padding is removed. Weights are loaded when a map is
accessed.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.layers.read import INPUT_AFTER_STATE, KINDS, REVERSED_SOURCE, Role
from regard.look.maps import AttentionMap, SampleMaps
from regard.look.recording import Recording
from regard.look.recording_file import Call
from regard.look.sample import Axis, Sample
from regard.look.slicing import MASKED
from regard.look.steps import decoding_steps, token_labels
from regard.look.vectors import ReadVectors
from regard.trace import SearchOutput, Segment, Trace

_Calls = dict[str, list[tuple[int, Call]]]
"""Recorded calls of each read, each with its index in the recording."""


def resolve(recording: Recording, trace: Trace | None) -> list[SampleMaps]:
    """Return the samples of a recording with their maps, in the order in which the samples were
    given.

    trace: None: all calls belong to the same rows, and to no search.
    Raises: ValueError if no read ran, or if only some rows of a search were recorded, which moves
            rows.
    """
    segments = [Segment(samples=None)] if trace is None else trace.segments
    calls: dict[int, dict[int | None, _Calls]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for name in recording.names:
        for index, call in enumerate(recording.calls(name)):
            segment, step = (0, None) if trace is None else (call.segment, call.step)
            calls[segment][step][name].append((index, call))
    results = []
    for number, (segment_number, calls_of_steps) in enumerate(sorted(calls.items())):
        segment = segments[segment_number]
        reads = _SegmentReads(recording, calls_of_steps, segment, number)
        for row in reads.rows():
            sample = segment.sample(row)
            if sample is None and segment.samples is not None:
                continue
            index = row if segment.rows is None else segment.rows[row]
            outputs: Sequence[SearchOutput | None] = [*segment.outputs_of(row)] or [None]
            for rank, output in enumerate(outputs):
                # Batches are sorted by length: samples are returned in the order in which they were
                # given.
                order = segment.batch, index, rank
                results.append(
                    (
                        order,
                        reads.sample_maps(
                            row, rank, sample or Sample(title=f"row {index + 1}"), output
                        ),
                    )
                )
    return [sample_maps for _, sample_maps in sorted(results, key=lambda result: result[0])]


class _Axes(dict[str, Axis]):
    """Axes of a sample: those it came with (padding may follow them), and those made for reads that
    fit none."""

    def __init__(self, given: Mapping[str, Axis]):
        super().__init__(given)
        self.given = set(given)

    def derive(self, name: str, axis: Axis) -> None:
        """Add an axis that follows from the given ones."""
        self[name] = axis
        self.given.add(name)


class _SegmentReads:
    """Reads of one segment; calls: of each step of a search, and of None, the encoder pass."""

    def __init__(
        self,
        recording: Recording,
        calls: Mapping[int | None, _Calls],
        segment: Segment,
        number: int,
    ):
        self._recording, self._calls, self._segment, self._number = (
            recording,
            calls,
            segment,
            number,
        )

    def rows(self) -> list[int]:
        """Return the recorded rows of the source."""
        segment, recorded = self._segment, self._recording.part.rows
        if segment.rows is not None:
            count = len(segment.rows)
        elif segment.samples is not None:
            count = len(segment.samples)
        elif segment.steps:
            count = 1 + max(max(step.source_rows, default=0) for step in segment.steps)
        else:
            count = max(
                call.sizes[0] if len(call.sizes) > 2 else 1
                for calls in self._calls[None].values()
                for _, call in calls
            )
        return (
            list(range(count))
            if recorded is None
            else sorted(row for row in recorded if row < count)
        )

    def sample_maps(
        self, row: int, rank: int, sample: Sample, output: SearchOutput | None
    ) -> SampleMaps:
        """Return the sample of a row with its maps; of a search, those of one output."""
        segment, steps, title = self._segment, sample.steps, sample.title
        axes = _Axes(sample.axes if output is None else sample.axes | _output_axes(sample, output))
        if output is not None:
            steps = decoding_steps(segment, row, output, sample)
            if sample.text is not None and output.tokens:
                title = f"{title} -> {sample.text(output.tokens)}".strip()
        maps: list[AttentionMap] = []
        for name in self._recording.names:
            role = self._recording.role(name) or Role(
                "other", queries=f"{name}: queries", keys=f"{name}: keys"
            )
            maps += self._encoder_maps(name, role, row, axes)
            if output is not None and segment.steps:
                maps += self._search_maps(name, role, rank, output, axes)
        maps.sort(
            key=lambda attention_map: (
                KINDS.index(attention_map.kind),
                attention_map.layer,
                attention_map.direction,
            )
        )
        used = {
            name for attention_map in maps for name in (attention_map.queries, attention_map.keys)
        }
        kept_axes = {
            name: axis for name, axis in axes.items() if name in used or name in axes.given
        }
        ids = () if output is None else output.tokens
        sample = replace(sample, title=title, axes=kept_axes, steps=steps, output_ids=ids)
        return SampleMaps(sample=sample, maps=tuple(maps))

    def _calls_of(self, name: str, step: int | None) -> list[tuple[int, Call]]:
        """Return the recorded calls of a read in a step, or in the encoder pass."""
        return self._calls.get(step, {}).get(name, [])

    def _encoder_maps(self, name: str, role: Role, row: int, axes: _Axes) -> Iterator[AttentionMap]:
        """Yield the maps of the encoder pass; without a search, of all calls of the segment."""
        calls = self._calls_of(name, None)
        calls = [
            (index, call) for index, call in calls if len(call.sizes) == 2 or row < call.sizes[0]
        ]
        is_of_sets = role.kind == "chain" and role.keys == "queries"
        if (
            not calls or is_of_sets
        ):  # each query of a set is the first item of its own row: there is no past
            return
        stored_row = self._stored_row(row)
        single = all(call.sizes[-2] == 1 for _, call in calls)
        if self._segment.steps and role.queries == "output":
            # The first context of a recurrent decoder, computed before its first step.
            role = replace(role, kind="other", queries="initial state")
            axes["initial state"] = Axis(labels=("start",), kind="state")
            yield self._call_map(
                name, ", before the first step", role, (calls[0][0], stored_row, calls[0][1]), axes
            )
            return
        if single and (len(calls) > 1 or role.kind == "chain"):
            queries = axes.get(role.queries)
            if role.kind == "recurrent" and queries is not None and len(calls) == len(queries) + 1:
                calls = calls[1:]
            yield self._stacked_map(
                name, role, [(index, stored_row) for index, _ in calls], axes, row, source_row=row
            )
            return
        for count, (index, call) in enumerate(calls):
            call_role = (
                role if count == 0 else replace(role, queries=f"{role.queries} of call {count + 1}")
            )
            suffix = f", call {count + 1}" if count else ""
            yield self._call_map(name, suffix, call_role, (index, stored_row, call), axes)

    def _call_map(
        self, read: str, suffix: str, role: Role, entry: tuple[int, int, Call], axes: _Axes
    ) -> AttentionMap:
        """Return the map of one call; suffix: added to the read's name; entry: index of the call,
        its row, the call."""
        index, row, call = entry
        num_queries, num_keys = self._recording[read][index].shape[-2:]
        recorded_queries = self._recording.part.queries if call.sizes[-2] > 1 else None
        queries = _axis_name(axes, role.queries, num_queries, recorded_queries)
        keys = _axis_name(axes, role.keys, num_keys)
        size = len(axes[queries]), len(axes[keys])

        def load(head: int) -> Tensor:
            return _of_head(self._recording[read][index], row, head)[: size[0], : size[1]]

        role, name = replace(role, queries=queries, keys=keys), read + suffix
        recorded = self._recording.vectors
        vectors = None if recorded is None else recorded.of_call(read, index, row, size)
        return self._map(name, role, call, f"{self._number}/{name}/{row}", load, vectors=vectors)

    def _search_maps(
        self, name: str, role: Role, rank: int, output: SearchOutput, axes: _Axes
    ) -> Iterator[AttentionMap]:
        """Yield the map of the steps of a search, in the rows that one output came from."""
        entries: list[tuple[int, int] | None] = []
        for step, row in enumerate(output.rows):
            calls = self._calls_of(name, step)
            entries.append((calls[0][0], self._stored_row(row)) if calls else None)
        if any(entry is not None for entry in entries):
            source_row = self._segment.steps[0].source_rows[output.rows[0]]
            yield self._stacked_map(
                name, role, entries, axes, f"{source_row}.{rank}", source_row=source_row
            )

    def _stacked_map(
        self,
        name: str,
        role: Role,
        entries: Sequence[tuple[int, int] | None],
        axes: _Axes,
        owner: int | str,
        *,
        source_row: int,
    ) -> AttentionMap:
        """Return the map of calls of one query each; entries: index of each call and its row, None
        without a call.

        source_row: row of the items that they read, if that is not their own past.
        """
        weights, recording = self._recording[name], self._recording
        recorded = [entry for entry in entries if entry is not None]
        firsts = [
            call.first_key for call in recording.calls(name)
        ]  # of the keys of a call: earlier ones were discarded
        num_keys = max(firsts[index] + weights[index].shape[-1] for index, _ in recorded)
        if role.kind == "chain":
            past_axis, entries = self._past_axis(role.keys, entries, axes)
            queries = keys = _axis_name(
                axes, past_axis, max(num_keys, len(entries)), allow_shorter=False
            )
            count = len(axes[keys])
            entries = entries[:count]
            entries = [*entries, *[None] * (count - len(entries))]
        else:
            steps = [step for step, entry in enumerate(entries) if entry is not None]
            queries = _axis_name(
                axes, role.queries, len(entries), steps if len(steps) < len(entries) else None
            )
            keys, entries = _axis_name(axes, role.keys, num_keys), recorded
        size = len(axes[keys])

        def load(head: int) -> Tensor:
            # Keys of later calls do not exist yet, as if they were masked.
            rows = torch.full((len(entries), size), MASKED, dtype=recording.dtype)
            for row, entry in zip(rows, entries, strict=True):
                if entry is not None:
                    shown = row[firsts[entry[0]] :]
                    recorded_row = _of_head(weights[entry[0]], entry[1], head)[0, : len(shown)]
                    shown[: len(recorded_row)] = recorded_row
            return rows

        call = recording.calls(name)[recorded[-1][0]]
        role = replace(role, queries=queries, keys=keys)
        vectors = (
            None
            if recording.vectors is None
            else recording.vectors.of_steps(name, entries, size, source_row)
        )
        return self._map(name, role, call, f"{self._number}/{name}/{owner}", load, vectors=vectors)

    def _past_axis(
        self, axis: str, entries: Sequence[tuple[int, int] | None], axes: _Axes
    ) -> tuple[str, list[tuple[int, int] | None]]:
        """Return the axis of the items whose states a chain reads, and the entry of each, None
        without a call."""
        if axis == REVERSED_SOURCE and "source" in axes:
            axes.derive(axis, axes["source"].reverse())
        if axis == INPUT_AFTER_STATE:
            decoder_input = (
                axes["decoder input"]
                if "decoder input" in axes
                else Axis.from_count(len(entries), "step")
            )
            axes.derive(axis, decoder_input.prepend("start"))
            return axis, [None, *entries]  # nothing is read where the state from the encoder stands
        if axis == "decoder input" and self._segment.steps:
            return axis, list(entries)
        count = len(axes[axis]) if axis in axes else len(entries)
        return axis, [*[None] * max(0, self._max_length(axis, count) - len(entries)), *entries]

    def _max_length(self, axis: str, default: int) -> int:
        """Return the number of entries of the longest row of a batch."""
        axis = "source" if axis == REVERSED_SOURCE else axis
        samples = (
            [self._segment.sample(row) for row in self.rows()]
            if self._segment.samples is not None
            else []
        )
        return max(
            (len(sample.axes[axis]) for sample in samples if sample and axis in sample.axes),
            default=default,
        )

    def _stored_row(self, row: int) -> int:
        """Return the index among the recorded rows of a row of a call."""
        recorded = self._recording.part.rows
        if recorded is not None and row not in recorded:
            raise ValueError(
                f"only rows {list(recorded)} were recorded, but the output came from row {row}: a "
                f"search moves rows, "
                "record all of them"
            )
        return row if recorded is None else list(recorded).index(row)

    def _map(
        self,
        name: str,
        role: Role,
        call: Call,
        key: str,
        load: Callable[[int], Tensor],
        *,
        vectors: ReadVectors | None,
    ) -> AttentionMap:
        heads: tuple[str, ...] = ("",)
        if len(call.sizes) > 3:
            indices = self._recording.part.heads or range(call.sizes[-3])
            heads = tuple(f"head {index + 1}" for index in indices)
        facts = {
            "kernel": call.kernel,
            "mask": call.mask,
            "bias": call.bias,
            "autocast": call.autocast,
        }
        return AttentionMap(
            key=key,
            name=name,
            kind=role.kind,
            layer=role.layer,
            direction=role.direction,
            queries=role.queries,
            keys=role.keys,
            heads=heads,
            facts={fact: value for fact, value in facts.items() if value is not None},
            load=load,
            vectors=None if vectors is None else lambda: vectors,
        )


def _of_head(weights: Tensor, row: int, head: int) -> Tensor:
    """Return (query, key) of weights ([batch, [head,]] query, key)."""
    if weights.dim() == 2:
        return weights
    return weights[row] if weights.dim() == 3 else weights[row, head]


def _output_axes(sample: Sample, output: SearchOutput) -> dict[str, Axis]:
    """Return the axes of the output ("output") and of the decoder input ("decoder input")."""
    count = len(output.rows)
    labels, input_labels = token_labels(sample, output)
    if not labels:
        return {
            "output": sample.output or Axis.from_count(count, "step"),
            "decoder input": Axis.from_count(count, "step"),
        }
    if sample.output is None:
        return {
            "output": Axis(labels=labels, kind="token"),
            "decoder input": Axis(labels=input_labels, kind="token"),
        }
    axis = replace(sample.output, labels=labels)
    places = (None, *axis.places[:-1]) if axis.places else ()
    return {"output": axis, "decoder input": replace(axis, labels=input_labels, places=places)}


def _axis_name(
    axes: _Axes,
    name: str,
    size: int,
    indices: Sequence[int] | None = None,
    *,
    allow_shorter: bool = True,
) -> str:
    """Return the name of an axis of this size, adding a numbered axis if the named one does not
    fit.

    indices:       recorded entries of the axis; None: all of them.
    allow_shorter: accept a given axis of fewer entries (the rest of `size` is padding).
    """
    if indices is not None:
        whole = axes.get(name, Axis.from_count(max(indices) + 1))
        if max(indices) < len(whole):
            axes[f"{name}, selected"] = whole.take(indices)
            return f"{name}, selected"
        return _axis_name(axes, f"{name}, selected", size)
    if name not in axes:
        axes[name] = Axis.from_count(size)
    fits = (
        len(axes[name]) <= size or not allow_shorter
        if name in axes.given
        else len(axes[name]) == size
    )
    if not fits:
        sized_name = f"{name} ({size})"
        axes.setdefault(sized_name, Axis.from_count(size))
        return sized_name
    return name
