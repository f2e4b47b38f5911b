"""Word error rates: the edit distance, the layouts of folders, and the command with a real model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import choral
from choral.bench.clips import AudioClip
from choral.bench.json_process import ProcessFailed
from choral.bench.labelled_clips import LabelledClip, read_corpus
from choral.bench.speech_sets import SetClip, set_clips
from choral.bench.wer import Score, compare_words, normaliser, score
from choral.bench.wer_report import ClipOutcome, PeerSystems, WerRow, WerRun, choral_systems
from choral.errors import AudioNotFound, UsageError

WORDS = st.lists(st.sampled_from("abcd"), max_size=8)


def slow_distance(one: list[str], other: list[str]) -> int:
    if not one or not other:
        return len(one) + len(other)
    if one[0] == other[0]:
        return slow_distance(one[1:], other[1:])
    return 1 + min(slow_distance(one[1:], other), slow_distance(one, other[1:]), slow_distance(one[1:], other[1:]))


@given(reference=st.lists(st.sampled_from("abc"), max_size=5), hypothesis=st.lists(st.sampled_from("abc"), max_size=5))
def test_errors_equal_the_definition(reference: list[str], hypothesis: list[str]) -> None:
    assert compare_words(reference, hypothesis).n_errors == slow_distance(reference, hypothesis)


@given(reference=WORDS, hypothesis=WORDS)
def test_errors_are_symmetric_and_account_for_the_lengths(reference: list[str], hypothesis: list[str]) -> None:
    found, mirrored = compare_words(reference, hypothesis), compare_words(hypothesis, reference)
    counts = (found.n_substitutions, found.n_deletions, found.n_insertions)
    assert counts == (mirrored.n_substitutions, mirrored.n_insertions, mirrored.n_deletions)
    assert min(counts) >= 0
    assert found.n_insertions - found.n_deletions == len(hypothesis) - len(reference)
    assert found.n_substitutions + found.n_deletions <= len(reference)


def test_the_kinds_of_errors() -> None:
    assert compare_words("abcd", "axcd") == Score(4, 1, 0, 0)
    assert compare_words("abcd", "acd") == Score(4, 0, 1, 0)
    assert compare_words("ab", "zaby") == Score(2, 0, 0, 2)
    assert compare_words("abcde", "bcdex") == Score(5, 0, 1, 1)


@pytest.mark.parametrize(
    ("language", "reference", "hypothesis", "expected"),
    [
        ("en", "MISTER BROWN PAID TWENTY DOLLARS", "Mr. Brown paid $20.", Score(4)),
        ("en", "the colour of it", "The color, of... it!", Score(4)),
        ("en", "red green blue", "red blue", Score(3, 0, 1, 0)),
        ("de", "Grüße, Jürgen!", "grüße Jürgen", Score(2)),
        ("ja", "東京に行く", "東京へ行く", Score(5, 1)),
        ("en", "", "thank you", Score(0, 0, 0, 2)),
    ],
)
def test_texts_are_normalised_as_openai_does(language: str, reference: str, hypothesis: str, expected: Score) -> None:
    assert score(reference, hypothesis, normaliser(language)) == expected


class FixedSystem:
    """Returns these texts in turn, and then fails as a library's process does."""

    def __init__(self, name: str, *texts: str, n_windows: int | None = None) -> None:
        self.name, self._texts, self._n_windows = name, list(texts), n_windows

    def transcribe(self, clip: AudioClip) -> ClipOutcome:
        if not self._texts:
            raise ProcessFailed("out of memory")
        return ClipOutcome(self._texts.pop(0), 0.5, "en", self._n_windows)


