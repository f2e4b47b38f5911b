"""`choral transcribe` with a real model and real speech, as scripts use it: no terminal anywhere."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
import threading
import wave
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import choral as package
from choral import formats
from choral.options import SubtitleOptions
from choral.transcript import Transcript

Run = Callable[..., Any]
FLOAT32 = ("--compute-type", "float32")  # one file and several then run on the same engine


@pytest.fixture(scope="module")
def model(tiny_en_pt: Path) -> Iterator[package.Model]:
    with package.load(tiny_en_pt, compute_type="float32") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def transcripts(model: package.Model, speech_clips: list[Path]) -> list[Transcript]:
    return [model.transcribe(path) for path in speech_clips[:2]]


def test_default_engine_for_one_file(choral: Run, clips: list[Path], tiny_en_pt: Path) -> None:
    result = choral("transcribe", clips[0], "--model", tiny_en_pt, "--device", "cpu", "--verbose")
    assert result.code == 0
    assert len(result.out.split()) > 3
    plan, place = result.errors.splitlines()
    assert plan.startswith("choral: ctranslate2 on cpu in int8, threads: ")
    assert place == "choral: requests run on threads of this process: there is one input"


def test_one_file_goes_to_standard_output(
    choral: Run, clips: list[Path], transcripts: list[Transcript], tiny_en_pt: Path
) -> None:
    result = choral("transcribe", clips[0], "--model", tiny_en_pt, *FLOAT32)
    assert (result.code, result.errors) == (0, "")
    assert result.out == formats.text(transcripts[0])
    assert len(result.out.split()) > 3


def test_one_format_goes_to_standard_output(
    choral: Run, clips: list[Path], model: package.Model, tiny_en_pt: Path
) -> None:
    result = choral(
        "transcribe", clips[1], "--model", tiny_en_pt, *FLOAT32, "--format", "vtt", "--max_words_per_line", "3"
    )
    transcript = model.transcribe(clips[1], word_timestamps=True)
    assert (result.code, result.errors) == (0, "")
    assert result.out == formats.vtt(transcript, SubtitleOptions(max_words_per_line=3))
    assert result.out.count("-->") > 2


def test_several_files_give_result_files(
    choral: Run, clips: list[Path], transcripts: list[Transcript], tiny_en_pt: Path, tmp_path: Path
) -> None:
    result = choral(
        "transcribe", "clip0.wav", "--model", tiny_en_pt, *FLOAT32, "no.wav", "--format", "srt", "clip1.wav"
    )
    assert result.out == ""
    assert result.errors == "choral: no.wav: there is no such file or folder; check the spelling\n"
    assert result.code == 3
    assert (tmp_path / "clip0.srt").read_text() == formats.srt(transcripts[0])
    assert (tmp_path / "clip1.srt").read_text() == formats.srt(transcripts[1])


def test_bad_files_do_not_stop_the_others(
    choral: Run, clips: list[Path], transcripts: list[Transcript], tiny_en_pt: Path, tmp_path: Path
) -> None:
    talks = tmp_path / "talks"
    talks.mkdir()
    shutil.copy(clips[0], talks / "a.wav")
    (talks / "b.mp3").write_bytes(b"this is no sound at all" * 100)
    (talks / "c.ogg").touch()
    shutil.copy(clips[1], talks / "d.wav")
    result = choral(
        "transcribe", "talks", "--model", tiny_en_pt, *FLOAT32, "--output-dir", "texts/new", "--format", "all"
    )
    assert result.code == 3
    lines = sorted(result.errors.splitlines())
    assert [line.split()[:3] for line in lines] == [["choral:", f"talks/{name}", "is"] for name in ("b.mp3", "c.ogg")]
    written = sorted(path.name for path in (tmp_path / "texts/new").iterdir())
    assert written == [f"{name}.{ending}" for name in "ad" for ending in ("json", "srt", "tsv", "txt", "vtt")]
    for name, transcript in zip("ad", transcripts, strict=True):
        assert (tmp_path / f"texts/new/{name}.tsv").read_text() == formats.tsv(transcript)
        fields = json.loads((tmp_path / f"texts/new/{name}.json").read_text())
        assert (fields["text"], fields["language"]) == (transcript.text, "english")


def test_standard_input(choral: Run, clips: list[Path], transcripts: list[Transcript], tiny_en_pt: Path) -> None:
    result = choral("transcribe", "-", "--model", tiny_en_pt, *FLOAT32, "--format", "json", stdin=clips[0].read_bytes())
    assert (result.code, result.errors) == (0, "")
    assert json.loads(result.out) == {"text": transcripts[0].text}


def test_urls(choral: Run, clips: list[Path], transcripts: list[Transcript], tiny_en_pt: Path, tmp_path: Path) -> None:
    handler = functools.partial(QuietHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        result = choral(
            "transcribe",
            f"{address}/clip0.wav?key=secret",
            f"{address}/gone.wav",
            "--model",
            tiny_en_pt,
            *FLOAT32,
            "--output-dir",
            "out",
        )
        server.shutdown()
    assert result.code == 3
    assert result.errors.startswith(f"choral: {address}/gone.wav does not exist ")
    assert "secret" not in result.errors
    assert (tmp_path / "out/clip0.txt").read_text() == formats.text(transcripts[0])


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_warnings_are_printed_unless_quiet(choral: Run, clips: list[Path], tiny_en_pt: Path, tmp_path: Path) -> None:
    whole = clips[0].read_bytes()
    (tmp_path / "cut.wav").write_bytes(whole[: len(whole) // 2])
    told = choral("transcribe", "cut.wav", "--model", tiny_en_pt, *FLOAT32)
    quiet = choral("transcribe", "cut.wav", "--model", tiny_en_pt, *FLOAT32, "--quiet")
    assert (told.code, quiet.code) == (0, 0)
    assert told.errors.startswith("choral: cut.wav: warning: ")
    assert quiet.errors == ""
    assert told.out == quiet.out != ""


def test_silence_gives_empty_text(choral: Run, tiny_en_pt: Path, tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "silence.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(bytes(2 * 16_000 * 3))
    result = choral("transcribe", "silence.wav", "--model", tiny_en_pt, *FLOAT32)
    assert (result.code, result.out) == (0, "")


def test_wrong_option_is_reported_once(choral: Run, clips: list[Path], tiny_en_pt: Path) -> None:
    result = choral("transcribe", *clips[:2], "--model", tiny_en_pt, "--language", "klingon")
    assert result.code == 2
    assert result.errors.count("klingon") == 1
    assert "Traceback" not in result.errors


def test_closed_pipe_ends_the_run_quietly(clips: list[Path], tiny_en_pt: Path) -> None:
    command = [sys.executable, "-m", "choral.cli.main", "transcribe", str(clips[0]), "--model", str(tiny_en_pt)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_full_disk_behind_standard_output_has_its_exit_code(clips: list[Path], tiny_en_pt: Path) -> None:
    command = [sys.executable, "-m", "choral.cli.main", "transcribe", str(clips[0]), "--model", str(tiny_en_pt)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 5
    assert "No space left on device" in done.stderr
