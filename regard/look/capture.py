"""Captures: the attention maps of a model's predictions, with labels; to inspect, save and plot."""

import html
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from regard.look.capture_file import open_capture, save_capture
from regard.look.maps import GRADIENT, AttentionMap, SampleMaps
from regard.look.measures import GradientCall, multiply_by_gradients
from regard.look.output import Figure, check_path, is_own, load_figures, mark_own
from regard.look.page import page
from regard.look.recording import Recording
from regard.look.resolve import resolve
from regard.look.sample import Axis
from regard.system.terminal import format_count
from regard.system.writing import write_atomically
from regard.trace import Trace


class Capture(Sequence[SampleMaps]):
    """Sequence of samples with attention maps, one per input and output, created by `record`."""

    def __init__(
        self,
        samples: Callable[[], Sequence[SampleMaps]],
        *,
        title: str,
        model: str,
        recording: Recording | None = None,
        trace: Trace | None = None,
        graph_calls: list[GradientCall] | None = None,
    ):
        """samples: called at the first access, and again after more calls were recorded."""
        self._make_samples: Callable[[], Sequence[SampleMaps]] = samples
        self._samples: tuple[SampleMaps, ...] | None = None
        self._count = 0
        self.title, self.model = title, model
        self.trace = Trace() if trace is None else trace
        """Trace of the recording, for a search of a bare module."""
        self._recording, self._graph_calls = recording, graph_calls

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a .safetensors file written by `save`; needs no model.

        Raises: UserError if it does not exist, is damaged or not a capture.
        """
        title, model, samples = open_capture(Path(path))
        return cls(lambda: samples, title=title, model=model)

    @property
    def recording(self) -> Recording:
        """Recorded weights, call by call; a capture that was opened from a file has none."""
        if self._recording is None:
            raise ValueError("a capture that was opened from a file has maps, but no recording")
        return self._recording

    @property
    def samples(self) -> tuple[SampleMaps, ...]:
        """All samples so far. Raises ValueError if the model has not run while recording."""
        count = 0 if self._recording is None else len(self._recording)
        if self._samples is None or count != self._count:
            self._samples, self._count = tuple(self._make_samples()), count
        return self._samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: Any) -> Any:
        return self.samples[index]

    def __repr__(self) -> str:
        if self._is_empty():
            return f"Capture({self.title}: nothing has run)"
        maps = sum(len(sample_maps.maps) for sample_maps in self.samples)
        samples = format_count(len(self.samples), "sample")
        return f"Capture({self.title}: {samples}, {format_count(maps, 'map')})"

    def differentiate(self, number: Tensor) -> None:
        """Add maps of measure "weight x gradient" to each sample: the influence of each weight on
        `number`, a scalar that was computed in this recording with gradients=True.

            with record(model, gradients=True) as capture:
                capture.differentiate(model(batch)[0, best])
        """
        if self._graph_calls is None:
            raise ValueError("gradients must be recorded: use record(..., gradients=True)")
        products = multiply_by_gradients(self.recording, self._graph_calls, number)
        added = []
        for sample_maps in resolve(products, self.trace):
            maps = sample_maps.maps
            added.append([replace(o, measure=GRADIENT, key=f"{GRADIENT}/{o.key}") for o in maps])
        self.add(added)

    def add(
        self, maps: Sequence[Sequence[AttentionMap]], axes: Sequence[Mapping[str, Axis]] = ()
    ) -> None:
        """Add maps to each sample, and those of their axes that it does not have."""
        samples = []
        new_axes = axes or [{}] * len(maps)
        for own, own_maps, own_axes in zip(self.samples, maps, new_axes, strict=True):
            sample = replace(own.sample, axes=own.sample.axes | dict(own_axes))
            samples.append(SampleMaps(sample=sample, maps=(*own.maps, *own_maps)))
        self._samples = tuple(samples)

    def save(
        self,
        path: str | Path,
        *,
        compare: "Capture | None" = None,
        dtype: torch.dtype | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Write the viewer (.html), weights to open later (.safetensors), or a figure (.png, ...).

        compare: another capture, which the viewer shows side by side with this one.
        dtype:  dtype of the weights in a .safetensors file; None: float16, with a relative rounding
                error of at most 2^-11, or float32 if vectors were recorded.
        A notebook replaces the files that it wrote since its kernel was started, so that a cell can
        be run again; for "Restart and run all", give overwrite=True.
        Raises: UserError for another suffix, a folder that does not exist, or an existing file
                (unless overwrite); ValueError if nothing was recorded.
        """
        path = Path(path)
        overwrite = overwrite or is_own(path)
        check_path(path, overwrite, (".html", ".safetensors"))
        match path.suffix.lower():
            case ".html":
                captures = [self] if compare is None else [self, compare]
                shown = [(one.title, one.model, one.samples) for one in captures]
                write_atomically(path, page.text(shown))
            case ".safetensors":
                save_capture(path, self.title, self.model, self.samples, dtype=dtype)
            case _:
                self.plot(path, overwrite=overwrite)
        mark_own(path)
        return path

    def plot(
        self,
        path: str | Path | None = None,
        *,
        sample: int = 0,
        view: str | None = None,
        kind: str | None = None,
        layer: int | None = None,
        head: int | None = None,
        query: int | None = None,
        width: float | None = None,
        overwrite: bool = False,
    ) -> "Path | Figure":
        """Plot one sample to .png, .svg or .pdf and return the path, or without a path the figure.

        sample: index of the sample.
        view:   alignment, chain, heat, boxes, events, tracks, links, walk, multihead or
                contributions; by default the one that fits.
        kind:   kind of attention, such as cross; by default the one nearest to the output.
        layer:  layer whose heads are plotted, from 1; by default the last.
        head:   head of the views alignment (by default all), links (by default the mean) and walk
                (by default the first), and score of contributions (by default the best), from 1.
        query:  query of the view walk, from 1; by default all.
        width:  largest width of the view alignment in centimeters, whose panels are in rows; by
                default 18, and more if one matrix needs it.
        Existing files are replaced as by `save`. Raises: UserError as `save`.
        """
        drawing = load_figures("draw")
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "figure.svg" if path is None else Path(path)
            request = drawing.FigureRequest(
                self.samples, sample, view, kind, layer, head, query, width
            )
            drawing.draw(request, out, overwrite=overwrite or is_own(out))
            if path is None:
                return Figure(out.read_text(encoding="utf-8"))
        mark_own(out)
        return out

    def _repr_html_(self) -> str:
        if self._is_empty():
            return f"<p>{html.escape(repr(self))}</p>"
        text = page.text([(self.title, self.model, self.samples)])
        style = "width: 100%; height: 640px; border: 0"
        rights = 'sandbox="allow-scripts allow-downloads" allow="fullscreen"'
        source = html.escape(text, quote=True)
        return f'<iframe srcdoc="{source}" {rights} style="{style}" title="regard"></iframe>'

    def _is_empty(self) -> bool:
        return self._recording is not None and not len(self._recording)
