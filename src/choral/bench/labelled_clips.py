"""A folder of speech with transcripts, in one of three layouts.

- `manifest.jsonl`: one JSON object per line with `file` (relative to the folder), `text`, and optionally `language`;
- LibriSpeech: `*.trans.txt` files with an utterance id and its text on each line, the audio beside them;
- pairs: audio files with a `.txt` of the same name beside them.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from choral.errors import AudioDenied, AudioNotFound, UsageError

MANIFEST = "manifest.jsonl"
LIBRISPEECH_SUFFIX = ".trans.txt"


@dataclass(frozen=True)
class LabelledClip:
    name: str  # its path below the folder
    path: Path
    text: str
    language: str | None  # None: unknown


def read_corpus(folder: Path) -> tuple[LabelledClip, ...]:
    """Every clip with a transcript, in order of the manifest or of the names."""
    if not folder.is_dir():
        raise AudioNotFound(f"there is no folder {folder}")
    if (folder / MANIFEST).is_file():
        clips = tuple(_from_manifest(folder))
    else:
        clips = tuple(sorted(_from_texts(folder), key=lambda clip: clip.name))
    if not clips:
        raise AudioNotFound(
            f"{folder} has no transcripts: it needs a {MANIFEST}, LibriSpeech's *{LIBRISPEECH_SUFFIX}, "
            "or a .txt beside each audio file"
        )
    return clips


def _from_manifest(folder: Path) -> Iterator[LabelledClip]:
    for number, line in enumerate(_read(folder / MANIFEST).splitlines(), start=1):
        if line.strip():
            yield _manifest_clip(folder, f"{MANIFEST} line {number}", line)


def _manifest_clip(folder: Path, where: str, line: str) -> LabelledClip:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where} is not JSON: {error}") from error
    if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("file", "text")):
        raise UsageError(f'{where} must be an object with "file" and "text"')
    language = entry.get("language")
    if language is not None and not isinstance(language, str):
        raise UsageError(f'{where}: "language" must be a code such as "en"')
    path = folder / entry["file"]
    if not path.is_file():
        raise AudioNotFound(f"{where} names {entry['file']}, which does not exist")
    return LabelledClip(entry["file"], path, entry["text"], language)


def _from_texts(folder: Path) -> Iterator[LabelledClip]:
    for path in folder.rglob("*.txt"):
        if path.name.endswith(LIBRISPEECH_SUFFIX):
            yield from _librispeech_clips(folder, path)
        else:
            audio = _audio_beside(path.with_suffix(""))
            if audio is not None:
                yield LabelledClip(str(audio.relative_to(folder)), audio, _read(path), None)


def _librispeech_clips(folder: Path, transcripts: Path) -> Iterator[LabelledClip]:
    for line in _read(transcripts).splitlines():
        utterance, _, text = line.strip().partition(" ")
        if not utterance:
            continue
        audio = _audio_beside(transcripts.parent / utterance)
        if audio is None:
            raise AudioNotFound(f"{transcripts} names {utterance}, and there is no audio of that name beside it")
        yield LabelledClip(str(audio.relative_to(folder)), audio, text, "en")


def _audio_beside(stem: Path) -> Path | None:
    """The file with this name and a suffix that is not a text format."""
    texts = {".txt", ".json", ".srt", ".vtt", ".tsv"}
    candidates = sorted(stem.parent.glob(glob.escape(stem.name) + ".*"))
    return next((path for path in candidates if path.stem == stem.name and path.suffix not in texts), None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except PermissionError as error:
        raise AudioDenied(f"{path} may not be read: check its permissions") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
