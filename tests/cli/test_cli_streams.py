"""Standard streams that are closed or full, and control characters in file names."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from terminal_screen import COMMAND


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a shell, with this rest of the command line."""
    script = f"{shlex.join(COMMAND)} {line}"
    return subprocess.run(
        ["sh", "-c", script], cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )


@pytest.mark.parametrize("command", ["transcribe", "demo"])
def test_closed_standard_input_is_refused(command: str, tmp_path: Path) -> None:
    done = shell(f"{command} - <&-", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("choral: standard input is closed")


@pytest.mark.parametrize("arguments", ["--help", "--version", "models path", "transcribe a.wav --model no-such-model"])
def test_closed_standard_output_is_reported(arguments: str, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"x")
    done = shell(f"{arguments} >&-", tmp_path)
    assert done.returncode == 5
    assert done.stderr == "choral: cannot write to standard output: it is closed\n"


@pytest.mark.parametrize("arguments", ["--help", "--version", "models path"])
def test_full_standard_output_is_reported(arguments: str, tmp_path: Path) -> None:
    done = shell(f"{arguments} >/dev/full", tmp_path)
    assert done.returncode == 5
    assert done.stderr == "choral: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize("place", ["&-", "/dev/full"])
def test_unwritable_standard_error_changes_nothing(place: str, tmp_path: Path) -> None:
    done = shell(f"transcribe no.mp3 no-more.mp3 2>{place}", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


def test_transcribing_needs_no_standard_error(tmp_path: Path, speech_clips: list[Path], tiny_en_pt: Path) -> None:
    shutil.copy(speech_clips[0], tmp_path / "a.wav")
    done = shell(f"transcribe a.wav no.wav --output-dir out --model {tiny_en_pt} 2>&-", tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert len((tmp_path / "out/a.txt").read_text().split()) > 3


def test_control_characters_in_names_are_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "a\n\x1b7b"
    folder.touch()
    (tmp_path / "a.mp3").write_bytes(b"x")
    quoted = shlex.quote(folder.name)
    missing = shell(f"transcribe {quoted}.mp3", tmp_path)
    assert missing.stderr == "choral: a\\n\\x1b7b.mp3: there is no such file or folder; check the spelling\n"
    unusable = shell(f"transcribe a.mp3 --output-dir {quoted}", tmp_path)
    assert unusable.stderr == "choral: a\\n\\x1b7b is a file, not a folder: choose another --output-dir\n"
