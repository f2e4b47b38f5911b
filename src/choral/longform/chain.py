"""Chains of windows: each window starts where the one before ended, and may get its text as a prompt.

`sequential` long form is one chain over the recording; `batched` is many short ones. A `Chain` is a generator that
yields windows and is sent their results: it holds no thread and knows no engine; `run_chains` runs it on one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from choral.audio.constants import MEL_FRAMES_PER_SECOND, WINDOW_MEL_FRAMES
from choral.audio.recording import Recording
from choral.engine.window import DecodeParams, WindowAudio
from choral.longform.chain_types import Accepted, Attempt, ChainContext, Steps, WindowRange
from choral.longform.compute_budget import ComputeBudget
from choral.longform.cuts import Clip, intersect, quietest_frame
from choral.longform.fallback import decode_with_fallback, is_repetitive, is_silence, needs_fallback
from choral.longform.hallucination import HallucinationFilter
from choral.longform.hotwords import hotword_trie
from choral.longform.invented import drop_invented, drops_invented
from choral.longform.language_runs import LanguageRun, find_runs
from choral.longform.missed_speech import add_missed
from choral.longform.prompts import Prompts
from choral.longform.segments import Splitter
from choral.longform.words import add_words, last_word_end
from choral.transcript import Segment

MIN_HALVED_FRAMES = 10 * MEL_FRAMES_PER_SECOND  # shorter windows with repetitive text get a higher temperature


class Chain:
    """Decodes its clips in order. `segments` grows as segments become final; `seek` is the current mel frame.

    `on_advance` gets the number of mel frames after each window.
    """

    def __init__(
        self,
        context: ChainContext,
        clips: Sequence[Clip],
        *,
        is_first: bool,
        keep_tail: bool,
        speech: Sequence[Clip] = (),
        on_advance: Callable[[int], None] | None = None,
    ) -> None:
        """`speech` of the clips must have text: what is missed is decoded again."""
        self.context, self.clips, self.keep_tail, self.on_advance = context, clips, keep_tail, on_advance
        self.speech = speech
        self.budget = ComputeBudget(sum(clip.stop - clip.start for clip in clips))
        self.prompts = Prompts(context.options, context.tokenizer, context.n_text_ctx, has_prefix=is_first)
        self.segments: list[Segment] = []
        self.runs: list[LanguageRun] = []  # of the current window, with `multilingual`
        self.seek = clips[0].start
        self.last_speech_s = 0.0

    def run(self) -> Steps[None]:
        for clip in self.clips:
            self.seek = clip.start
            while self.seek < clip.stop:
                window = WindowRange(self.seek, min(WINDOW_MEL_FRAMES, clip.stop - self.seek))
                if self.context.options.multilingual:
                    window = yield from self.in_one_language(window, clip)
                yield from self.window(window)
                self.seek = max(self.seek, window.seek + 1)  # the text may give a time that does not advance
                if self.on_advance is not None:
                    self.on_advance(min(self.seek, clip.stop) - window.seek)

    def in_one_language(self, window: WindowRange, clip: Clip) -> Steps[WindowRange]:
        """The first part of the window that is in one language, which becomes that of the context."""
        while self.runs and self.runs[0].stop <= window.seek:
            self.runs.pop(0)
        is_cut = len(self.runs) == 1 and self.runs[0].stop < clip.stop  # not by a pause: it may go on
        if not self.runs or is_cut:
            self.runs = yield from find_runs(window, self.context)
        run = self.runs[0]
        if run.language != self.context.language:
            self.context = replace(self.context, language=run.language)
            if self.segments:
                self.prompts.forget()
        return WindowRange(window.seek, min(window.stop, run.stop) - window.seek)

    def window(self, window: WindowRange) -> Steps[None]:
        """Decodes one window, adds its segments, and moves `seek`."""
        context, options = self.context, self.context.options
        audio = context.cut(window)
        self.budget.count_window()
        can_halve = self.keep_tail and window.n_frames > MIN_HALVED_FRAMES and not self.budget.needs_whole_windows
        attempt = yield from decode_with_fallback(
            audio, self.decode_params(), options, context.tokenizer, self.budget, return_repetitive=can_halve
        )
        if can_halve and is_repetitive(attempt, options) and needs_fallback(attempt, options):
            yield from self.window(first_half(window, context.recording))
            return
        if is_silence(attempt, options):
            self.seek = window.stop
            return
        accepted = yield from self.accept(attempt, window, audio)
        if drops_invented(options):
            accepted = drop_invented(accepted, attempt, window, context)
        is_done = self.budget.needs_whole_windows or self.is_silent(Clip(accepted.next_seek, window.stop))
        self.seek = max(accepted.next_seek, window.stop if is_done else 0)
        if accepted.is_discarded:
            return
        segments = [segment for segment in accepted.segments if not is_empty(segment)]
        [speech] = intersect([Clip(window.seek, self.seek)], self.speech)
        if not options.timestamps and not options.word_timestamps:
            segments = [within(segment, speech) for segment in segments]
        segments = yield from add_missed(segments, window, audio, speech, context, self.decode_missed)
        if options.multilingual:
            segments = [replace(segment, language=context.language) for segment in segments]
        self.segments += segments
        self.prompts.remember(segments, attempt.temperature)

    def is_silent(self, rest: Clip) -> bool:
        """Whether nobody speaks in the rest of a window whose text ends early; only known in batched mode."""
        [speech] = intersect([rest], self.speech)
        return self.keep_tail and bool(self.speech) and not speech

    def decode_missed(self, window: WindowRange, audio: WindowAudio) -> Steps[tuple[Segment, ...]]:
        """The segments of speech that has no text; none if they are improbable at the first temperature."""
        context, options = self.context, self.context.options
        self.budget.count_window()
        if self.budget.needs_whole_windows:
            return ()
        params = replace(self.decode_params()[0], prefix=(), timestamps=options.timestamps)
        attempt = yield from decode_with_fallback(audio, [params], options, context.tokenizer, self.budget)
        threshold = options.no_speech_threshold
        if needs_fallback(attempt, options) or (threshold is not None and attempt.no_speech_prob > threshold):
            return ()
        segments = Splitter(attempt, window, context.tokenizer, keep_tail=True).split().segments
        if options.word_timestamps:
            segments = yield from add_words(segments, window, audio, context, window.start_s)
        return tuple(segment for segment in segments if not is_empty(segment))

    def decode_params(self) -> list[DecodeParams]:
        """The decoding parameters of the next window, one for each temperature."""
        options, tokenizer = self.context.options, self.context.tokenizer
        params = DecodeParams(
            prompt=self.prompts.prompt(),
            prefix=self.prompts.prefix,
            language=self.context.language,
            task=options.task,
            # A timestamp must come first: after a prefix it ends a segment, and mostly the text, as in openai-whisper.
            timestamps=options.timestamps and not self.prompts.prefix,
            patience=options.patience,
            length_penalty=options.length_penalty,
            max_tokens=options.max_tokens,
            suppress_tokens=tokenizer.suppressed(options.suppress_tokens),
            suppress_blank=options.suppress_blank,
            max_initial_timestamp=options.max_initial_timestamp,
            token_logprobs=options.token_logprobs,
            seed=options.seed,
            hotwords=hotword_trie(options, tokenizer, self.context.language),
            hotword_boost=options.hotword_boost,
        )
        return [
            replace(params, temperature=t, n_candidates=options.best_of if t > 0 else options.beam_size)
            for t in options.temperatures
        ]

    def accept(self, attempt: Attempt, window: WindowRange, audio: WindowAudio) -> Steps[Accepted]:
        """The segments of a window; with words and without hallucinations, if the options request it."""
        options = self.context.options
        keep_tail = self.keep_tail or self.budget.needs_whole_windows
        split = Splitter(attempt, window, self.context.tokenizer, keep_tail=keep_tail).split()
        if not options.word_timestamps:
            return Accepted(split.segments, split.next_seek)
        segments = yield from add_words(split.segments, window, audio, self.context, self.last_speech_s)
        next_seek = split.next_seek
        end_s = last_word_end(segments)
        if not split.is_closed and end_s is not None and end_s > window.start_s:
            next_seek = round(end_s * MEL_FRAMES_PER_SECOND)
        accepted = Accepted(segments, next_seek)
        if options.hallucination_silence_threshold is not None:
            hallucinations = HallucinationFilter(
                window=window,
                threshold_s=options.hallucination_silence_threshold,
                recording=self.context.recording,
                last_speech_s=self.last_speech_s,
            )
            accepted = hallucinations.apply(segments, next_seek, is_closed=split.is_closed)
        end_s = last_word_end(accepted.segments)
        if end_s is not None and not accepted.is_discarded:
            self.last_speech_s = end_s
        return accepted


def first_half(window: WindowRange, recording: Recording) -> WindowRange:
    """Repetitive text is a loop, or somebody repeats himself: either way, halves of the window are easier."""
    third = window.n_frames // 3
    return WindowRange(window.seek, quietest_frame(recording, window.seek + third, window.stop - third) - window.seek)


def within(segment: Segment, speech: Sequence[Clip]) -> Segment:
    """A segment without timestamps is as long as its window: it gets the times of what is heard there."""
    if not speech:
        return segment
    start_s, end_s = speech[0].start / MEL_FRAMES_PER_SECOND, speech[-1].stop / MEL_FRAMES_PER_SECOND
    return replace(segment, start=max(segment.start, start_s), end=min(segment.end, end_s))


def is_empty(segment: Segment) -> bool:
    return segment.start == segment.end or not segment.text.strip()
