"""From calls to maps: for each input and answer, what every read's weights over it were.

    map[h, i, j]    weight of key j in head h, as query i read it

Of a search, query i is the read of step i in the row that was on the way to the answer, so beams are resolved: what
another hypothesis read is not in it. Padding is cut off. Weights stay where they were recorded until somebody looks.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.look.map import Map, Seen
from regard.look.names import KINDS, Role, role_of
from regard.look.recording import Recording
from regard.look.recording_file import Call
from regard.look.scene import Axis, Scene
from regard.look.story import Chapter, Counts, Story, spoken, steps_of
from regard.telling import Answer

_FROM_THE_END, _HANDED_OVER = "source from the end", "fed, after the start"


def resolve(recording: Recording, story: Story) -> list[Seen]:
    """The scenes of a recording, in the order in which they were shown.

    Raises: ValueError if no read ran, or rows were chosen of a search, which moves them.
    """
    calls, found = {name: recording.calls(name) for name in recording.names}, []
    for number, (shown, chapter) in enumerate(story.chapters()):
        told = _Chapter(recording, calls, chapter, number)
        for row in told.rows():
            scene = chapter.scene(row)
            if scene is None and chapter.scenes is not None:
                continue
            place = row if chapter.rows is None else chapter.rows[row]
            answers: Sequence[Answer | None] = [*chapter.answers_of(row)] or [None]
            for rank, answer in enumerate(answers):
                # Batches are cut by length: scenes come back in the order in which they were given.
                order = shown, place, rank
                found.append((order, told.seen(row, rank, scene or Scene(title=f"row {place + 1}"), answer)))
    return [seen for _, seen in sorted(found, key=lambda one: one[0])]


class _Axes(dict[str, Axis]):
    """The axes of a scene: those that were told, which padding may follow, and those made for reads that fit none."""

    def __init__(self, told: Mapping[str, Axis]):
        super().__init__(told)
        self.told = set(told)

    def tell(self, name: str, axis: Axis) -> None:
        """One that follows from those that were told."""
        self[name] = axis
        self.told.add(name)


class _Chapter:
    """The reads of one chapter."""

    def __init__(self, recording: Recording, calls: Mapping[str, Sequence[Call]], chapter: Chapter, number: int):
        self._recording, self._all, self._chapter, self._number = recording, calls, chapter, number
        self._names = tuple(calls)

    def rows(self) -> list[int]:
        """Rows of the source of which something was kept."""
        chapter, kept = self._chapter, self._recording.part.rows
        if chapter.rows is not None:
            count = len(chapter.rows)
        elif chapter.scenes is not None:
            count = len(chapter.scenes)
        elif chapter.steps:
            count = 1 + max(max(moment.sentences, default=0) for moment in chapter.steps)
        else:
            count = max(
                (_num_rows(call) for name in self._names for _, call in self._calls(name, chapter.start, chapter.stop)),
                default=0,
            )
        return list(range(count)) if kept is None else sorted(row for row in kept if row < count)

    def seen(self, row: int, rank: int, scene: Scene, answer: Answer | None) -> Seen:
        """What was read of a row's scene, on the way to one answer."""
        chapter, steps, title = self._chapter, scene.steps, scene.title
        axes = _Axes(scene.axes if answer is None else scene.axes | _spoken(scene, answer))
        if answer is not None:
            steps = steps_of(chapter, row, answer, scene)
            if scene.text is not None and answer.tokens:
                title = f"{title} -> {scene.text(answer.tokens)}".strip()
        maps: list[Map] = []
        for name in self._names:
            role = role_of(name, self._names, axes)
            maps += self._opening(name, role, row, axes)
            if answer is not None and chapter.steps:
                maps += self._search(name, role, rank, answer, axes)
        maps.sort(key=lambda one: (KINDS.index(one.kind), one.layer, one.direction))
        used = {name for one in maps for name in (one.queries, one.keys)}
        kept = {name: axis for name, axis in axes.items() if name in used or name in axes.told}
        ids = () if answer is None else answer.tokens
        return Seen(scene=replace(scene, title=title, axes=kept, steps=steps, ids=ids), maps=tuple(maps))

    def _calls(self, name: str, start: Counts, stop: Counts) -> list[tuple[int, Call]]:
        """The kept calls of a read from one count to another, and where they are kept."""
        calls = self._all[name]
        first, last = (
            bisect_left(calls, counts.get(name, 0), key=lambda call: call.number) for counts in (start, stop)
        )
        return [(index, calls[index]) for index in range(first, last)]

    def _opening(self, name: str, role: Role, row: int, axes: _Axes) -> Iterator[Map]:
        """What was read at once, or one query after another but in no search."""
        calls = self._calls(name, self._chapter.start, self._chapter.opened)
        calls = [(index, call) for index, call in calls if len(call.sizes) == 2 or row < call.sizes[0]]
        is_of_sets = role.kind == "chain" and role.keys == "fed" and "queries" in axes
        if not calls or is_of_sets:  # the queries of a set are each the first of a row: there is no past
            return
        place = self._place(row)
        single = all(call.sizes[-2] == 1 for _, call in calls)
        if self._chapter.steps and role.queries == "said":
            # A recurrent decoder's first context, which no step of its own has read.
            role = replace(role, kind="other", queries="start")
            axes["start"] = Axis(labels=("start",), what="state")
            yield self._at_once(name, ", before the first step", role, (calls[0][0], place, calls[0][1]), axes)
            return
        if single and (len(calls) > 1 or role.kind == "chain"):
            queries = axes.get(role.queries)
            if role.kind == "recurrent" and queries is not None and len(calls) == len(queries) + 1:
                calls = calls[1:]
            yield self._joined(name, role, [(index, place) for index, _ in calls], axes, row)
            return
        for count, (index, call) in enumerate(calls):
            other = role if count == 0 else replace(role, queries=f"{role.queries} of call {count + 1}")
            yield self._at_once(name, f", call {count + 1}" if count else "", other, (index, place, call), axes)

    def _at_once(self, read: str, which: str, role: Role, kept: tuple[int, int, Call], axes: _Axes) -> Map:
        """One call of several queries; which: of several calls; kept: where it is, and the row of it."""
        index, row, call = kept
        num_queries, num_keys = self._recording[read][index].shape[-2:]
        chosen = self._recording.part.queries if call.sizes[-2] > 1 else None
        queries = _fitting(axes, role.queries, num_queries, chosen)
        keys = _fitting(axes, role.keys, num_keys)
        size = len(axes[queries]), len(axes[keys])

        def load(head: int) -> Tensor:
            return _of_head(self._recording[read][index], row, head)[: size[0], : size[1]]

        role, name = replace(role, queries=queries, keys=keys), read + which
        return self._map(name, role, call, f"{self._number}/{name}/{row}", load)

    def _search(self, name: str, role: Role, rank: int, answer: Answer, axes: _Axes) -> Iterator[Map]:
        """The reads of the steps of a search, in the rows on the way to an answer."""
        places: list[tuple[int, int] | None] = []
        for step, row in enumerate(answer.rows):
            calls = self._calls(name, *self._chapter.within(step))
            places.append((calls[0][0], self._place(row)) if calls else None)
        if any(place is not None for place in places):
            sentence = self._chapter.steps[0].sentences[answer.rows[0]]
            yield self._joined(name, role, places, axes, f"{sentence}.{rank}")

    def _joined(
        self,
        name: str,
        role: Role,
        places: Sequence[tuple[int, int] | None],
        axes: _Axes,
        owner: int | str,
    ) -> Map:
        """Calls of one query each, one below the other; places: which call and row of it, None where there is none."""
        weights, recording = self._recording[name], self._recording
        there = [place for place in places if place is not None]
        num_keys = max(weights[index].shape[-1] for index, _ in there)
        if role.kind == "chain":
            name_of_all, places = self._own_past(role.keys, places, axes)
            queries = keys = _fitting(axes, name_of_all, max(num_keys, len(places)), least=False)
            count = len(axes[keys])
            places = places[:count]
            places = [*places, *[None] * (count - len(places))]
        else:
            steps = [step for step, place in enumerate(places) if place is not None]
            queries = _fitting(axes, role.queries, len(places), steps if len(steps) < len(places) else None)
            keys, places = _fitting(axes, role.keys, num_keys), there
        size = len(axes[keys])

        def load(head: int) -> Tensor:
            empty = torch.zeros(1, size, dtype=recording.dtype)
            rows = [empty if place is None else _of_head(weights[place[0]], place[1], head) for place in places]
            return torch.cat([nn.functional.pad(row, (0, size - row.shape[-1])) for row in rows])

        call = recording.calls(name)[there[-1][0]]
        role = replace(role, queries=queries, keys=keys)
        return self._map(name, role, call, f"{self._number}/{name}/{owner}", load)

    def _own_past(
        self, axis: str, places: Sequence[tuple[int, int] | None], axes: _Axes
    ) -> tuple[str, list[tuple[int, int] | None]]:
        """The items whose states a chain reads, and the read at each: None where nothing was read."""
        if axis == _FROM_THE_END and "source" in axes:
            axes.tell(axis, axes["source"].reversed())
        if axis == "fed" and any(name.partition("core.")[2].startswith("encoder.") for name in self._names):
            # The past of a decoder begins with the state that the encoder hands over; there, nothing was read.
            fed = axes["fed"] if "fed" in axes else Axis.numbered(len(places), "step")
            axes.tell(_HANDED_OVER, fed.after("start"))
            return _HANDED_OVER, [None, *places]
        if axis == "fed" and self._chapter.steps:
            return axis, list(places)
        count = len(axes[axis]) if axis in axes else len(places)
        return axis, [*[None] * max(0, self._longest(axis, count) - len(places)), *places]

    def _longest(self, axis: str, count: int) -> int:
        """Entries of the longest row of a batch."""
        axis = "source" if axis == _FROM_THE_END else axis
        scenes = [self._chapter.scene(row) for row in self.rows()] if self._chapter.scenes is not None else []
        return max((len(scene.axes[axis]) for scene in scenes if scene and axis in scene.axes), default=count)

    def _place(self, row: int) -> int:
        """Where a row of a call is kept."""
        kept = self._recording.part.rows
        if kept is not None and row not in kept:
            raise ValueError(
                f"rows {list(kept)} were recorded, but the answer came by row {row}: a search moves rows, record all"
            )
        return row if kept is None else list(kept).index(row)

    def _map(self, name: str, role: Role, call: Call, key: str, load: Callable[[int], Tensor]) -> Map:
        heads: tuple[str, ...] = ("",)
        if len(call.sizes) > 3:
            numbers = self._recording.part.heads or range(call.sizes[-3])
            heads = tuple(f"head {number + 1}" for number in numbers)
        facts = {"kernel": call.kernel, "mask": call.mask, "bias": call.bias, "autocast": call.autocast}
        return Map(
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
        )


