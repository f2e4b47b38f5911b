"""Turns a recording into a transcript: finds speech and language, builds the chains, collects the segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from choral.audio.constants import WINDOW_MEL_FRAMES
from choral.audio.loudness import normalize_loudness
from choral.audio.recording import Recording
from choral.engine.any_engine import AnyEngine
from choral.engine.window import Caller, DetectLanguageParams, Languages, Window, WindowAudio
from choral.longform.chain import Chain
from choral.longform.chain_types import ChainContext
from choral.longform.compute_budget import EXCEEDED, require_clips
from choral.longform.cuts import Clip, Cutter, clips_from, cut_padded, cut_to_windows, keep_speech, n_mel_frames
from choral.longform.run_chains import run_chains
from choral.model.dims import ModelDims
from choral.model.languages import to_code
from choral.model.tokenizer import Tokenizer
from choral.types import Priority, Segment, TranscribeOptions, Transcript

MIN_DURATION_S = 0.1

OnProgress = Callable[[float, float], None]  # seconds done, total seconds


@dataclass(frozen=True)
class Language:
    code: str
    probability: float | None  # None: given, or the model knows only one


class Transcriber:
    """Keeps no state of a request, so one serves any number of threads at once."""

    def __init__(self, engine: AnyEngine, tokenizer: Tokenizer, dims: ModelDims) -> None:
        self.engine, self.tokenizer, self.dims = engine, tokenizer, dims

    def start(
        self,
        recording: Recording,
        options: TranscribeOptions,
        on_progress: OnProgress | None = None,
        priority: Priority = "interactive",
    ) -> Transcription:
        """Checks the options against the model; iterating the transcription does the work."""
        if options.language is not None:
            self.tokenizer.language_token(to_code(options.language))
        if options.loudness != "off":
            recording = normalize_loudness(recording, options.loudness, options.loudness_target)
        return Transcription(self, recording, options, on_progress, Caller(priority))


class Transcription:
    """One request in progress. Iterate it for segments as they become final; then call `transcript`."""

    def __init__(
        self,
        transcriber: Transcriber,
        recording: Recording,
        options: TranscribeOptions,
        on_progress: OnProgress | None,
        caller: Caller,
    ) -> None:
        self.engine, self.tokenizer = transcriber.engine, transcriber.tokenizer
        self.dims, self.recording, self.options = transcriber.dims, recording, options
        self.on_progress, self.caller = on_progress, caller
        self.content_frames = n_mel_frames(recording)
        self.clips = clips_from(options.clip_timestamps, self.content_frames)
        require_clips(len(self.clips), self.content_frames)
        self.done_frames = self.total_frames = 0
        self.language: Language | None = None
        self.segments: list[Segment] = []
        self.warnings = list(recording.warnings)

    def cancel(self) -> None:
        """From any thread: the windows leave before the engine's next step, and iteration raises `CancelledError`."""
        self.engine.cancel_all(self.caller)

    def __iter__(self) -> Iterator[Segment]:
        chains = self.chains()
        self.total_frames = sum(clip.stop - clip.start for chain in chains for clip in chain.clips)
        for segment in run_chains(self.engine, self.caller, chains, self.report_progress):
            numbered = replace(segment, id=len(self.segments))
            self.segments.append(numbered)
            yield numbered
        if any(chain.budget.is_exceeded for chain in chains):
            self.warnings.append(EXCEEDED)
        if self.on_progress is not None:
            self.on_progress(self.recording.duration, self.recording.duration)

    def transcript(self) -> Transcript:
        """The transcript of all segments so far: complete once the iteration has ended."""
        tokens = [token for segment in self.segments for token in segment.tokens]
        language = self.language or self.known_language() or Language("en", 0.0)
        return Transcript(
            text=self.tokenizer.decode(tokens),
            segments=tuple(self.segments),
            language=language.code,
            language_probability=language.probability,
            duration=self.recording.duration,
            task=self.options.task,
            warnings=tuple(self.warnings),
        )

    def chains(self) -> list[Chain]:
        clips = self.clips_to_decode()
        if not clips:
            return []
        is_batched = self.options.mode == "batched"
        # openai-whisper scales every window by the whole recording; batched windows must not wait for its end.
        cutter = None if is_batched else Cutter(self.recording, self.dims.n_mels)
        self.language = self.known_language() or self.detect(clips[0], cutter)
        context = ChainContext(
            recording=self.recording,
            options=self.options,
            tokenizer=self.tokenizer,
            language=self.language.code,
            n_text_ctx=self.dims.n_text_ctx,
            content_frames=self.content_frames,
            cutter=cutter,
        )
        if not is_batched:
            return [Chain(context, clips, is_first=True, keep_tail=False, on_advance=self.advance)]
        return [
            Chain(context, [clip], is_first=i == 0, keep_tail=True, on_advance=self.advance)
            for i, clip in enumerate(clips)
        ]

    def clips_to_decode(self) -> list[Clip]:
        """The requested clips; only their speech where the voice detector is on."""
        if self.recording.duration < MIN_DURATION_S:
            self.warnings.append(f"only {self.recording.duration * 1000:.0f} ms of audio: too short for speech")
            return []
        if self.recording.is_silent:
            self.warnings.append("the audio is silent: nothing to transcribe")
            return []
        if not self.clips:
            self.warnings.append("clip_timestamps lie outside the audio: nothing to transcribe")
            return []
        is_batched = self.options.mode == "batched"
        parts_by_clip = [[clip] for clip in self.clips]
        if self.options.vad or (self.options.vad is None and is_batched):
            parts_by_clip = keep_speech(self.recording, self.clips, self.options)
            if not parts_by_clip:
                self.warnings.append("the voice detector found no speech; use --no-vad to transcribe anyway")
        if is_batched:  # clip by clip: a window must not cover what lies between two of them
            parts_by_clip = [cut_to_windows(self.recording, parts) for parts in parts_by_clip]
        return [part for parts in parts_by_clip for part in parts]

    def known_language(self) -> Language | None:
        if self.options.language is not None:
            return Language(to_code(self.options.language), None)
        return None if self.tokenizer.is_multilingual else Language("en", None)

    def detect(self, clip: Clip, cutter: Cutter | None) -> Language:
        """From the first 30 s, as openai-whisper does; with the voice detector, from the first window instead."""
        if cutter is None:
            audio = cut_padded(self.recording, clip.start, clip.stop - clip.start)
        elif self.options.vad:
            audio = cutter.cut(clip.start, min(WINDOW_MEL_FRAMES, clip.stop - clip.start))
        else:
            audio = cutter.first_window()
        languages = detect_in(self.engine, audio, self.caller)
        return Language(languages.best, languages.probabilities[languages.best])

    def advance(self, n_frames: int) -> None:
        self.done_frames += n_frames

    def report_progress(self) -> None:
        if self.on_progress is not None:
            duration_s = self.recording.duration
            self.on_progress(duration_s * self.done_frames / self.total_frames, duration_s)


def detect_language(engine: AnyEngine, recording: Recording, n_mels: int) -> Languages:
    """From the first 30 s of a recording."""
    return detect_in(engine, Cutter(recording, n_mels).first_window())


def detect_in(engine: AnyEngine, audio: WindowAudio, caller: Caller | None = None) -> Languages:
    return engine.submit(Window(audio, DetectLanguageParams()), caller).result()
