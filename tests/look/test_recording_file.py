"""Recordings on disk: contents, lazy loading, and no incomplete files."""

import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from regard.attention.masks import causal, padding
from regard.attention.memory import Memory
from regard.attention.scores import Dot
from regard.errors import UserError
from regard.layers.multihead import MultiHead
from regard.layers.read import Read
from regard.look.capture import Capture
from regard.look.hooks import record_weights
from regard.look.recording import Recording
from regard.look.tiles import Part
from tests.look.memory_of import Watch


class Two(nn.Module):
    """Two self-attention layers with different numbers of heads."""

    def __init__(self) -> None:
        super().__init__()
        self.first = MultiHead(6, num_heads=3, kernel="sdpa")
        self.second = MultiHead(6, num_heads=2, kernel="reference")

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        for part in (self.first, self.second):
            items = part(items, part.memory(items, padding([7, 4])), mask=causal())
        return items


def both(path: Path, calls: int = 3, **options: object) -> tuple[Recording, Recording]:
    """Record the same calls in memory and on disk."""
    model = Two().eval()
    with (
        record_weights(model, **options) as in_memory,
        record_weights(model, to=path, **options) as written,
    ):
        for _ in range(calls):
            model(torch.randn(2, 7, 6))
    return in_memory, written


def fail(*_: object) -> None:
    raise ArithmeticError("after both reads")


def assert_same(recording: Recording, other: Recording) -> None:
    assert recording.names == other.names
    assert (recording.part, recording.dtype) == (other.part, other.dtype)
    for name in recording:
        assert recording.calls(name) == other.calls(name)
        assert len(recording[name]) == len(other[name])
        for ours, theirs in zip(recording[name], other[name], strict=True):
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    both(tmp_path / "maps")
    return tmp_path / "maps"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tile_bytes": 1},
        {"tile_bytes": 600, "rows": [1, 0], "heads": [1], "queries": [6, 0, 1, 2], "steps": [0, 2]},
        {"tile_bytes": 300, "dtype": torch.float16},
        {"dtype": torch.float64},
    ],
    ids=["whole", "tiles", "part", "half", "double"],
)
def test_opened_recording_is_the_recorded_one(tmp_path, options):
    in_memory, written = both(tmp_path / "maps", **options)
    assert_same(in_memory, written)
    assert_same(in_memory, Recording.open(tmp_path / "maps"))
    assert_same(in_memory, Recording.open(str(tmp_path / "maps")))


def test_saving_equals_recording_to_disk(tmp_path):
    in_memory, written = both(tmp_path / "maps", heads=[1], dtype=torch.float16)
    in_memory.save(tmp_path / "saved")
    written.save(tmp_path / "copied")
    assert_same(in_memory, Recording.open(tmp_path / "saved"))
    assert_same(in_memory, Recording.open(tmp_path / "copied"))
    names = [
        sorted(file.name for file in (tmp_path / name).iterdir())
        for name in ("maps", "saved", "copied")
    ]
    assert names[0] == names[1] == names[2]


def test_half_precision_rounds_to_the_nearest(tmp_path):
    model, items = Two().eval(), torch.randn(2, 7, 6)
    with (
        record_weights(model) as exact,
        record_weights(model, to=tmp_path / "maps", dtype=torch.float16) as half,
    ):
        model(items)
    for name in exact:
        assert torch.equal(exact[name][0].half(), half[name][0])
    sizes = [file.stat().st_size for file in (tmp_path / "maps").glob("*.safetensors")]
    assert sum(sizes) < 2 * (2 * 3 * 49 + 2 * 2 * 49) + 2 * 800


def test_calls_are_a_sequence(written):
    calls = Recording.open(written)["second.read"]
    assert torch.equal(calls[-1], calls[2])
    assert [call.shape for call in calls[1:]] == [(2, 2, 7, 7)] * 2
    assert len(list(calls)) == 3
    with pytest.raises(IndexError):
        calls[3]


def test_steps_are_put_together_from_the_disk(tmp_path):
    model = Read(Dot())
    items = torch.randn(1, 5, 3)
    with record_weights(model) as in_memory, record_weights(model, to=tmp_path / "maps"):
        for size in (2, 3, 5):
            model(items[:, :1], Memory(items[:, :size], items[:, :size]))
    opened = Recording.open(tmp_path / "maps")
    assert torch.equal(opened.steps(""), in_memory.steps(""))
    assert opened.steps("").shape == (1, 3, 5)


