"""A capture: what a model read while it answered, with labels; to look into, to save, to draw.

    with record(run) as capture:
        run.predict(["3 maart 2019"])
    capture[0].scene.title                         "3 maart 2019 -> 2019-03-03"
    capture[0].find("cross", layer=2)[0].weights   (head, token said, source token)
    capture.save("look.html")                      the viewer, one file; .safetensors: the numbers, to open later
    capture.plot("look.pdf")                       for a paper; .png, .svg

What was recorded, call by call, is `capture.recording`; a capture that was opened from a file has none.
"""

import html
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from regard.errors import UserError
from regard.look.capture_file import open_capture, save_capture
from regard.look.files import check_path
from regard.look.gradients import Taken, products
from regard.look.map import GRADIENT, Map, Seen
from regard.look.recording import Recording
from regard.look.resolve import resolve
from regard.look.story import Story

_NOTEBOOK_HEIGHT = 640


class Capture(Sequence[Seen]):
    """Scenes, one for each input and answer, with the maps of all that was read. `record` makes one."""

    def __init__(
        self, scenes: Callable[[], Sequence[Seen]], *, title: str, model: str, recording: Recording | None = None
    ):
        self._make: Callable[[], Sequence[Seen]] = scenes
        self._scenes: tuple[Seen, ...] | None = None
        self._counts: dict[str, int] = {}
        self.title, self.model = title, model
        self._recording = recording
        self._story: Story | None = None
        self._taken: list[Taken] | None = None

    @classmethod
    def of(
        cls, recording: Recording, story: Story, *, title: str, model: str, taken: list[Taken] | None = None
    ) -> Self:
        """What was recorded and told so far, put together when it is looked at."""
        capture = cls(lambda: resolve(recording, story), title=title, model=model, recording=recording)
        capture._story, capture._taken = story, taken
        return capture

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """What `save` wrote to a .safetensors file, or a folder that `record(to=...)` wrote; the model is not needed.

        Raises: UserError if it is not there, not whole, damaged, of another version, or holds no reads.
        """
        path = Path(path)
        if path.is_dir():
            recording = Recording.open(path)
            try:
                _ = recording.names
            except ValueError as error:
                raise UserError(f"{path} holds no reads: {error}") from error
            story = Story(recording.counts)
            return cls.of(recording, story, title=path.name, model="")
        title, model, scenes = open_capture(path)
        return cls(lambda: scenes, title=title, model=model)

    @property
    def recording(self) -> Recording:
        """The weights call by call, as they were recorded. Raises ValueError for a capture from a file."""
        if self._recording is None:
            raise ValueError("a capture that was opened from a file has scenes and maps, but not the calls themselves")
        return self._recording

    @property
    def scenes(self) -> tuple[Seen, ...]:
        """All scenes so far. Raises ValueError if nothing was recorded: the model has not run."""
        counts = {} if self._recording is None else self._recording.counts()
        if self._scenes is None or counts != self._counts:
            self._scenes, self._counts = tuple(self._make()), counts
        return self._scenes

    def __len__(self) -> int:
        return len(self.scenes)

    def __iter__(self) -> Iterator[Seen]:
        return iter(self.scenes)

    def __getitem__(self, index: Any) -> Any:
        return self.scenes[index]

    def __repr__(self) -> str:
        if self._is_empty():
            return f"Capture({self.title}: nothing has run)"
        maps = sum(len(seen.maps) for seen in self.scenes)
        return f"Capture({self.title}: {len(self.scenes)} scenes, {maps} maps)"

    def differentiate(self, number: Tensor) -> None:
        """Add to each scene maps of measure "weight x gradient": how much each weight mattered to `number`.

            with record(model, gradients=True) as capture:
                capture.differentiate(model(batch)[0, best])

        See regard.look.gradients. Raises: ValueError if `number` is not one number computed in this recording, or that
        was made without gradients=True.
        """
        if self._taken is None or self._recording is None or self._story is None:
            raise ValueError("this capture has no graph to differentiate: record with gradients=True")
        changed = resolve(products(self._recording, self._taken, number), self._story)
        self.add(
            [[replace(one, measure=GRADIENT, key=f"{GRADIENT}/{one.key}") for one in seen.maps] for seen in changed]
        )

    def add(self, maps: Sequence[Sequence[Map]]) -> None:
        """Add maps to each scene, which has their axes."""
        pairs = zip(self.scenes, maps, strict=True)
        self._scenes = tuple(Seen(scene=seen.scene, maps=(*seen.maps, *more)) for seen, more in pairs)

    def save(
        self,
        path: str | Path,
        *,
        beside: "Capture | None" = None,
        dtype: torch.dtype = torch.float16,
        overwrite: bool = False,
    ) -> Path:
        """Write the viewer (.html), the numbers to open later (.safetensors), or a picture (.png, .svg, .pdf).

        beside: another capture, for the viewer to show side by side with this one.
        dtype:  of the numbers in a .safetensors file; float16 rounds by at most 2^-11 of each.
        Raises: UserError for another ending, a folder that is not there, or a file that is (unless overwrite);
                ValueError if nothing was recorded.
        """
        path = Path(path)
        check_path(path, overwrite, (".html", ".safetensors"))
        match path.suffix.lower():
            case ".html":
                importlib.import_module("regard.look.page").write(path, [self] if beside is None else [self, beside])
            case ".safetensors":
                save_capture(path, self.title, self.model, self.scenes, dtype=dtype)
            case _:
                self.plot(path, overwrite=overwrite)
        return path

    def plot(self, path: str | Path, **options: Any) -> Path:
        """Draw one scene for a paper: see regard.look.figures.draw for the options."""
        return importlib.import_module("regard.look.figures").draw(self, Path(path), **options)

    def _repr_html_(self) -> str:
        """The viewer in a frame of its own, for notebooks."""
        if self._is_empty():
            return f"<p>{html.escape(repr(self))}</p>"
        page = importlib.import_module("regard.look.page").text([self])
        source = html.escape(page, quote=True)
        style = f"width: 100%; height: {_NOTEBOOK_HEIGHT}px; border: 0"
        return f'<iframe srcdoc="{source}" sandbox="allow-scripts" style="{style}" title="regard"></iframe>'

    def _is_empty(self) -> bool:
        """Whether it listened to a model that did not run."""
        return self._recording is not None and not any(self._recording.counts().values())
