"""What was told while reads were recorded, with the calls that each read had made by then.

A story is cut into chapters: as long as rows of calls belong to the same inputs. In a chapter a source is read at
once, or some calls read it first (the opening) and the others are steps of a search:

    chapter    rows -> scenes        opening: calls [start, first step)      steps: calls [step t, step t + 1)
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from regard.look.scene import Alternative, Beam, Scene, Step
from regard.telling import Answer, Answered, Lived, Rows, Scored, Shown, Told
from regard.telling import Step as Stepped

Counts = Mapping[str, int]
"""Calls that each read has made."""


@dataclass(kw_only=True)
class Moment:
    """One step of a search."""

    start: Counts
    sentences: Sequence[int]
    """The row of the source that each row belongs to."""
    scored: Scored | None = None
    lived: Lived | None = None


@dataclass(kw_only=True)
class Chapter:
    """Calls whose rows belong to the same inputs."""

    start: Counts
    stop: Counts = field(default_factory=dict)
    scenes: Sequence[Scene] | None
    """What is shown; None if nobody told."""
    rows: Sequence[int] | None = None
    """The scene of each row; None: in their order."""
    steps: list[Moment] = field(default_factory=list)
    answers: Sequence[Sequence[Answer]] = ()
    """Of each row, best first."""

    @property
    def opened(self) -> Counts:
        """Calls made when the opening was over."""
        return self.steps[0].start if self.steps else self.stop

    def within(self, step: int) -> tuple[Counts, Counts]:
        """Calls made before a step, and after it."""
        following = self.steps[step + 1].start if step + 1 < len(self.steps) else self.stop
        return self.steps[step].start, following

    def scene(self, row: int) -> Scene | None:
        """What a row of the source belongs to."""
        if self.scenes is None:
            return None
        number = row if self.rows is None else self.rows[row]
        return self.scenes[number] if number < len(self.scenes) else None

    def answers_of(self, row: int) -> Sequence[Answer]:
        """What was said to a row; what was fed to its first row of each step, if nobody told."""
        if row < len(self.answers):
            return self.answers[row]
        way = [moment.sentences.index(row) for moment in self.steps if row in moment.sentences]
        return [Answer([], way)] if way else []


class Story:
    """Hears what is told (`hear`), and cuts it into chapters."""

    def __init__(self, count: Callable[[], Counts], *, scenes: Sequence[Scene] | None = None):
        """count: the calls that each read has made by now. scenes: what is shown until something else is told."""
        self._count, self._given = count, scenes
        self._chapters = [Chapter(start={}, scenes=scenes)]

    def hear(self, told: Told) -> None:
        """Take down what is told."""
        now, last = self._count(), self._chapters[-1]
        match told:
            case Shown(scenes):
                self._begin(Chapter(start=now, scenes=self._given if scenes is None else scenes))
            case Rows(rows):
                self._begin(Chapter(start=now, scenes=last.scenes, rows=rows))
            case Stepped(sentences):
                last.steps.append(Moment(start=now, sentences=list(sentences)))
            case Scored() if last.steps:
                last.steps[-1].scored = told
            case Lived() if last.steps:
                last.steps[-1].lived = told
            case Answered(answers):
                last.answers = answers

    def chapters(self) -> list[tuple[int, Chapter]]:
        """Those in which something was read, and which of all that was shown each belongs to, in order."""
        self._chapters[-1].stop = self._count()
        shown: dict[int, int] = {}
        found = []
        for one in self._chapters:
            place = shown.setdefault(id(one if one.scenes is None else one.scenes), len(shown))
            if any(one.stop[name] > one.start.get(name, 0) for name in one.stop):
                found.append((place, one))
        return found

    def _begin(self, chapter: Chapter) -> None:
        self._chapters[-1].stop = chapter.start
        self._chapters.append(chapter)


def spoken(scene: Scene, answer: Answer) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Labels of what was said, and of what was fed; nothing if the scene cannot put tokens into words."""
    if scene.tokens is None or not answer.tokens:
        return (), ()
    said = tuple(scene.tokens(answer.tokens))
    begin = scene.begin if answer.begin is None else scene.tokens([answer.begin])[0]
    fed = (*scene.fed, *(begin, *said)[len(scene.fed) :])[: len(said)]
    return (*fed[1:], said[-1]), fed


def steps_of(chapter: Chapter, row: int, answer: Answer, scene: Scene) -> tuple[Step, ...]:
    """The search as it came to one answer; nothing if the scene cannot put tokens into words."""
    if scene.tokens is None or not answer.tokens:
        return ()
    trails: list[tuple[int, ...]] = [()] * (len(chapter.steps[0].sentences) if chapter.steps else 0)
    steps = []
    labels, _ = spoken(scene, answer)
    for t, (way, token) in enumerate(zip(answer.rows, answer.tokens, strict=True)):
        moment = chapter.steps[t]
        likely = _likely(moment, way)
        probability = answer.log_probs[t] if t < len(answer.log_probs) else likely.get(token, -float("inf"))
        beams: tuple[Beam, ...] = ()
        if moment.lived is not None:
            lived = moment.lived
            trails = [(*trails[parent], said) for parent, said in zip(lived.rows, lived.tokens, strict=True)]
            beams = _beams(chapter, t, row, answer, lambda number, trails=trails: _spelled(scene, trails[number]))
        spelled = [Alternative(token=scene.tokens([one])[0], probability=_exp(log_p)) for one, log_p in likely.items()]
        steps.append(Step(token=labels[t], probability=_exp(probability), alternatives=tuple(spelled), beams=beams))
    return tuple(steps)


def _likely(moment: Moment, row: int) -> dict[int, float]:
    """The likeliest tokens of a row and their log-probabilities."""
    if moment.scored is None or row >= len(moment.scored.tokens):
        return {}
    return dict(zip(moment.scored.tokens[row], moment.scored.log_probs[row], strict=True))


def _beams(chapter: Chapter, t: int, row: int, answer: Answer, text: Callable[[int], str]) -> tuple[Beam, ...]:
    """The hypotheses of a row of the source that go on after step t; text: of one by its row."""
    lived = chapter.steps[t].lived
    assert lived is not None
    following = chapter.steps[t + 1].sentences if t + 1 < len(chapter.steps) else []
    own = [number for number, sentence in enumerate(following) if sentence == row]
    way = answer.rows[t + 1] if t + 1 < len(answer.rows) else None
    found = [
        Beam(text=text(number), score=lived.log_probs[number], chosen=number == way)
        for number in own
        if lived.log_probs[number] > -math.inf
    ]
    return tuple(sorted(found, key=lambda beam: -beam.score))


def _spelled(scene: Scene, tokens: Sequence[int]) -> str:
    if scene.text is not None:
        return scene.text(tokens)
    return " ".join(scene.tokens(tokens)) if scene.tokens else ""


def _exp(log_probability: float) -> float:
    return math.exp(min(0.0, log_probability))
