"""Known voices: clips and folders of them, embeddings that are kept, and which speakers get which names."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import choral
from choral.diarization import Diarization, Speaker
from choral.errors import AudioError, AudioNotFound, NoSpeech, NotAudio, UsageError
from choral.remote.speech_samples import SpeechSample
from choral.speakers.naming import name_speakers
from choral.speakers.networks import SpeakerNetworks
from choral.speakers.voices import clips_of_folder
from conversations import RATE, Conversation, read_samples

NOISE = np.random.default_rng(0).normal(0, 0.01, 2 * RATE).astype(np.float32)


@pytest.fixture(scope="module")
def voices(
    networks: SpeakerNetworks, librivox: tuple[SpeechSample, ...], prompts: Callable[..., tuple[Path, ...]]
) -> dict[str, tuple[float, ...]]:
    """The reader, from a sentence that is not in the conversation, and somebody who is not in it."""
    return choral.read_voices({"Reader": librivox[2].path, "Prompter": list(prompts("es", 2))})


def test_a_known_voice_is_found_in_another_recording(
    found: Diarization, conversation: Conversation, voices: dict[str, tuple[float, ...]]
) -> None:
    named = name_speakers(found, voices)
    assert [speaker.name for speaker in named.speakers] == ["Reader", "Speaker 2"]
    expected = {"Speaker 1": "Reader", "Speaker 2": "Speaker 2"}
    assert [turn.speaker for turn in named.turns] == [expected[turn.speaker] for turn in found.turns]
    reader, president = (np.array(speaker.embedding) for speaker in found.speakers)
    assert reader @ voices["Reader"] > 0.6  # the sentence has 4 s
    assert president @ voices["Reader"] < 0.3
    assert max(reader @ voices["Prompter"], president @ voices["Prompter"]) < 0.3


def test_clips_and_kept_embeddings_name_speakers(
    conversation: Conversation, jfk: Path, voices: dict[str, tuple[float, ...]]
) -> None:
    clip = read_samples(jfk)[: 4 * RATE]
    named = choral.diarize(conversation.samples[: 17 * RATE], voices={"Kennedy": [clip], "Reader": voices["Reader"]})
    assert [speaker.name for speaker in named.speakers] == ["Reader", "Kennedy"]
    assert np.linalg.norm(choral.voice_embedding(clip)) == pytest.approx(1, abs=1e-4)


def test_each_name_is_given_once() -> None:
    one, two, three = np.eye(3, 256).tolist()
    similar = tuple((0.8 * np.array(one) + 0.6 * np.array(two)).tolist())
    speakers = (
        Speaker("Speaker 1", 1, similar),
        Speaker("Speaker 2", 1, tuple(one)),
        Speaker("Speaker 3", 1, tuple(three)),
    )
    found = Diarization((), speakers, 3.0)
    assert [each.name for each in name_speakers(found, {"Anna": one}).speakers] == ["Speaker 1", "Anna", "Speaker 3"]
    both = name_speakers(found, {"Ben": two, "Anna": 2 * np.array(one)})
    assert [each.name for each in both.speakers] == ["Ben", "Anna", "Speaker 3"]
    taken = name_speakers(found, {"Speaker 3": one, "Speaker 4": two})
    assert [each.name for each in taken.speakers] == ["Speaker 4", "Speaker 3", "Speaker 5"]
    ordered = name_speakers(found, None, ["Anna", "Ben"])
    assert [each.name for each in ordered.speakers] == ["Anna", "Ben", "Speaker 3"]
    assert name_speakers(Diarization((), (), 1.0), {"Anna": one}).speakers == ()
    assert name_speakers(found, {}) == found


def test_names_of_a_folder(tmp_path: Path) -> None:
    for name in (
        "Anna-1.wav",
        "Anna_2.flac",
        "Ben 3.mp3",
        "R2D2.wav",
        ".DS_Store",
        "Eva/b.wav",
        "Eva/a.wav",
        ".x/y.wav",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    clips = {name: [path.name for path in paths] for name, paths in clips_of_folder(tmp_path).items()}
    expected = {
        "Anna": ["Anna-1.wav", "Anna_2.flac"],
        "Ben": ["Ben 3.mp3"],
        "R2D2": ["R2D2.wav"],
        "Eva": ["a.wav", "b.wav"],
    }
    assert clips == expected


def test_wrong_clips_are_named(networks: SpeakerNetworks, jfk: Path, tmp_path: Path) -> None:
    with pytest.raises(AudioNotFound, match="is empty: it needs a clip"):
        choral.read_voices(tmp_path)
    with pytest.raises(AudioNotFound, match="is not a folder"):
        choral.read_voices(tmp_path / "nowhere")
    shutil.copy(jfk, tmp_path / "Kennedy.wav")
    (tmp_path / "Ben.wav").write_text("no audio")
    with pytest.raises(NotAudio, match=r"the voice of 'Ben', .*Ben\.wav: "):
        choral.read_voices(str(tmp_path))
    with pytest.raises(NoSpeech, match="the voice of 'Anna', clip 2: no speech was found") as caught:
        choral.read_voices({"Anna": [read_samples(jfk)[: 3 * RATE], NOISE]})
    assert isinstance(caught.value, AudioError)
    for wrong, complaint in (({"Anna": []}, "no clip of 'Anna'"), (3, "voices is a int")):
        with pytest.raises(UsageError, match=complaint):
            choral.read_voices(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"voices": {}, "diarize": False}, "voices has no effect without diarize"),
        ({"speaker_names": ("Anna",), "diarize": False}, "speaker_names has no effect without diarize"),
        ({"voices": {"Anna": (1.0,)}}, "an embedding of 256 numbers"),
        ({"voices": {"Anna": (0.0,) * 256}}, "an embedding of 256 numbers"),
        ({"voices": {"Anna": "anna.wav"}}, "it must be a list, each of them a number"),
        ({"voices": "folder"}, "it must be an object of lists of numbers or None"),
        ({"voices": {" ": (1.0,) * 256}}, "voices has the name ' '"),
        ({"voices": {}, "speaker_names": ("Anna",)}, "give one of them"),
        ({"speaker_names": ("Anna", "Anna")}, "a name twice"),
        ({"speaker_names": ("a" * 65,)}, "1 to 64 printable"),
        ({"speaker_names": ("A\nB",)}, "1 to 64 printable"),
        ({"voices": {str(number): (1.0,) * 256 for number in range(101)}}, "at most 100"),
    ],
)
def test_wrong_options(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        choral.TranscribeOptions.of(**{"diarize": True} | options)
