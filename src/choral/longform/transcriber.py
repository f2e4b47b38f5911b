"""Turns a recording into a transcript: finds speech and language, builds the chains, collects the segments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from choral.audio.constants import SAMPLE_RATE, WINDOW_MEL_FRAMES, WINDOW_SAMPLES
from choral.audio.loudness import normalize_loudness
from choral.audio.recording import Recording
from choral.engine.any_engine import AnyEngine
from choral.engine.window import Caller, DetectLanguageParams, Languages, Window, WindowAudio
from choral.errors import UsageError
from choral.longform.chain import Chain
from choral.longform.chain_types import ChainContext
from choral.longform.compute_budget import EXCEEDED, MIN_CLIPS, ComputeBudget, require_clips
from choral.longform.cuts import NO_END, Clip, Cutter, available_frames, clips_from, cut_padded, n_mel_frames
from choral.longform.hotwords import PROMPT_ONLY, without_boost
from choral.longform.lookahead import Lookahead
from choral.longform.progress_reporter import OnProgress, ProgressReporter
from choral.longform.replacements import Replacements
from choral.longform.run_chains import ChainRunner
from choral.longform.speech_windows import heard_in, speech_in, windows_of
from choral.model.dims import ModelDims
from choral.model.languages import to_code
from choral.model.tokenizer import Tokenizer
from choral.options import Mode, Priority, TranscribeOptions
from choral.transcript import Segment, Transcript

if TYPE_CHECKING:
    from choral.longform.channels import ChannelsTranscription
    from choral.longform.diarized import DiarizedTranscription

MIN_DURATION_S = 0.1
MIN_SAMPLES = round(MIN_DURATION_S * SAMPLE_RATE)

AnyTranscription: TypeAlias = "Transcription | ChannelsTranscription | DiarizedTranscription"


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
    ) -> AnyTranscription:
        """Checks the options against the model; iterating the transcription does the work."""
        for name in (options.language, *options.languages):
            if name is not None:
                self.tokenizer.language_token(to_code(name))
        if (options.multilingual or options.languages) and not self.tokenizer.is_multilingual:
            raise UsageError("this model is English-only: languages and multilingual need a multilingual one")
        if options.channels == "split":
            from choral.longform.channels import ChannelsTranscription

            return ChannelsTranscription(self, recording, options, on_progress, Caller(priority))
        if options.diarize:
            from choral.longform.diarized import DiarizedTranscription

            return DiarizedTranscription(self, recording, options, on_progress, Caller(priority))
        return Transcription(self, recording, options, on_progress, Caller(priority))


class Transcription:
    """One request in progress. Iterate it for segments as they become final; then call `transcript`.

    The chains are found on a thread of their own, while the recording may still be decoded.
    """

    def __init__(
        self,
        transcriber: Transcriber,
        recording: Recording,
        options: TranscribeOptions,
        on_progress: OnProgress | None,
        caller: Caller,
    ) -> None:
        self.engine, self.tokenizer = transcriber.engine, transcriber.tokenizer
        self.dims, self.recording = transcriber.dims, recording
        self.options = without_boost(options, self.engine.name)
        self.caller = caller
        self.progress = ProgressReporter(recording, on_progress)
        self.clips = clips_from(options.clip_timestamps, NO_END)
        if len(self.clips) > MIN_CLIPS:  # only then does the duration matter
            n_frames = n_mel_frames(recording)
            require_clips(len(clips_from(options.clip_timestamps, n_frames)), n_frames)
        self.replacements = Replacements(terms) if (terms := options.replacement_terms) else None
        self.language: Language | None = None
        self.segments: list[Segment] = []
        self.warnings = [PROMPT_ONLY] if self.options is not options else []
        self.budgets: list[ComputeBudget] = []
        is_short = recording.is_complete and recording.n_samples <= WINDOW_SAMPLES
        self._chains = Lookahead(self.chains(), name="choral-chains", on_thread=not is_short)

    def cancel(self) -> None:
        """From any thread: the windows leave before the engine's next step, and iteration raises `CancelledError`."""
        self._chains.close()
        self.engine.cancel_all(self.caller)

    def __iter__(self) -> Iterator[Segment]:
        runner = ChainRunner(self.engine, self.caller, self._chains, self.progress.report)
        for segment in runner.segments():
            final = segment if self.replacements is None else self.replacements.apply(segment)
            numbered = replace(final, id=len(self.segments))
            self.segments.append(numbered)
            yield numbered
        if any(budget.is_exceeded for budget in self.budgets):
            self.warnings.append(EXCEEDED)
        self.progress.finish()

    def transcript(self) -> Transcript:
        """The transcript of all segments so far: complete once the iteration has ended."""
        tokens = [token for segment in self.segments for token in segment.tokens]
        text = self.tokenizer.decode(tokens)
        if self.replacements is not None:
            text = "".join(segment.text for segment in self.segments)
        language = self.main_language() or self.known_language() or Language("en", 0.0)
        return Transcript(
            text=text,
            segments=tuple(self.segments),
            language=language.code,
            language_probability=language.probability,
            duration=self.recording.duration,
            task=self.options.task,
            warnings=(*self.recording.warnings, *self.warnings),
        )

    def chains(self) -> Iterator[Chain]:
        """Every chain as soon as it is known; waits for audio where it must."""
        if self.options.loudness != "off":
            self.recording = normalize_loudness(self.recording, self.options.loudness, self.options.loudness_target)
        if (reason := self.reason_for_no_text()) is not None:
            self.warnings.append(reason)
            return
        if self.options.mode == "auto":
            self.options = replace(self.options, mode=self.best_mode())
        found = self.batched_chains() if self.options.mode == "batched" else self.sequential_chains()
        for chain in found:
            self.budgets.append(chain.budget)
            self.progress.add(chain.clips)
            yield chain
        if not self.budgets:
            self.warnings.append("the voice detector found no speech; use --no-vad to transcribe anyway")
        _ = self.recording.summary  # audio after the last clip can be damaged too
        self.progress.all_found()

    def best_mode(self) -> Mode:
        """Batched mode needs several windows to be faster, and the voice detector to be as good (docs/log.md)."""
        is_long = self.recording.available(WINDOW_SAMPLES + 1) > WINDOW_SAMPLES
        return "batched" if is_long and self.options.vad is not False else "sequential"

    def reason_for_no_text(self) -> str | None:
        if self.recording.available(MIN_SAMPLES) < MIN_SAMPLES:
            return f"only {self.recording.duration * 1000:.0f} ms of audio: too short for speech"
        if self.recording.is_silent:
            return "the audio is silent: nothing to transcribe"
        if not self.clips or available_frames(self.recording, self.clips[0].start + 1) <= self.clips[0].start:
            return "clip_timestamps lie outside the audio: nothing to transcribe"
        return None

    def batched_chains(self) -> Iterator[Chain]:
        """One for each window, which is scaled by itself: it must not wait for the end of the recording."""
        windows = windows_of(self.recording, self.clips, self.options, only_speech=self.options.vad is not False)
        retries = self.options.retry_missed_speech
        if retries is None:  # a limit on tokens leaves speech without text, and the words of a translation move
            retries = self.options.max_tokens is None and self.options.task == "transcribe"
        context = None
        for window in windows:
            is_first = context is None
            context = context or self.context(window, cutter=None)
            yield Chain(
                context,
                [window],
                is_first=is_first,
                keep_tail=True,
                speech=window.speech if retries else (),
                on_advance=self.progress.advance,
            )

    def sequential_chains(self) -> Iterator[Chain]:
        """One over all clips, scaled by the whole recording as in openai-whisper."""
        cutter = Cutter(self.recording, self.dims.n_mels)
        if not cutter.fits_window:
            _ = cutter.peak  # waits for the end of the recording: here, where it can be cancelled
        clips = clips_from(self.options.clip_timestamps, n_mel_frames(self.recording))
        if self.options.vad:
            clips = speech_in(self.recording, clips, self.options)
        if clips:
            context = self.context(clips[0], cutter)
            speech = heard_in(self.recording, self.options) if self.options.retry_missed_speech else ()
            yield Chain(context, clips, is_first=True, keep_tail=False, speech=speech, on_advance=self.progress.advance)

    def main_language(self) -> Language | None:
        """The language of the recording; with `multilingual`, the one with the longest segments together."""
        seconds: dict[str, float] = {}
        for segment in self.segments:
            if segment.language is not None:
                seconds[segment.language] = seconds.get(segment.language, 0.0) + segment.end - segment.start
        return Language(max(seconds, key=lambda code: seconds[code]), None) if seconds else self.language

    def context(self, first: Clip, cutter: Cutter | None) -> ChainContext:
        if self.options.multilingual:  # each chain finds its languages
            self.language = Language("en", None)
        else:
            self.language = self.known_language() or self.detect(first, cutter)
        return ChainContext(
            recording=self.recording,
            options=self.options,
            tokenizer=self.tokenizer,
            language=self.language.code,
            n_text_ctx=self.dims.n_text_ctx,
            cutter=cutter,
        )

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
        allowed = {to_code(name) for name in self.options.languages} or languages.probabilities.keys()
        best = max(allowed, key=lambda code: languages.probabilities[code])
        return Language(best, languages.probabilities[best])


def detect_language(engine: AnyEngine, recording: Recording, n_mels: int) -> Languages:
    """From the first 30 s of a recording."""
    return detect_in(engine, Cutter(recording, n_mels).first_window())


def detect_in(engine: AnyEngine, audio: WindowAudio, caller: Caller | None = None) -> Languages:
    return engine.submit(Window(audio, DetectLanguageParams()), caller).result()
