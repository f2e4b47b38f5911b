"""Word error rates: the edit distance, the layouts of folders, and the command with a real model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from choral.bench.clips import Samples, write_flac
from choral.bench.corpus import LabelledClip, read_corpus
from choral.bench.peers import Recognized
from choral.bench.wer import Score, edit_distance, measure, normaliser, score
from choral.errors import AudioNotFound, UsageError

WORDS = st.lists(st.sampled_from("abcd"), max_size=8)


def slow_distance(one: list[str], other: list[str]) -> int:
    if not one or not other:
        return len(one) + len(other)
    if one[0] == other[0]:
        return slow_distance(one[1:], other[1:])
    return 1 + min(slow_distance(one[1:], other), slow_distance(one, other[1:]), slow_distance(one[1:], other[1:]))


@given(reference=st.lists(st.sampled_from("abc"), max_size=5), hypothesis=st.lists(st.sampled_from("abc"), max_size=5))
def test_distance_equals_the_definition(reference: list[str], hypothesis: list[str]) -> None:
    assert edit_distance(reference, hypothesis) == slow_distance(reference, hypothesis)


@given(reference=WORDS, hypothesis=WORDS)
def test_distance_is_symmetric_and_bounded(reference: list[str], hypothesis: list[str]) -> None:
    distance = edit_distance(reference, hypothesis)
    assert distance == edit_distance(hypothesis, reference)
    assert abs(len(reference) - len(hypothesis)) <= distance <= max(len(reference), len(hypothesis))


@pytest.mark.parametrize(
    ("language", "reference", "hypothesis", "expected"),
    [
        ("en", "MISTER BROWN PAID TWENTY DOLLARS", "Mr. Brown paid $20.", Score(4, 0)),
        ("en", "the colour of it", "The color, of... it!", Score(4, 0)),
        ("en", "one two three", "one three", None),
        ("de", "Grüße, Jürgen!", "grüße Jürgen", Score(2, 0)),
        ("ja", "東京に行く", "東京へ行く", Score(5, 1)),
        ("en", "", "thank you", Score(0, 2)),
    ],
)
def test_texts_are_normalised_as_openai_does(
    language: str, reference: str, hypothesis: str, expected: Score | None
) -> None:
    found = score(reference, hypothesis, normaliser(language))
    assert found == expected or (expected is None and found.n_errors > 0)


class FixedPeer:
    """Returns these texts in turn."""

    def __init__(self, *texts: str) -> None:
        self._texts = list(texts)

    def transcribe(self, samples: Samples, language: str | None) -> Recognized:
        return Recognized(self._texts.pop(0), "en")


def test_the_total_is_over_words_and_the_first_peer_decides_the_language(tmp_path: Path) -> None:
    write_flac(tmp_path / "a", np.zeros(1600, np.int16))
    path = tmp_path / "a"
    clips = [LabelledClip("a", path, "one two three four", None), LabelledClip("b", path, "five", "en")]
    seen: list[str] = []
    report = measure(
        "m",
        clips,
        {"it": FixedPeer("one two three", "six")},
        notes=["a note"],
        on_clip=lambda clip, scores: seen.append(f"{clip.name} {scores['it'].n_errors}"),
    )
    total = report.total("it")
    assert (total.n_errors, seen) == (2, ["a 1", "b 1"])
    fields = json.loads(report.json_line())
    assert fields["systems"]["it"]["errors"] == 2
    assert fields["systems"]["it"]["wer_percent"] == pytest.approx(100 * 2 / total.n_words, abs=0.001)
    assert (fields["clips"], fields["model"], fields["notes"]) == (2, "m", ["a note"])


def test_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x/a.wav").touch()
    lines = ['{"file": "x/a.wav", "text": "Hi", "language": "de", "more": 1}', "", '{"file": "x/a.wav", "text": "Ho"}']
    (tmp_path / "manifest.jsonl").write_text("\n".join(lines))
    assert read_corpus(tmp_path) == (
        LabelledClip("x/a.wav", tmp_path / "x/a.wav", "Hi", "de"),
        LabelledClip("x/a.wav", tmp_path / "x/a.wav", "Ho", None),
    )


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        ("{", UsageError, "manifest.jsonl line 1 is not JSON"),
        ('{"file": "a.wav"}', UsageError, 'line 1 must be an object with "file" and "text"'),
        ("[]", UsageError, "must be an object"),
        ('{"file": "no.wav", "text": ""}', AudioNotFound, "line 1 names no.wav, which does not exist"),
        ("", AudioNotFound, "has no transcripts"),
    ],
)
def test_a_bad_manifest_names_the_line(tmp_path: Path, line: str, error: type[Exception], message: str) -> None:
    (tmp_path / "manifest.jsonl").write_text(line)
    with pytest.raises(error, match=message):
        read_corpus(tmp_path)


def test_librispeech_and_text_files(tmp_path: Path) -> None:
    for name in ("7/1-2-0000.flac", "7/1-2-0001.flac", "b[1].mp3", "lonely.mp3"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "7/1-2.trans.txt").write_text("1-2-0000 HELLO THERE\n1-2-0001 WORLD\n")
    (tmp_path / "b[1].txt").write_text("Hi\n")
    (tmp_path / "notes.txt").write_text("no audio of this name")
    clips = read_corpus(tmp_path)
    assert [(clip.name, clip.text.strip(), clip.language) for clip in clips] == [
        ("7/1-2-0000.flac", "HELLO THERE", "en"),
        ("7/1-2-0001.flac", "WORLD", "en"),
        ("b[1].mp3", "Hi", None),
    ]


def test_the_command_with_peers(tmp_path: Path, speech_clips: list[Path], tiny_en_pt: Path) -> None:
    """Choral and openai-whisper produce the same text, so they make the same errors."""
    for index, path in enumerate(speech_clips[:2]):
        shutil.copy(path, tmp_path / f"{index}.wav")
        (tmp_path / f"{index}.txt").write_text("surely not what is said")
    command = [sys.executable, "-m", "choral.cli.main", "bench", "wer", str(tmp_path), "--model", str(tiny_en_pt)]
    done = subprocess.run(
        [*command, "--language", "en"], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    fields = json.loads(done.stdout.splitlines()[-1])
    assert set(fields["systems"]) == {"choral", "openai-whisper", "faster-whisper"}
    assert fields["systems"]["choral"]["errors"] == fields["systems"]["openai-whisper"]["errors"] > 0
    assert fields["machine"]["versions"].keys() > {"choral", "torch", "openai-whisper"}
    assert fields["notes"] == []
    assert [line.split()[0] for line in done.stdout.splitlines() if line[:1].isdecimal()] == ["0.wav", "1.wav"]
    assert done.stderr.splitlines()[-1].startswith("[2/2] 1.wav: choral ")
