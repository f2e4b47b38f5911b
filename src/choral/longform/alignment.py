"""Alignment of a known text with audio of any length: the start and end of each word.

The audio is transcribed with words, and the text is matched to what was heard (`text_match`). Words that match have the
times of the transcript; those between them are aligned by themselves (`realign`). Text without audio has no times (NaN,
null in JSON), and audio without text is skipped.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from itertools import accumulate, pairwise

from choral.audio.constants import MEL_FRAMES_PER_SECOND
from choral.audio.recording import Recording
from choral.engine.window import Aligned, Caller, TokenTimes
from choral.errors import UsageError
from choral.longform.fallback import compression_ratio
from choral.longform.known_text import TextWord, normalised, split_sentences, words_of
from choral.longform.progress_reporter import OnProgress
from choral.longform.realign import GapWindow, Realigner
from choral.longform.text_match import Pair, longest_increasing, match_words
from choral.longform.transcriber import Transcriber, Transcription
from choral.model.languages import to_code
from choral.options import TEMPERATURES, Priority, TranscribeOptions
from choral.transcript import Segment, Transcript, Word

MAX_ALIGNED_CHARACTERS = 5_000_000  # longer than any book
MAX_IN_FLIGHT = 64
MIN_MATCHED = 0.1  # of the words of the text or of the audio, whichever are fewer
TRANSCRIBED_SHARE = 0.9  # of the progress
QUICK_TEMPERATURES = (0.0, 0.4)


def start_alignment(
    transcriber: Transcriber,
    recording: Recording,
    text: str,
    options: TranscribeOptions,
    on_progress: OnProgress | None = None,
    priority: Priority = "interactive",
) -> Alignment:
    """Checks text and options; iterating the alignment does the work."""
    check_alignment(text, options)
    if options.language is not None:
        transcriber.tokenizer.language_token(to_code(options.language))
    if options.temperature == TEMPERATURES:  # not chosen: what was heard only has to be good enough to be matched
        options = replace(options, temperature=QUICK_TEMPERATURES, best_of=1)
    options = replace(options, mode="batched", word_timestamps=True, timestamps=True)
    return Alignment(transcriber, recording, text, options, on_progress, Caller(priority))


def check_alignment(text: str, options: TranscribeOptions) -> None:
    """Raise `UsageError` for what can never be aligned, whatever the model and the audio are."""
    check_text(text)
    if options.task != "transcribe":
        raise UsageError("task: a text can be aligned only with speech in its own language, not with a translation")
    if options.channels != "mix":
        raise UsageError("channels: a text is aligned with all channels together")


def check_text(text: object) -> None:
    if not isinstance(text, str):
        raise UsageError(f"the text to align is a {type(text).__name__}; it must be a string")
    if len(text) > MAX_ALIGNED_CHARACTERS:
        raise UsageError(
            f"the text has {len(text):,} characters, and at most {MAX_ALIGNED_CHARACTERS:,} can be aligned: cut it"
        )
    if not normalised(text):
        raise UsageError("the text to align is empty: it has no letters or digits")


class Alignment:
    """One request in progress, with the interface of `Transcription`; segments are the sentences of the text."""

    def __init__(
        self,
        transcriber: Transcriber,
        recording: Recording,
        text: str,
        options: TranscribeOptions,
        on_progress: OnProgress | None,
        caller: Caller,
    ) -> None:
        self._engine, self._tokenizer, self._dims = transcriber.engine, transcriber.tokenizer, transcriber.dims
        self._recording, self._text, self._options = recording, text, options
        self._on_progress, self._caller = on_progress, caller
        self._is_cancelled = False
        self._transcription = Transcription(transcriber, recording, options, self._report_transcribed, caller)
        self._segments: tuple[Segment, ...] = ()
        self._warnings: tuple[str, ...] = ()

    def cancel(self) -> None:
        """From any thread: iteration raises `CancelledError`."""
        self._is_cancelled = True
        self._transcription.cancel()

    def __iter__(self) -> Iterator[Segment]:
        for _ in self._transcription:
            pass
        heard = [word for word in self._transcription.transcript().words if normalised(word.text)]
        sentences = self._sentences()
        words = [word for sentence in sentences for word in sentence]
        starts = set(accumulate(map(len, sentences), initial=0))
        pairs = match_words([word.key for word in words], [normalised(word.text) for word in heard], starts)
        require_match(len(pairs), len(words), len(heard))
        times = {i: replace(heard[j], text=words[i].text) for i, j in pairs}
        times |= self._realigned(words, heard, pairs)
        self._segments = tuple(to_segments(sentences, in_order(words, times)))
        n_missing = len(words) - len(times)
        if n_missing:
            self._warnings = (f"{n_missing:,} of {len(words):,} words of the text were not found in the audio",)
        self._report(self._recording.duration, self._recording.duration)
        yield from self._segments

    def transcript(self) -> Transcript:
        transcript = self._transcription.transcript()
        return replace(
            transcript,
            text="".join(segment.text for segment in self._segments),
            segments=self._segments,
            warnings=(*transcript.warnings, *self._warnings),
        )

    def _sentences(self) -> list[list[TextWord]]:
        language = self._transcription.transcript().language
        split = (words_of(each, self._tokenizer, language, self._options) for each in split_sentences(self._text))
        return [words for words in split if words]

    def _realigned(self, words: Sequence[TextWord], heard: Sequence[Word], pairs: Sequence[Pair]) -> dict[int, Word]:
        language = self._transcription.transcript().language
        realigner = Realigner(self._recording, self._tokenizer, language, self._dims.n_text_ctx, words, heard, pairs)
        found: dict[int, Word] = {}
        in_flight: deque[tuple[GapWindow, Future[Aligned | TokenTimes]]] = deque()
        for window in [*realigner.windows(), None]:
            while in_flight and (window is None or len(in_flight) >= MAX_IN_FLIGHT):
                done, future = in_flight.popleft()
                found |= realigner.timed(done, future.result())
                self._report_realigned(heard[done.heard[-1]].end)
            if window is not None and (request := realigner.request(window)) is not None:
                if self._is_cancelled:
                    raise CancelledError
                in_flight.append((window, self._engine.submit(request, self._caller)))
        return found

    def _report_transcribed(self, done_s: float, total_s: float) -> None:
        self._report(TRANSCRIBED_SHARE * done_s, total_s)

    def _report_realigned(self, until_s: float) -> None:
        duration_s = self._recording.duration
        share = TRANSCRIBED_SHARE + (1 - TRANSCRIBED_SHARE) * min(until_s / duration_s, 0.99)
        self._report(share * duration_s, duration_s)

    def _report(self, done_s: float, total_s: float) -> None:
        if self._on_progress is not None:
            self._on_progress(done_s, total_s)


def require_match(n_matched: int, n_words: int, n_heard: int) -> None:
    """Raises if text and audio have next to nothing in common. Without speech, no word has a time."""
    if n_heard and n_matched < max(1, MIN_MATCHED * min(n_words, n_heard)):
        raise UsageError(
            f"the text does not match the audio: {n_matched:,} of its {n_words:,} words were found among the "
            f"{n_heard:,} that are spoken. Check that it is the right text, in the language that is spoken"
        )


def in_order(words: Sequence[TextWord], times: dict[int, Word]) -> list[Word]:
    """Every word of the text; each ends before the next one starts, and those without audio have no times.

    Where times are not in order, as few words as possible are moved: one that is far off must not push the others.
    """
    timed = sorted(times)
    kept = {i for i, _ in longest_increasing([(i, round(1000 * times[i].start)) for i in timed])}
    for i, k in reversed(list(pairwise(timed))):
        if i not in kept and times[i].start > times[k].start:
            times[i] = replace(times[i], start=times[k].start)
    for i, k in pairwise(timed):
        before, after = times[i], times[k]
        start = max(before.start, after.start)
        times[i] = replace(before, end=max(before.start, min(before.end, start)))
        times[k] = replace(after, start=start, end=max(start, after.end))
    return [times.get(i) or Word(word.text, math.nan, math.nan, math.nan) for i, word in enumerate(words)]


def to_segments(sentences: Sequence[Sequence[TextWord]], words: Sequence[Word]) -> Iterator[Segment]:
    n_taken = 0
    for number, sentence in enumerate(sentences):
        of_sentence = tuple(words[n_taken : n_taken + len(sentence)])
        n_taken += len(sentence)
        timed = [word for word in of_sentence if word.is_timed]
        text = "".join(word.text for word in of_sentence)
        logprobs = [math.log(max(word.probability, 1e-9)) for word in timed]
        yield Segment(
            id=number,
            seek=round(timed[0].start * MEL_FRAMES_PER_SECOND) if timed else 0,
            start=timed[0].start if timed else math.nan,
            end=timed[-1].end if timed else math.nan,
            text=text,
            tokens=tuple(token for word in sentence for token in word.tokens),
            temperature=0.0,
            avg_logprob=sum(logprobs) / len(logprobs) if timed else math.nan,
            compression_ratio=compression_ratio(text),
            no_speech_prob=0.0,
            words=of_sentence,
        )