def test_files_are_those_of_safetensors(written):
    recording = Recording.open(written)
    files = sorted(written.glob("*.safetensors"))
    assert len(files) == 6
    for file, weights in zip(
        files, [*recording["first.read"], *recording["second.read"]], strict=True
    ):
        with safe_open(file, "pt") as opened:
            assert list(opened.keys()) == ["weights"]
            assert torch.equal(opened.get_tensor("weights"), weights)
            assert torch.equal(opened.get_slice("weights")[1, :, 2:4], weights[1, :, 2:4])
            assert json.loads(opened.metadata()["kernel"]) in ("sdpa", "reference")


def test_a_tensor_may_be_written_to_without_changing_the_file(written):
    before = Recording.open(written)["first.read"][0]
    expected = before.clone()
    before.zero_()
    assert torch.equal(Recording.open(written)["first.read"][0], expected)


def test_accessing_a_part_loads_only_that_part(tmp_path):
    model = Read(Dot())
    items = torch.randn(1, 3000, 2)
    with record_weights(model, to=tmp_path / "maps", dtype=torch.float16):
        model(items, Memory(items, items))
    program = f"""
        import torch
        from regard.look.recording import Recording
        def resident():
            return int(open("/proc/self/smaps_rollup").read().split("Rss:")[1].split()[0]) * 1024
        recording = Recording.open({str(tmp_path / "maps")!r})
        before = resident()
        weights = recording[""][0]
        row = weights[0, 1234].sum()
        print(weights.nbytes, resident() - before, float(row))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    )
    size, loaded, total = map(float, done.stdout.split())
    assert size == 3000 * 3000 * 2
    assert loaded < size / 4
    assert total == pytest.approx(1, abs=0.01)


def test_recording_to_disk_needs_a_few_tiles_of_memory(tmp_path):
    heads = 4
    read, tile_bytes = Read(Dot(), kernel="sdpa"), 1 << 20
    items = torch.randn(1, heads, 2048, 8)
    whole = heads * 2048 * 2048 * 2
    with torch.no_grad(), Watch() as without:
        read(items, Memory(items, items), mask=causal())
    recording = record_weights(
        read, to=tmp_path / "maps", dtype=torch.float16, tile_bytes=tile_bytes
    )
    with torch.no_grad(), recording, Watch() as during:
        read(items, Memory(items, items), mask=causal())
    assert Recording.open(tmp_path / "maps")[""][0].nbytes == whole
    assert during.largest <= max(tile_bytes, without.largest)
    assert during.peak - without.peak < 5 * tile_bytes < whole / 6


def test_folder_appears_at_the_end(tmp_path):
    model = Two().eval()
    with record_weights(model, to=tmp_path / "maps") as maps:
        model(torch.randn(2, 7, 6))
        assert not (tmp_path / "maps").exists()
        assert maps["first.read"][0].shape == (2, 3, 7, 7)
    assert [file.name for file in tmp_path.iterdir()] == ["maps"]


def test_nothing_is_left_when_the_run_fails(tmp_path):
    model = Two().eval()
    model.second.output.register_forward_hook(fail)
    with (
        pytest.raises(ArithmeticError, match="after both reads"),
        record_weights(model, to=tmp_path / "maps"),
    ):
        model(torch.randn(2, 7, 6))
    assert list(tmp_path.iterdir()) == []


def test_a_call_that_cannot_be_recorded_leaves_the_others_whole(tmp_path):
    model = Two().eval()
    with record_weights(model, to=tmp_path / "maps", rows=[1]):
        model(torch.randn(2, 7, 6))
        with pytest.raises(ValueError, match="rows must be between 0 and 0"):
            model.second(torch.randn(1, 5, 6), model.second.memory(torch.randn(1, 5, 6)))
    opened = Recording.open(tmp_path / "maps")
    assert [len(opened[name]) for name in opened] == [1, 1]
    assert opened["second.read"][0].shape == (1, 2, 7, 7)


def test_a_disk_that_fails_half_way_leaves_no_call_behind(tmp_path, monkeypatch):
    model = Two().eval()
    with record_weights(model, to=tmp_path / "maps", tile_bytes=300):
        model(torch.randn(2, 7, 6))
        calls = iter(range(100))

        def failing(weights: torch.Tensor, dtype: torch.dtype) -> np.ndarray:
            if next(calls) == 2:
                raise OSError("no space left")
            return weights.numpy()

        with monkeypatch.context() as patch:
            patch.setattr("regard.look.recording_file.numbers_of", failing)
            with pytest.raises(OSError, match="no space left"):
                model(torch.randn(2, 7, 6))
        model(torch.randn(2, 7, 6))
    opened = Recording.open(tmp_path / "maps")
    assert [call.number for call in opened.calls("first.read")] == [0, 2]
    assert len(list((tmp_path / "maps").glob("*.safetensors"))) == 4


def test_a_killed_process_leaves_no_valid_recording(tmp_path):
    program = f"""
        import os, signal, torch
        from regard.attention.scores import Dot
        from regard.layers.read import Read
        from regard.look.hooks import record_weights
        read = Read(Dot())
        with record_weights(read, to={str(tmp_path / "maps")!r}):
            read(torch.ones(1, 2, 3), (torch.ones(1, 2, 3), torch.ones(1, 2, 3)))
            os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "maps").exists()
    (left,) = tmp_path.iterdir()
    assert len(list(left.glob("*.safetensors"))) == 1
    with pytest.raises(
        UserError, match=r"is not a recording, or is incomplete: it has no index\.json"
    ):
        Recording.open(left)


