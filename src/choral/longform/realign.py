"""Times of words that are in a known text but were heard otherwise, or not at all.

Such words lie in a gap between words whose times are known. A window around the gap is aligned with what is spoken in
it: the words of the text, and what was heard where the text has nothing. Gaps that are too different from what was
heard have no audio, or another text; their words get no times, as do words that the model finds too improbable, and
passages that would have to be spoken too fast.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from choral.audio.constants import MEL_FRAMES_PER_SECOND, WINDOW_S
from choral.audio.recording import Recording
from choral.engine.window import Aligned, AlignParams, TokenTimes, Window
from choral.longform.cuts import available_frames, cut_padded
from choral.longform.known_text import TextWord
from choral.longform.text_match import MatchGap, Pair, gaps
from choral.longform.words import find_timings
from choral.model.tokenizer import Tokenizer
from choral.transcript import Word

N_SPECIAL_TOKENS = 8  # reserved for start of transcript, language, task, …
MAX_SPAN_S = WINDOW_S - 2.0
CONTEXT_S = 4.0  # of words on each side of a gap
MARGIN_S = 0.1
MAX_DROPPED_WORDS = 3  # that the model may leave out where it heard everything else
MIN_WORD_S = 0.2  # of a longer passage that was not heard, for each word
MAX_LENGTH_RATIO = 3.0  # of what is in the text to what was heard, in letters
MIN_PROBABILITY = 0.01  # the geometric mean of a gap's words
MIN_LETTER_S = 0.03  # of a longer passage: twice as fast as most people speak


@dataclass
class GapWindow:
    """A window with one or more gaps: a range of heard words."""

    heard: range
    gaps: list[MatchGap] = field(default_factory=list)


@dataclass(frozen=True)
class AlignedWord:
    """A word of the aligned text, and its number in the known text if it is in a gap."""

    text: str
    tokens: tuple[int, ...]
    number: int | None


class Realigner:
    def __init__(
        self,
        recording: Recording,
        tokenizer: Tokenizer,
        language: str,
        n_text_ctx: int,
        words: Sequence[TextWord],
        heard: Sequence[Word],
        pairs: Sequence[Pair],
    ) -> None:
        self._recording, self._tokenizer, self._language = recording, tokenizer, language
        self._max_tokens = n_text_ctx - N_SPECIAL_TOKENS
        self._words, self._heard, self._pairs = words, heard, pairs
        self._text_of_heard = {j: i for i, j in pairs}

    def windows(self) -> Iterator[GapWindow]:
        """Gaps that are near to each other share a window."""
        window: GapWindow | None = None
        for gap in gaps(self._pairs, len(self._words), len(self._heard)):
            if not gap.text or not self.is_plausible(gap):
                continue
            around = self.around(gap)
            if window is not None and self.span_s(range(window.heard.start, around.stop)) <= MAX_SPAN_S:
                window = GapWindow(range(window.heard.start, around.stop), [*window.gaps, gap])
                continue
            if window is not None:
                yield window
            window = GapWindow(around, [gap]) if self.span_s(around) <= MAX_SPAN_S else None
        if window is not None:
            yield window

    def is_plausible(self, gap: MatchGap) -> bool:
        """Whether the words of the text may be what is spoken in the gap."""
        has_neighbours = gap.heard.start > 0 and gap.heard.stop < len(self._heard)
        if not gap.heard:
            if not has_neighbours:
                return False
            silence_s = self._heard[gap.heard.stop].start - self._heard[gap.heard.start - 1].end
            return len(gap.text) <= MAX_DROPPED_WORDS or silence_s >= MIN_WORD_S * len(gap.text)
        n_letters = sum(len(self._words[i].key) for i in gap.text)
        n_heard_letters = sum(len(self._heard[j].text.strip()) for j in gap.heard)
        ratio = n_letters / max(1, n_heard_letters)
        return 1 / MAX_LENGTH_RATIO <= ratio <= MAX_LENGTH_RATIO

    def around(self, gap: MatchGap) -> range:
        """The heard words of a gap with some before and after it."""
        first, last = gap.heard.start, gap.heard.stop
        start_s = self._heard[first].start if first < len(self._heard) else self._heard[-1].end
        end_s = self._heard[last - 1].end if last else self._heard[0].start
        while first and start_s - self._heard[first - 1].start <= CONTEXT_S:
            first -= 1
        while last < len(self._heard) and self._heard[last].end - end_s <= CONTEXT_S:
            last += 1
        return range(min(first, max(gap.heard.start - 1, 0)), max(last, min(gap.heard.stop + 1, len(self._heard))))

    def span_s(self, heard: range) -> float:
        return self._heard[heard[-1]].end - self._heard[heard[0]].start + 2 * MARGIN_S

    def request(self, window: GapWindow) -> Window[Aligned | TokenTimes] | None:
        """None: the text does not fit the model."""
        tokens = tuple(token for word in self.spoken(window) for token in word.tokens)
        start, n_frames = self.frames(window)
        if len(tokens) > self._max_tokens or n_frames < 2:
            return None
        params = AlignParams(text_tokens=tokens, n_frames=n_frames // 2, language=self._language, task="transcribe")
        return Window(cut_padded(self._recording, start, n_frames), params)

    def frames(self, window: GapWindow) -> tuple[int, int]:
        start_s = max(0.0, self._heard[window.heard[0]].start - MARGIN_S)
        start = math.floor(start_s * MEL_FRAMES_PER_SECOND)
        stop = math.ceil((self._heard[window.heard[-1]].end + MARGIN_S) * MEL_FRAMES_PER_SECOND)
        return start, available_frames(self._recording, stop) - start

    def spoken(self, window: GapWindow) -> Iterator[AlignedWord]:
        """All that is spoken in the window: the text in its gaps and where it matches, elsewhere what was heard."""
        at = window.heard.start
        for gap in window.gaps:
            yield from (self.known(j) for j in range(at, gap.heard.start))
            yield from (AlignedWord(self._words[i].text, self._words[i].tokens, i) for i in gap.text)
            at = gap.heard.stop
        yield from (self.known(j) for j in range(at, window.heard.stop))

    def known(self, heard: int) -> AlignedWord:
        if (i := self._text_of_heard.get(heard)) is not None:
            return AlignedWord(self._words[i].text, self._words[i].tokens, None)
        text = self._heard[heard].text
        return AlignedWord(text, tuple(self._tokenizer.encode(text)), None)

    def timed(self, window: GapWindow, aligned: Aligned | TokenTimes) -> dict[int, Word]:
        """The words of the text in the gaps of a window, by their number."""
        spoken = list(self.spoken(window))
        start, n_frames = self.frames(window)
        offset_s = start / MEL_FRAMES_PER_SECOND
        texts, tokens = [word.text for word in spoken], [list(word.tokens) for word in spoken]
        timings = find_timings(aligned, texts, tokens, n_frames // 2)
        found = {
            word.number: Word(word.text, round(offset_s + t.start, 2), round(offset_s + t.end, 2), t.probability)
            for word, t in zip(spoken, timings, strict=True)
            if word.number is not None
        }
        return {i: found[i] for gap in window.gaps if is_spoken([found[i] for i in gap.text]) for i in gap.text}


def is_spoken(words: Sequence[Word]) -> bool:
    """Whether the words of a gap fit the audio: what nobody says is improbable, or a passage squeezed into a pause."""
    probabilities = np.array([max(word.probability, 1e-9) for word in words])
    is_probable = float(np.exp(np.log(probabilities).mean())) >= MIN_PROBABILITY
    n_letters = sum(len(word.text.strip()) for word in words)
    is_slow_enough = words[-1].end - words[0].start >= MIN_LETTER_S * n_letters
    return is_probable and (is_slow_enough or len(words) <= MAX_DROPPED_WORDS)
