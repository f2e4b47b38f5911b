"""Files that are opened for a service: the one that was checked, and no other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from choral.errors import AudioRefused
from choral.serving.input_sources import open_path
from media_files import Int16Samples, wav


def test_file_swapped_during_open_is_refused(
    tones: Int16Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "a.wav", tmp_path / "b.wav"
    path.write_bytes(wav(tones))
    other.write_bytes(wav(tones))
    real_open = os.open

    def swap(name: str, flags: int, *rest: int) -> int:
        return real_open(other if name == str(path) else name, flags, *rest)

    open_path(str(path), [str(tmp_path)], 10**6).close()
    monkeypatch.setattr(os, "open", swap)
    with pytest.raises(AudioRefused, match="changed while it was opened"):
        open_path(str(path), [str(tmp_path)], 10**6)