def test_a_recording_is_not_overwritten(written):
    before = sorted(file.stat().st_mtime_ns for file in written.iterdir())
    for path in (written, written / "index.json"):
        with (
            pytest.raises(ValueError, match=r"to must be a new folder, but .* exists"),
            record_weights(Two(), to=path),
        ):
            pass
        with pytest.raises(ValueError, match="to must be a new folder"):
            Recording.open(written).save(path)
    assert sorted(file.stat().st_mtime_ns for file in written.iterdir()) == before


def test_two_recordings_to_one_folder_are_refused(tmp_path):
    first, second = (record_weights(Two(), to=tmp_path / "maps") for _ in range(2))
    with first, pytest.raises(ValueError, match="another recording is being written"), second:
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["maps"]


def test_a_missing_parent_folder_is_refused(tmp_path):
    with (
        pytest.raises(ValueError, match="to must be in an existing folder"),
        record_weights(Two(), to=tmp_path / "a" / "b"),
    ):
        pass


def test_a_recording_in_which_nothing_ran_says_so_when_it_is_opened(tmp_path):
    with record_weights(Two(), to=tmp_path / "maps"):
        pass
    with pytest.raises(ValueError, match="nothing was recorded"):
        Recording.open(tmp_path / "maps").names  # noqa: B018  # reading the attribute is the test


def test_the_part_is_stored(tmp_path):
    both(tmp_path / "maps", rows=[1], queries=range(3))
    assert Recording.open(tmp_path / "maps").part == Part(rows=[1], queries=[0, 1, 2])


def changed(folder: Path, **fields: object) -> None:
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(index | fields))


def truncate(folder: Path) -> None:
    file = folder / "0001-00000002.safetensors"
    file.write_bytes(file.read_bytes()[:-3])


def swap(folder: Path) -> None:
    file = folder / "0001-00000002.safetensors"
    text = file.read_bytes().replace(b'"shape": [2, 2, 7, 7]', b'"shape": [2, 2, 49, 1')
    file.write_bytes(text.replace(b"49, 1", b"49,1]"))


def blank(folder: Path) -> None:
    file = folder / "0000-00000001.safetensors"
    file.write_bytes(file.read_bytes()[:8] + b"?" * (file.stat().st_size - 8))


def call(**change: object) -> Callable[[Path], None]:
    """Return a function that changes the last call of the first read in the index."""

    def harm(folder: Path) -> None:
        reads = json.loads((folder / "index.json").read_text())["reads"]
        reads[0]["calls"][-1] |= change
        changed(folder, reads=reads)

    return harm