def _num_rows(call: Call) -> int:
    return call.sizes[0] if len(call.sizes) > 2 else 1


def _of_head(weights: Tensor, row: int, head: int) -> Tensor:
    """(query, key) of weights ([batch, [head,]] query, key)."""
    if weights.dim() == 2:
        return weights
    return weights[row] if weights.dim() == 3 else weights[row, head]


def _spoken(scene: Scene, answer: Answer) -> dict[str, Axis]:
    """What was said and what was fed, as axes."""
    count = len(answer.rows)
    labels, fed = spoken(scene, answer)
    if not labels:
        return {"said": scene.said or Axis.numbered(count, "step"), "fed": Axis.numbered(count, "step")}
    if scene.said is None:
        return {"said": Axis(labels=labels, what="token"), "fed": Axis(labels=fed, what="token")}
    said = replace(scene.said, labels=labels)
    places = (None, *said.places[:-1]) if said.places else ()
    return {"said": said, "fed": replace(said, labels=fed, places=places)}


def _fitting(axes: _Axes, name: str, size: int, chosen: Sequence[int] | None = None, *, least: bool = True) -> str:
    """The name of an axis of this size or a shorter one (the rest is padding), made if there is none that fits.

    chosen: which entries were kept. least: whether one that was told may be no longer.
    """
    if chosen is not None:
        whole = axes.get(name, Axis.numbered(max(chosen) + 1))
        if max(chosen) < len(whole):
            axes[f"{name}, some"] = whole.take(chosen)
            return f"{name}, some"
        return _fitting(axes, f"{name}, some", size)
    if name not in axes:
        axes[name] = Axis.numbered(size)
    fits = len(axes[name]) <= size or not least if name in axes.told else len(axes[name]) == size
    if not fits:
        other = f"{name} ({size})"
        axes.setdefault(other, Axis.numbered(size))
        return other
    return name