def test_figures_are_over_all_clips_of_a_set() -> None:
    second = np.zeros(16_000, np.float32)
    speech = [
        SetClip("a", AudioClip(second, "red green blue gold", None)),
        SetClip("b", AudioClip(second, "sky", "en")),
    ]
    silence = [SetClip("silence", AudioClip(second, "", "en"))]
    seen: list[str] = []

    def on_clip(clip: str, system: str, row: WerRow) -> None:
        seen.append(f"{clip} {system} {row.score.n_errors}")

    run = WerRun(on_clip)
    run.measure("clips", speech, [FixedSystem("it", "red green blue", "sea", n_windows=2), FixedSystem("bad", "red")])
    run.measure("non-speech", silence, [FixedSystem("it", "thank you")])
    assert seen == ["a it 1", "a bad 3", "b it 2", "silence it 2"]
    assert run.notes == ["clips: bad is not shown: out of memory"]
    words, invented = (row.fields() for row in run.rows)
    assert (words["substitutions"], words["deletions"], words["wer_percent"]) == (1, 1, 40.0)
    assert (words["times_real_time"], words["windows"], words["words_per_hour_of_non_speech"]) == (2.0, 4, None)
    assert (invented["words_per_hour_of_non_speech"], invented["wer_percent"], invented["windows"]) == (
        7200,
        None,
        None,
    )


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


@pytest.mark.slow
def test_the_command_with_peers(tmp_path: Path, speech_clips: list[Path], tiny_en_pt: Path) -> None:
    """Choral and openai-whisper produce the same text, so they make the same errors."""
    for index, path in enumerate(speech_clips[:2]):
        shutil.copy(path, tmp_path / f"{index}.wav")
        (tmp_path / f"{index}.txt").write_text("surely not what is said")
    command = [sys.executable, "-m", "choral.cli.main", "bench", "wer", str(tmp_path), "--model", str(tiny_en_pt)]
    flags = ["--modes", "sequential,batched", "--language", "en"]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, check=True, env=dict(os.environ))
    fields = json.loads(done.stdout.splitlines()[-1])
    rows = {row["system"]: row for row in fields["rows"]}
    assert list(rows) == ["sequential", "batched", "openai-whisper", "faster-whisper"]
    kinds = ("substitutions", "deletions", "insertions")
    errors = {system: [row[kind] for kind in kinds] for system, row in rows.items()}
    assert errors["sequential"] == errors["openai-whisper"]
    assert sum(errors["sequential"]) > 0
    assert (rows["sequential"]["windows"], rows["openai-whisper"]["windows"]) == (2, None)
    assert fields["machine"]["versions"].keys() > {"choral", "torch", "openai-whisper"}
    assert fields["notes"] == []
    assert "clips, 1.wav: batched, so far WER " in done.stderr
    assert len([line for line in done.stdout.splitlines() if line.startswith("clips ")]) == 4


def test_sounds_without_speech_run_with_and_without_the_voice_detector(tiny_en_ct2: Path) -> None:
    clips = [clip for clip in set_clips("non-speech", [], 35.0) if clip.name == "applause"]
    run = WerRun()
    with choral.load(tiny_en_ct2, device="cpu", engine="ctranslate2") as model:
        options = choral.TranscribeOptions(temperature=0.0)
        peers = PeerSystems(model, tiny_en_ct2, options)
        with closing(peers):
            systems = [*choral_systems(model, options, ["batched"], both_vad=True), *peers.open(both_vad=True)]
            assert [peer.name for peer in peers.open(both_vad=False)] == ["openai-whisper", "faster-whisper"]
            run.measure("non-speech", clips, systems)
    assert (run.notes, peers.notes) == ([], [])
    without, with_vad, openai, faster, faster_vad = run.rows
    assert (without.system, with_vad.system) == ("batched, no VAD", "batched, VAD")
    assert (openai.system, faster.system, faster_vad.system) == (
        "openai-whisper",
        "faster-whisper",
        "faster-whisper, VAD",
    )
    assert (without.n_windows, with_vad.n_windows, with_vad.invented_per_hour) == (1, 0, 0)
    assert faster_vad.invented_per_hour == 0