def cut(folder: Path) -> None:
    """Remove a call from the index, but not its shape."""
    reads = json.loads((folder / "index.json").read_text())["reads"]
    del reads[0]["calls"][0]
    changed(folder, reads=reads)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            truncate,
            r"0001-00000002.safetensors is damaged: it must have 784 bytes of weights, got 781",
        ),
        (
            swap,
            r"0001-00000002.safetensors does not belong to this recording: its header must be "
            r".*\[2, 2, 7, 7\]",
        ),
        (blank, r"0000-00000001.safetensors: damaged: not valid JSON"),
        (
            lambda folder: (folder / "0000-00000001.safetensors").write_bytes(b""),
            r"is damaged: it must have",
        ),
        (
            lambda folder: (folder / "0000-00000001.safetensors").unlink(),
            r"0000-00000001.safetensors is missing",
        ),
        (cut, r"the read 'first.*' must have one shape per call, .* got 2 calls and 3 shapes"),
        (call(number=0), r"in ascending order of calls, got 3 calls and 3 shapes"),
        (call(number=9), r"ran 3 times, but has calls 0 to 9"),
        (call(number="2"), r"calls\[2\].number must be an integer, got 2"),
        (
            call(sizes=[2, 3, 7]),
            r"weights of shape \[2, 3, 7\] must be recorded as \[2, 3, 7\], got \(2, 3, 7, 7\)",
        ),
        (call(sizes=[2, 3, 7, 10**30]), r"invalid sizes of weights"),
        (call(sizes=[7]), r"invalid sizes of weights: \[7\]"),
        (lambda folder: changed(folder, queries=[0, 99]), r"queries must be between 0 and 6"),
        (
            lambda folder: (folder / "index.json").write_text("[" * 100_000),
            r"index.json: damaged: JSON is nested too",
        ),
        (lambda folder: (folder / "index.json").unlink(), r"is not a recording, or is incomplete"),
        (
            lambda folder: (folder / "index.json").write_text("{"),
            "index.json: damaged: not valid JSON",
        ),
        (
            lambda folder: (folder / "index.json").write_text("[]"),
            r"is not a recording: the format in .*index.json must be",
        ),
        (lambda folder: changed(folder, format="other"), r"is not a recording"),
        (
            lambda folder: changed(folder, version=1),
            r"version of the recording format must be 3, got 1: record",
        ),
        (
            lambda folder: changed(folder, dtype="I8"),
            r"index.json is damaged: index.dtype must be one of F16, F32, F64, got 'I8'",
        ),
        (
            lambda folder: changed(folder, rows="all"),
            r"index.json is damaged: index.rows must be a list",
        ),
        (
            lambda folder: changed(folder, reads=[{"name": "a"}]),
            r"is damaged: index.reads\[0\] must have the field 'calls'",
        ),
        (
            lambda folder: changed(
                folder,
                reads=[
                    {"name": "a", "role": None, "num_calls": 1, "calls": [], "shapes": [[1, 2]]}
                ],
            ),
            r"index.json is damaged: the read 'a' must have one shape per call, .* got 0 calls and "
            r"1 shapes",
        ),
    ],
)
def test_damage_is_named(no_shape_checks, written, harm, message):
    harm(written)
    with pytest.raises(UserError, match=message):
        Recording.open(written)


def test_calls_of_several_batch_sizes_are_shown_where_they_are(tmp_path):
    model = Two().eval()
    with record_weights(model, to=tmp_path / "maps"):
        for size in (1, 3, 2):
            items = torch.randn(size, 7, 6)
            model.first(items, model.first.memory(items), mask=causal())
    samples = Capture.open(tmp_path / "maps").samples
    assert len(samples) == 3
    assert [
        sum(attention_map.name.startswith("first") for attention_map in sample_maps.maps)
        for sample_maps in samples
    ] == [3, 2, 1]
    assert all(
        attention_map.weights.isfinite().all()
        for sample_maps in samples
        for attention_map in sample_maps.maps
    )


def test_a_path_that_is_not_a_folder_is_named(tmp_path, written):
    with pytest.raises(UserError, match=r"is not a recording: it does not exist"):
        Recording.open(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"is not a recording: it is not a folder"):
        Recording.open(written / "index.json")
