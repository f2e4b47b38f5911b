"""`choral bench peers`: the clips, the settings of each library, the figures, and the command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from choral.audio.constants import SAMPLE_RATE, WINDOW_SAMPLES
from choral.bench.clips import AudioClip, join_clips, short_clips, write_audio_files
from choral.bench.labelled_clips import LabelledClip
from choral.bench.load_generator import RoundResult, send_all, send_together
from choral.bench.peer_configs import PeerSetup, all_configs, missing_notes
from choral.bench.peer_report import LoadReport, SpeedRow, check_targets, measure_load, speed_row
from choral.bench.peer_transformers import make_tokenizer
from choral.bench.round_robin import PeerResult, RoundRobin
from choral.errors import AudioNotFound
from choral.model.tokenizer import Tokenizer
from choral.model.weights import open_checkpoint

ONE_STEP = 1 / 2**15


def hum(seconds: float, text: str | None = "hum", language: str | None = "en") -> AudioClip:
    samples = 0.1 * np.sin(np.arange(round(seconds * SAMPLE_RATE), dtype=np.float32) / 20)
    return AudioClip(samples.astype(np.float32), text, language)


def row(system: str, speed: float, wer: float | None = 5.0) -> SpeedRow:
    return SpeedRow(system, "", speed, wer, 1, (1.0,), (1.0,))


def report(*rows: SpeedRow) -> LoadReport:
    return LoadReport("a load", 10.0, 1, rows, ())


def setup(model: Path, **given: object) -> PeerSetup:
    usual = PeerSetup(model, "cpu", 2, ("float32", "int8"), ("torch", "ctranslate2"), 64, True, False)
    return replace(usual, **given)  # type: ignore[arg-type]


def test_every_request_differs_by_noise_of_one_step(tmp_path: Path) -> None:
    clip = hum(1.0)
    rounds = [write_audio_files([clip, clip], tmp_path / str(seed), seed) for seed in (0, 1)]
    read = [request.samples() for requests in rounds for request in requests]
    assert len({samples.tobytes() for samples in read}) == 4
    assert all(np.abs(samples - clip.samples).max() <= 1.51 * ONE_STEP for samples in read)
    again = write_audio_files([clip, clip], tmp_path / "again", 0)
    assert [request.samples().tobytes() for request in again] == [samples.tobytes() for samples in read[:2]]


def test_clips_repeat_and_long_ones_are_left_out(tmp_path: Path) -> None:
    audio_clips = [hum(1.0), hum(2.0), hum(31.0)]
    requests = write_audio_files(audio_clips, tmp_path, 0)
    clips = [LabelledClip(str(i), Path(request.path), f"text {i}", "en") for i, request in enumerate(requests)]
    assert [clip.text for clip in short_clips(clips, 5)] == ["text 0", "text 1", "text 0", "text 1", "text 0"]
    with pytest.raises(AudioNotFound, match="at most 30 s"):
        short_clips(clips[2:], 1)
    assert audio_clips[2].samples.size > WINDOW_SAMPLES


def test_join_clips_with_their_texts() -> None:
    whole = join_clips([hum(2.0, "one"), hum(3.0, "two")], 7.0)
    assert (whole.text, whole.language, whole.duration_s) == ("one two one", "en", 8.5)
    assert join_clips([hum(1.0, "a", "en"), hum(1.0, "b", "de")], 2.0).language is None


def test_send_all_and_send_together() -> None:
    run = send_all(lambda number: f"<{number}>", range(20), n_callers=8)
    assert run.texts == tuple(f"<{number}>" for number in range(20))
    assert len(run.latencies_s) == 20
    assert max(run.latencies_s) <= run.wall_s
    together = send_together(lambda numbers: [str(number) for number in numbers], [1, 2, 3])
    assert (together.texts, together.latencies_s) == (("1", "2", "3"), (together.wall_s,) * 3)


def test_settings_of_each_family(tiny_en_pt: Path) -> None:
    configs = all_configs(setup(tiny_en_pt))
    settings = {config.family: [own.setting for own in configs if own.family == config.family] for config in configs}
    assert settings["faster-whisper int8"] == ["one after another", "64 threads, 1 worker", "64 threads, 2 workers"]
    assert settings["openai-whisper float32"] == ["one after another"]
    assert [name for name in settings if name.startswith("choral")] == [
        "choral torch float32",
        "choral torch int8",
        "choral ctranslate2 float32",
        "choral ctranslate2 int8",
    ]
    workers = [(own.n_workers, own.n_callers) for own in configs if own.family == "faster-whisper int8"]
    assert workers == [(1, 1), (1, 64), (2, 64)]
    long = all_configs(setup(tiny_en_pt, is_long=True, n_callers=1))
    assert [own.batch_size for own in long if own.family == "faster-whisper batched int8"] == [4, 8, 16]


def test_whisper_cpp_needs_a_ggml_file(tiny_en_pt: Path, tiny_ggml: Path) -> None:
    note = "whisper.cpp is not shown: it needs a ggml file, and this model is not one"
    assert note in missing_notes(setup(tiny_en_pt))
    assert note not in missing_notes(setup(tiny_ggml))


@pytest.mark.parametrize("text", ["Hello, world!", " It's 3 o'clock; don't!", " żółw 東京 🎵", "a  b\n c"])
def test_tokenizer_for_other_libraries_is_the_same(tiny_en_pt: Path, text: str) -> None:
    checkpoint = open_checkpoint(tiny_en_pt)
    ours, theirs = Tokenizer.for_checkpoint(checkpoint.dims, checkpoint.vocabulary), make_tokenizer(checkpoint)
    assert theirs.encode(text).ids == ours.encode(text)
    assert theirs.decode(ours.encode(text)) == text
    assert theirs.token_to_id("<|startoftranscript|>") == ours.sot
    assert theirs.token_to_id("<|0.00|>") == ours.timestamp_begin
    assert theirs.get_vocab_size() == checkpoint.dims.n_vocab


def test_a_row_has_the_median_of_the_rounds_and_all_errors(tiny_en_pt: Path) -> None:
    config = all_configs(setup(tiny_en_pt))[0]
    audio_clips = [hum(6.0, "red house"), hum(4.0, "green tree")]
    runs = [
        RoundResult(("red house", f"green {last}"), (1.0, 1.0), wall_s, 1.0)
        for last, wall_s in (("tree", 1.0), ("x", 5.0))
    ]
    found = speed_row(PeerResult(config, [*runs, runs[0]], peak_bytes=7), audio_clips)
    assert (found.times_real_time, found.peak_bytes, found.rounds_s) == (10.0, 7, (1.0, 5.0, 1.0))
    assert found.wer_percent == pytest.approx(100 / 12)
    assert speed_row(PeerResult(config, runs), [audio_clips[0], replace(audio_clips[1], text=None)]).wer_percent is None


def test_targets_compare_the_best_of_each() -> None:
    rows = [row("choral torch int8", 30.0, 5.2), row("choral torch float32", 20.0)]
    peers = [row("faster-whisper int8", 19.0), row("faster-whisper batched int8", 10.0), row("openai-whisper", 5.0)]
    long_rows = [*rows, row("faster-whisper int8", 20.0), peers[1], row("choral defaults", 25.0)]
    targets = check_targets(report(*rows, *peers), report(*long_rows))
    assert [(target.value, target.holds) for target in targets] == [
        (pytest.approx(30 / 19), True),
        (pytest.approx(3.0), True),
        (pytest.approx(1.25), True),
        (pytest.approx(0.2), False),
        (None, None),
    ]
    assert str(targets[0]) == "short clips: at least 1.5 × faster-whisper's best (here 1.58): yes\n"
    assert all(target.holds is None for target in check_targets(None, None))


def test_a_system_that_fails_is_left_out_with_its_last_line(tmp_path: Path, tiny_en_pt: Path) -> None:
    broken = setup(tmp_path / "no-such-model", compute_types=("float32",), engines=("torch",))
    round_robin = RoundRobin(tmp_path)
    found = measure_load(broken, [hum(1.0)], [hum(1.0)], round_robin, 1, lambda name: name.startswith("choral"))
    assert found.rows == ()
    assert any(
        note.startswith("choral torch float32 is not shown: ") and "no-such-model" in note for note in found.notes
    )


@pytest.mark.slow
def test_the_command(tmp_path: Path, speech_clips: list[Path], tiny_en_pt: Path) -> None:
    """Choral and openai-whisper produce the same text, so they make the same errors."""
    for index, path in enumerate(speech_clips[:2]):
        shutil.copy(path, tmp_path / f"{index}.wav")
        (tmp_path / f"{index}.txt").write_text("surely not what is said")
    systems = "choral torch float32,openai-whisper,faster-whisper batched int8"
    command = [sys.executable, "-m", "choral", "bench", "peers", str(tmp_path), "--model", str(tiny_en_pt)]
    done = subprocess.run(
        [*command, "--callers", "3", "--long", "12", "--rounds", "1", "--threads", "1", "--systems", systems],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    fields = json.loads(done.stdout.splitlines()[-1])
    for load in (fields["short"], fields["long"]):
        rows = {own["system"]: own for own in load["rows"]}
        assert set(rows) == {"choral torch float32", "openai-whisper float32", "faster-whisper batched int8"}
        assert all(own["times_real_time"] > 0 and own["peak_bytes"] > 50e6 for own in rows.values())
        speeds = [own["times_real_time"] for own in load["rows"]]
        assert speeds == sorted(speeds, reverse=True)
    rates = {own["system"]: own["wer_percent"] for own in fields["short"]["rows"]}
    assert rates["choral torch float32"] == rates["openai-whisper float32"] > 0
    assert fields["short"]["n_requests"] == 3
    assert [bar["holds"] is None for bar in fields["targets"]] == [False, False, True, False, False]
    assert fields["machine"]["versions"].keys() > {"choral", "faster-whisper", "openai-whisper"}
    assert "choral torch float32: " in done.stderr
