"""24 hours of audio in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from attack_probe import memory_bytes, under_attack
from choral.bench.clips import read_samples
from serve_process import running
from speech_requests import submit, transcribe, wait_for_job

HOUR_S = 3600


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_day_of_audio_in_one_file(flags: tuple[object, ...], jfk: Path, tmp_path: Path) -> None:
    """Speech at the start, at noon and at the end, silence between: every sentence is found, in bounded memory."""
    file = tmp_path / "day.flac"
    starts_s = (0, 12 * HOUR_S, 24 * HOUR_S - 60)
    write_day(file, read_samples(jfk), starts_s)
    assert file.stat().st_size < 64 * 2**20
    limits = ("--max-audio-s", 25 * HOUR_S, "--data", tmp_path / "data")
    with running(*flags, *limits, env={"TMPDIR": str(tmp_path)}) as server:
        transcribe(server.url, jfk)
        before_bytes = memory_bytes(server)
        with under_attack(server, jfk, good_within_s=60):
            job_id = submit(server.url, file, mode="batched", vad="true")
            job = wait_for_job(server.url, job_id, limit_s=3000)
        assert job["state"] == "succeeded", job
        assert job["progress"]["duration_s"] == pytest.approx(24 * HOUR_S, abs=1)
        spoken = [segment for segment in job["result"]["segments"] if "country" in segment["text"]]
        for start_s in starts_s:
            assert any(start_s - 1 <= segment["start"] <= start_s + 12 for segment in spoken), (start_s, spoken)
        assert memory_bytes(server) - before_bytes < 500 * 2**20


def write_day(file: Path, speech: np.ndarray[Any, np.dtype[np.float32]], starts_s: tuple[int, ...]) -> None:
    """24 hours at 16 kHz, written second by second."""
    clip = (speech * 32767).astype(np.int16)
    silence = np.zeros(16_000, np.int16)
    with av.open(str(file), "w") as container:
        stream = container.add_stream("flac", rate=16_000, layout="mono")
        for second in range(24 * HOUR_S):
            samples = silence
            for start_s in starts_s:
                offset = (second - start_s) * 16_000
                if 0 <= offset < len(clip):
                    samples = silence.copy()
                    samples[: len(clip) - offset] = clip[offset : offset + 16_000]
            frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
            frame.sample_rate, frame.pts = 16_000, second * 16_000
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
