"""The real speech samples, and the errors where they are unavailable."""

from __future__ import annotations

import os
import wave
from pathlib import Path

import pytest

from asterisk_prompts import Language, asterisk
from choral.errors import DownloadFailed, MissingDependency
from choral.remote import speech_samples
from choral.remote.pip_config import pip_settings


def duration_s(path: Path) -> float:
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16_000, 1, 2)
        return float(file.getnframes() / 16_000)


@pytest.mark.speech
def test_jfk() -> None:
    assert duration_s(speech_samples.jfk().path) == 11.0


@pytest.mark.speech
def test_librivox() -> None:
    found = speech_samples.librivox()
    assert [round(duration_s(sample.path), 2) for sample in found] == [7.1, 2.99, 5.3, 6.05, 3.29]
    assert found[1].text == "he was not an ill disposed young man"
    assert {sample.language for sample in found} == {"en"}


@pytest.mark.speech
@pytest.mark.parametrize("language", ["en", "es", "fr", "it", "ru"])
def test_longest_asterisk_prompts(language: Language) -> None:
    found = asterisk(language, longest=3)
    assert len(found) == 3
    assert list(found) == sorted(found)
    for path in found:
        # G.722 has 8,000 bytes a second; the decoder gives two samples a byte.
        assert duration_s(path) == pytest.approx(path.with_suffix(".g722").stat().st_size / 8000, abs=0.01)
        assert duration_s(path) > 15


def test_missing_apt_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHORAL_SAMPLES", str(tmp_path / "samples"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match="need apt-get and dpkg-deb"):
        asterisk("en")


@pytest.mark.skipif(os.name == "nt", reason="shell scripts stand in for apt")
def test_apt_without_lists_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("apt-get", "dpkg-deb"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'E: Unable to locate package' >&2\nexit 100\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("CHORAL_SAMPLES", str(tmp_path / "samples"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DownloadFailed, match=r"Unable to locate package\); run `apt-get update` as root"):
        asterisk("en")
    assert list((tmp_path / "samples").iterdir()) == []


def test_unreachable_index_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHORAL_SAMPLES", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    pip_settings.cache_clear()
    try:
        with pytest.raises(DownloadFailed, match="no-index"):
            speech_samples.librivox()
    finally:
        pip_settings.cache_clear()
