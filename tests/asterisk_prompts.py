"""Hundreds of studio prompts in five languages (CC-BY-SA; Russian CC-BY), from Debian packages that apt verifies.

They are cached beside the other speech samples, and converted to WAV files on demand.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import wave
from pathlib import Path
from typing import Literal

from choral.errors import DownloadFailed, MissingDependency
from choral.remote.speech_samples import samples_root
from choral.storage import locked, storage_errors

Language = Literal["en", "es", "fr", "it", "ru"]

_APT_TIMEOUT_S = 600
_G722_RATE = 16_000


def asterisk(language: Language, *, longest: int | None = None) -> tuple[Path, ...]:
    """Prompts as 16 kHz WAV files, sorted by name: all, or only the `longest` ones."""
    folder = samples_root() / f"asterisk-{language}"
    with locked(samples_root() / f".asterisk-{language}.lock"):
        if not folder.is_dir():
            _install_asterisk(language, folder)
        return tuple(sorted(_as_wav(prompt) for prompt in _prompts(folder, longest)))


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
