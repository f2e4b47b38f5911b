"""One chain of windows over a recording: each starts where the one before ended, and may be told its text.

`sequential` long form is one chain over everything; `batched` is many short ones. The logic is the same: a chain is
a generator that yields windows and is sent their results, so who runs it, and beside how many others, is not its
concern.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from choral.audio.constants import MEL_FRAMES_PER_SECOND, WINDOW_MEL_FRAMES
from choral.audio.recording import Recording
from choral.engine.window import AlignParams, DecodeParams, Window, WindowAudio
from choral.longform.cuts import Clip, Cutter, cut_alone
from choral.longform.fallback import Attempt, Steps, ask, decode_with_fallback, is_silence
from choral.longform.hallucination import Kept, SilenceSkipper
from choral.longform.prompts import Prompts
from choral.longform.segments import Splitter, WindowPlace
from choral.longform.words import (
    TypicalWord,
    agree_on_borders,
    as_words,
    find_timings,
    last_word_end,
    merge_punctuation,
    shorten_after_pause,
    shorten_at_sentence_ends,
    take_words,
)
from choral.model.tokenizer import Tokenizer
from choral.types import Segment, TranscribeOptions


@dataclass(frozen=True)
class Request:
    """What all chains over one recording share."""

    recording: Recording
    options: TranscribeOptions
    tokenizer: Tokenizer
    language: str
    n_text_ctx: int
    content_frames: int
    cutter: Cutter | None  # None: each window stands alone

    def cut(self, place: WindowPlace) -> WindowAudio:
        if self.cutter is None:
            return cut_alone(self.recording, place.seek, place.n_frames)
        return self.cutter.cut(place.seek, place.n_frames)


class Chain:
    """Works through its clips. `segments` grows, in order, as segments become final; `seek` is how far it got."""

    def __init__(self, request: Request, clips: Sequence[Clip], *, is_first: bool, keep_tail: bool) -> None:
        self.request, self.clips, self.keep_tail = request, clips, keep_tail
        self.prompts = Prompts(request.options, request.tokenizer, request.n_text_ctx, has_prefix=is_first)
        self.segments: list[Segment] = []
        self.seek = clips[0].start
        self.last_speech_s = 0.0

    def run(self) -> Steps[None]:
        for clip in self.clips:
            self.seek = clip.start
            while self.seek < clip.stop:
                place = WindowPlace(self.seek, min(WINDOW_MEL_FRAMES, clip.stop - self.seek))
                yield from self.window(place)

    def window(self, place: WindowPlace) -> Steps[None]:
        """Decodes one window, keeps its segments, and moves on."""
        request = self.request
        audio = request.cut(place)
        attempt = yield from decode_with_fallback(audio, self.works(), request.options, request.tokenizer)
        if is_silence(attempt, request.options):
            self.seek = place.stop
            return
        kept = yield from self.keep(attempt, place, audio)
        self.seek = kept.next_seek
        if kept.is_discarded:
            return
        segments = [segment for segment in kept.segments if not is_empty(segment)]
        self.segments += segments
        self.prompts.remember(segments, attempt.temperature)

    def works(self) -> list[DecodeParams]:
        """The decoding of the next window, once for each temperature."""
        options, tokenizer = self.request.options, self.request.tokenizer
        params = DecodeParams(
            prompt=self.prompts.prompt(),
            prefix=self.prompts.prefix(),
            language=self.request.language,
            task=options.task,
            timestamps=options.timestamps,
            patience=options.patience,
            length_penalty=options.length_penalty,
            max_tokens=options.max_tokens,
            suppress_tokens=tokenizer.suppressed(options.suppress_tokens),
            suppress_blank=options.suppress_blank,
            max_initial_timestamp=options.max_initial_timestamp,
            token_logprobs=options.token_logprobs,
            seed=options.seed,
        )
        return [
            replace(params, temperature=t, n_candidates=options.best_of if t > 0 else options.beam_size)
            for t in options.temperatures
        ]

    def keep(self, attempt: Attempt, place: WindowPlace, audio: WindowAudio) -> Steps[Kept]:
        """The segments of a window, with words and without invented ones where that was asked for."""
        options = self.request.options
        split = Splitter(attempt, place, self.request.tokenizer, keep_tail=self.keep_tail).split()
        if not options.word_timestamps:
            return Kept(split.segments, split.next_seek)
        segments = yield from self.with_words(split.segments, place, audio)
        next_seek = split.next_seek
        end_s = last_word_end(segments)
        if not split.is_closed and end_s is not None and end_s > place.start_s:
            next_seek = round(end_s * MEL_FRAMES_PER_SECOND)
        kept = Kept(segments, next_seek)
        if options.hallucination_silence_threshold is not None:
            kept = self.skipper(place, options.hallucination_silence_threshold).skip(
                segments, next_seek, is_closed=split.is_closed
            )
        end_s = last_word_end(kept.segments)
        if end_s is not None and not kept.is_discarded:
            self.last_speech_s = end_s
        return kept

    def skipper(self, place: WindowPlace, threshold_s: float) -> SilenceSkipper:
        return SilenceSkipper(
            place=place,
            threshold_s=threshold_s,
            window_end_s=(place.seek + WINDOW_MEL_FRAMES) / MEL_FRAMES_PER_SECOND,
            content_frames=self.request.content_frames,
            last_speech_s=self.last_speech_s,
        )

    def with_words(
        self, segments: tuple[Segment, ...], place: WindowPlace, audio: WindowAudio
    ) -> Steps[tuple[Segment, ...]]:
        request, tokenizer = self.request, self.request.tokenizer
        texts = [[token for token in segment.tokens if token < tokenizer.eot] for segment in segments]
        tokens = [token for text in texts for token in text]
        words, word_tokens = tokenizer.split_to_words([*tokens, tokenizer.eot], request.language)
        timings = []
        if len(words) > 1:  # the last one is the end of text
            n_frames = place.n_frames // 2
            params = AlignParams(
                text_tokens=tuple(tokens), n_frames=n_frames, language=request.language, task=request.options.task
            )
            aligned = yield from ask(Window(audio, params))
            timings = find_timings(aligned, words[:-1], word_tokens[:-1], n_frames)
        typical = TypicalWord.of(timings)
        shorten_at_sentence_ends(timings, typical)
        merge_punctuation(timings, request.options)

        last_speech_s = self.last_speech_s
        result = []
        for segment, text in zip(segments, texts, strict=True):
            own = take_words(timings, len(text), place.start_s)
            if own:
                shorten_after_pause(own, last_speech_s, typical)
                start, end = agree_on_borders(own, segment.start, segment.end, typical)
                segment, last_speech_s = replace(segment, start=start, end=end), end
            result.append(replace(segment, words=as_words(own)))
        return tuple(result)


def is_empty(segment: Segment) -> bool:
    return segment.start == segment.end or not segment.text.strip()
