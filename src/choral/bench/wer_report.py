"""`choral bench wer`: sets of speech through Choral's modes and other Whisper libraries, each clip through all in turn.

Other libraries run in processes of their own, as for `choral bench peers`; one that fails is left out with a note.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from choral.api import Model
from choral.bench.clips import FULL_SCALE, AudioClip, AudioFile, write_flac
from choral.bench.json_process import ProcessFailed
from choral.bench.peer_process import PeerProcess
from choral.bench.peers import PeerConfig, is_installed, not_installed_note
from choral.bench.speech_sets import SetClip
from choral.bench.wer import Score, normaliser, score
from choral.common.processor import default_threads
from choral.options import TranscribeOptions

SECONDS_PER_HOUR = 3600
OnClip = Callable[[str, str, "WerRow"], None]  # the names of the clip and of the system, its figures so far


@dataclass(frozen=True)
class ClipOutcome:
    text: str
    wall_s: float
    language: str | None = None  # None: not known
    n_windows: int | None = None  # that were encoded; None: not known


class MeasuredSystem(Protocol):
    name: str

    def transcribe(self, clip: AudioClip) -> ClipOutcome: ...


class ChoralSystem:
    def __init__(self, name: str, model: Model, options: TranscribeOptions) -> None:
        self.name, self._model, self._options = name, model, options

    def transcribe(self, clip: AudioClip) -> ClipOutcome:
        engine = self._model.transcriber.engine
        engine.clear_cache()  # of the modes before
        n_before, started_s = engine.stats.encoded, time.perf_counter()
        options = replace(self._options, language=self._options.language or clip.language)
        transcript = self._model.transcribe(clip.samples, options)
        wall_s = time.perf_counter() - started_s
        return ClipOutcome(transcript.text, wall_s, transcript.language, engine.stats.encoded - n_before)


class PeerSystem:
    def __init__(self, name: str, process: PeerProcess, language: str | None) -> None:
        self.name, self._process, self._language = name, process, language

    def transcribe(self, clip: AudioClip) -> ClipOutcome:
        with tempfile.TemporaryDirectory(prefix="choral-bench-") as folder:
            path = Path(folder, "clip.flac")
            write_flac(path, (clip.samples * FULL_SCALE).round().clip(-FULL_SCALE, FULL_SCALE - 1).astype("int16"))
            result = self._process.run([AudioFile(str(path), self._language or clip.language)])
        return ClipOutcome(result.texts[0], result.wall_s)

    def close(self) -> None:
        self._process.close()


@dataclass
class WerRow:
    """The figures of one system on one set."""

    set_name: str
    system: str
    audio_s: float = 0.0
    wall_s: float = 0.0
    n_windows: int | None = 0
    score: Score = Score(0)

    def add(self, clip: AudioClip, outcome: ClipOutcome, clip_score: Score) -> None:
        self.audio_s += clip.duration_s
        self.wall_s += outcome.wall_s
        known = None not in (self.n_windows, outcome.n_windows)
        self.n_windows = (self.n_windows or 0) + (outcome.n_windows or 0) if known else None
        self.score += clip_score

    @property
    def is_speech(self) -> bool:
        return self.score.n_words > 0

    @property
    def invented_per_hour(self) -> float | None:
        """Words per hour of audio without speech."""
        return None if self.is_speech else self.score.n_insertions * SECONDS_PER_HOUR / max(self.audio_s, 1e-9)

    @property
    def times_real_time(self) -> float:
        return self.audio_s / max(self.wall_s, 1e-9)

    def fields(self) -> dict[str, Any]:
        return {
            "set": self.set_name,
            "system": self.system,
            "audio_s": self.audio_s,
            "words": self.score.n_words,
            "substitutions": self.score.n_substitutions,
            "deletions": self.score.n_deletions,
            "insertions": self.score.n_insertions,
            "wer_percent": self.score.percent if self.is_speech else None,
            "words_per_hour_of_non_speech": self.invented_per_hour,
            "seconds": self.wall_s,
            "times_real_time": self.times_real_time,
            "windows": self.n_windows,
        }


@dataclass
class WerRun:
    """Measures one set after another; `rows` and `notes` grow."""

    on_clip: OnClip = lambda clip, system, row: None
    rows: list[WerRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def measure(self, set_name: str, clips: Iterable[SetClip], systems: Sequence[MeasuredSystem]) -> None:
        """The first system's detected language applies where a clip's is unknown."""
        rows = {system: WerRow(set_name, system.name) for system in systems}
        for clip in clips:
            language = clip.audio.language
            for system in list(rows):
                try:
                    outcome = system.transcribe(clip.audio)
                except ProcessFailed as error:
                    self.notes.append(f"{set_name}: {system.name} is not shown: {error}")
                    del rows[system]
                    continue
                language = language or outcome.language or "en"
                clip_score = score(clip.audio.text or "", outcome.text, normaliser(language))
                rows[system].add(clip.audio, outcome, clip_score)
                self.on_clip(clip.name, system.name, rows[system])
        self.rows += rows.values()


def choral_systems(
    model: Model, options: TranscribeOptions, modes: Sequence[str], *, both_vad: bool
) -> list[ChoralSystem]:
    """Each mode with its default, or with and without the voice detector."""
    systems = []
    for mode in modes:
        chosen = replace(options, mode=mode)  # type: ignore[arg-type]  # checked by the options
        if not both_vad:
            systems.append(ChoralSystem(mode, model, chosen))
            continue
        systems.append(ChoralSystem(f"{mode}, no VAD", model, replace(chosen, vad=False)))
        systems.append(ChoralSystem(f"{mode}, VAD", model, replace(chosen, vad=True)))
    return systems


@dataclass
class PeerSystems:
    """openai-whisper and faster-whisper with this model's weights and search; `notes` has those that are missing."""

    model: Model
    weights: Path
    options: TranscribeOptions
    notes: list[str] = field(default_factory=list)
    _opened: dict[str, PeerSystem | None] = field(default_factory=dict)

    def open(self, *, both_vad: bool) -> list[PeerSystem]:
        """Each with its default; or, if it has a voice detector, without and with it. Processes stay for later sets."""
        systems = [self._open("openai-whisper"), self._open("faster-whisper")]
        if both_vad:
            systems.append(self._open("faster-whisper", vad=True))
        return [system for system in systems if system is not None]

    def close(self) -> None:
        for system in self._opened.values():
            if system is not None:
                system.close()

    def _open(self, library: str, *, vad: bool = False) -> PeerSystem | None:
        name = f"{library}, VAD" if vad else library
        if name not in self._opened:
            self._opened[name] = self._start(library, name, vad)
        return self._opened[name]

    def _start(self, library: str, name: str, vad: bool) -> PeerSystem | None:
        if not is_installed(library):
            self.notes += [] if vad else [not_installed_note(library)]
            return None
        options, device = self.options, self.model.device
        config = PeerConfig(
            family=library,
            library=library,
            model=str(self.weights),
            device=device,
            compute_type="float32" if device == "cpu" else "float16",
            threads=default_threads(),
            vad=vad,
            temperatures=options.temperatures,
            beam_size=options.beam_size,
            best_of=options.best_of,
            condition_on_previous_text=True,
        )
        try:
            return PeerSystem(name, PeerProcess(config), options.language)
        except ProcessFailed as error:
            self.notes.append(f"{name} is not shown: {error}")
            return None
