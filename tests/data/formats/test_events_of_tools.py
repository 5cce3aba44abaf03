"""Sounds with events in the formats of tools: all agree, and what is refused."""

import numpy as np
import pytest
import soundfile

from regard.data.config import EventsConfig
from regard.data.sound.events import SoundEvent, list_sounds, read_events
from regard.errors import UserError

EVENTS = [SoundEvent(0.25, 0.5, "wren"), SoundEvent(0.5, 0.25, "great tit")]
AUDACITY = "0.250000\t0.750000\twren\n\\\t2000.0\t4000.0\n0.500000\t0.750000\tgreat tit\n"
RAVEN = """\
Selection\tView\tChannel\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tHigh Freq (Hz)\tAnnotation
1\tWaveform 1\t1\t0.250000000\t0.750000000\t0\t4000\twren
1\tSpectrogram 1\t1\t0.250000000\t0.750000000\t0\t4000\twren
2\tSpectrogram 1\t1\t0.500000000\t0.750000000\t0\t4000\tgreat tit
2\tSpectrogram 1\t2\t0.500000000\t0.750000000\t0\t4000\tgreat tit
"""
SEVERAL = """\
Selection\tBegin Time (s)\tEnd Time (s)\tBegin File\tFile Offset (s)\tSpecies
1\t0.25\t0.75\ta.wav\t0.25\twren
2\t0.5\t0.75\ta.wav\t0.5\tgreat tit
3\t1.1\t1.3\tb.wav\t0.1\twren
"""


@pytest.fixture
def folder(tmp_path):
    for name in ("a.wav", "b.wav"):
        soundfile.write(tmp_path / name, np.zeros(8000, np.int16), 8000)
    return tmp_path


def read(path, content, **settings):
    if not path.is_dir():
        path.write_text(content, encoding="utf-8")
    return read_events(path, EventsConfig(**settings))


@pytest.mark.parametrize(
    ("name", "content", "settings"),
    [
        ("a.txt", AUDACITY, {"format": "audacity"}),
        ("a.Table.1.selections.txt", RAVEN, {"format": "raven"}),
        ("a.txt", RAVEN.replace("Annotation", "Call"), {"label_column": "Call"}),
    ],
)
@pytest.mark.parametrize("format", ["auto", ""])
def test_labels_of_a_sound_beside_it(folder, name, content, settings, format):
    settings = {"label_column": None} | settings | ({"format": format} if format else {})
    data = read(folder / name, content, **settings)
    ((sound, _, count, events),) = data.sounds
    assert (sound, count, events) == ("a.wav", 8000, EVENTS)
    del settings["label_column"]
    names = list_sounds(folder / name, EventsConfig(**settings))
    assert names == [str(folder / "a.wav")]


def test_selections_of_several_sounds_begin_in_their_files(folder):
    data = read(folder / "all.txt", SEVERAL, label_column="Species", unit="samples")
    assert [sound.name for sound in data.sounds] == ["a.wav", "b.wav"]
    assert data.sounds[0].events == EVENTS
    (event,) = data.sounds[1].events
    assert (event.onset, event.label) == (0.1, "wren")
    assert event.duration == pytest.approx(0.2)


@pytest.mark.parametrize(("format", "content"), [("audacity", AUDACITY), ("raven", RAVEN)])
def test_folders_of_labels_and_sounds(folder, format, content):
    (folder / "more").mkdir()
    (folder / "a.wav").rename(folder / "more" / "a.wav")
    (folder / "more" / "a.txt").write_text(content)
    data = read(folder, "", format=format)
    assert [(sound.name, sound.events) for sound in data.sounds] == [("more/a.wav", EVENTS)]
    assert "skipped 1 of the events; first" in data.notices[0]
    assert data.notices[0].endswith("b.wav: has no file of labels")
    (folder / "b.txt").write_text("" if format == "audacity" else content.partition("\n")[0])
    data = read(folder, "", format=format)
    assert {sound.name: sound.events for sound in data.sounds} == {
        "b.wav": [],
        "more/a.wav": EVENTS,
    }
    with pytest.raises(UserError, match=r"is a folder: give --data.format audacity or raven"):
        read(folder, "")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.txt", AUDACITY, r"c.txt: expected one sound 'c' beside it .*, got none"),
        (
            "a.txt",
            "0.1\t0.1\tclick\n",
            "line 1: expected an onset >= 0, a duration > 0 and a label",
        ),
        ("a.txt", "0.1\t0.2\t\n", "line 1: expected an onset"),
        ("a.txt", "0,1\t0,2\tclick\n", "a.txt: is neither of Audacity nor of Raven: give --data.f"),
        ("a.txt", "0.1\t0.2\tx\n0.3\t0.4\n", "line 2: expected start, end and label, got 2 cells"),
        ("a.txt", RAVEN.replace("Anno", "Deno"), r"'Annotation' \(--data.label-column\); the col"),
        ("a.txt", RAVEN.replace("End T", "T"), r"no column 'End Time \(s\)'; the columns are 'Sel"),
        (
            "a.txt",
            SEVERAL.replace("File Off", "Off").replace("Species", "Annotation"),
            "expected both",
        ),
        ("a.txt", RAVEN.replace("0.250000000", "x"), "line 2: expected a number, got 'x'"),
    ],
)
def test_what_does_not_fit_is_named(folder, name, content, message):
    with pytest.raises(UserError, match=message):
        read(folder / name, content)


def test_label_column_of_a_table(folder):
    table = "file,onset,duration,label,species\na.wav,0.25,0.5,x,wren\nb.wav,,,,\n"
    data = read(folder / "a.csv", table, label_column="species")
    assert [sound.events for sound in data.sounds] == [EVENTS[:1], []]
