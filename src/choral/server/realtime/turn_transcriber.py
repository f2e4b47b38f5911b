"""What the engine is asked about a turn: hypotheses while it is spoken, and the rest of its text when it is over.

A hypothesis goes on from the text that was shown, so that never changes; what two in a row agree on is shown next. A
turn that ends before anything was shown is transcribed as a file would be. Everything here is a piece of long-form
logic: it yields windows and is sent their results, and holds no thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from choral.audio.constants import HOP_LENGTH, SAMPLE_RATE, WINDOW_MEL_FRAMES, WINDOW_S
from choral.audio.recording import Recording
from choral.audio.samples import as_float
from choral.engine.window import AlignParams, DecodeParams, DetectLanguageParams, Window, WindowAudio
from choral.longform.chain import Chain, Request
from choral.longform.cuts import Clip, Cutter, n_mel_frames
from choral.longform.fallback import (
    Attempt,
    Steps,
    ask,
    compression_ratio,
    decode_with_fallback,
    is_silence,
    judge,
    needs_another,
)
from choral.longform.transcriber import SHORTEST_S, Transcriber
from choral.longform.words import find_timings
from choral.server.realtime.agreement import agreed
from choral.server.realtime.cutting import Cut, choose_cut
from choral.server.realtime.turn import Tokens, Turn
from choral.types import TranscribeOptions

CUT_FROM_S = 20.0  # a piece of this length is cut where it can be
LONGEST_S = 28.0  # one that is longer is cut anywhere
UNSURE_S = 2.0  # at the end of what was heard: words there may go on
FRAME_SAMPLES = 2 * HOP_LENGTH

OnText = Callable[[Turn, str], None]


class TurnTranscriber:
    def __init__(self, transcriber: Transcriber, on_text: OnText) -> None:
        self._tokenizer, self._dims = transcriber.tokenizer, transcriber.dims
        self._on_text = on_text

    def more(self, turn: Turn) -> Steps[None]:
        """One hypothesis of a turn that is being spoken, and what follows from it."""
        turn.n_asked = turn.n_samples
        is_behind = turn.audio.duration_s > LONGEST_S
        samples = turn.audio.copy(0, round(LONGEST_S * SAMPLE_RATE))
        audio = _alone(samples)
        language = turn.language if turn.stable or turn.before else None
        language = language or (yield from self._language(turn, audio))
        decoded = yield from ask(Window(audio, self._work(turn, language)))
        guess = self._trusted(turn, judge(decoded, 0.0, self._tokenizer))
        common = agreed(turn.guess, guess, self._tokenizer, language) if turn.language == language else ()
        turn.guess, turn.language = guess, language
        self._settle(turn, common)
        if samples.size >= CUT_FROM_S * SAMPLE_RATE:
            yield from self._shorten(turn, audio, samples.size, is_behind=is_behind)

    def rest(self, turn: Turn) -> Steps[None]:
        """The text of a turn that is over, behind what was shown."""
        while turn.stable and turn.audio.duration_s > WINDOW_S:
            yield from self.more(turn)
        if turn.stable:
            yield from self._go_on(turn)
        else:
            yield from self._as_file(turn)

    def _go_on(self, turn: Turn) -> Steps[None]:
        assert turn.language is not None
        options = turn.hints.options
        work = self._work(turn, turn.language)
        works = [replace(work, temperature=t, n_candidates=_n_candidates(options, t)) for t in options.temperatures]
        audio = _alone(turn.audio.copy())
        attempt = yield from decode_with_fallback(audio, works, options, self._tokenizer)
        if not is_silence(attempt, options):
            self._show(turn, attempt.tokens)

    def _as_file(self, turn: Turn) -> Steps[None]:
        """The sequential algorithm; segments are shown as they become final."""
        if turn.audio.duration_s < SHORTEST_S:
            return
        with Recording.open(turn.audio.copy()) as recording:
            if recording.is_silent:
                return
            cutter = Cutter(recording, self._dims.n_mels)
            language = turn.language if turn.before else None
            language = language or (yield from self._language(turn, cutter.opening()))
            options = turn.hints.options
            if turn.before:
                options = replace(options, initial_prompt=self._tokenizer.decode(turn.before[-self._room :]))
            frames = n_mel_frames(recording)
            request = Request(recording, options, self._tokenizer, language, self._dims.n_text_ctx, frames, cutter)
            chain = Chain(request, [Clip(0, frames)], is_first=True, keep_tail=False)
            yield from self._shown(turn, chain)

    def _shown(self, turn: Turn, chain: Chain) -> Steps[None]:
        steps, result, n_shown = chain.run(), None, 0
        is_going_on = True
        while is_going_on:
            try:
                window = steps.send(result)
            except StopIteration:
                is_going_on = False
            for segment in chain.segments[n_shown:]:
                self._on_text(turn, segment.text)
            n_shown = len(chain.segments)
            if is_going_on:
                result = yield window

    def _language(self, turn: Turn, audio: WindowAudio) -> Steps[str]:
        """Told, or heard anew as long as nothing was shown: the first second says little."""
        if turn.hints.language is not None or not self._tokenizer.is_multilingual:
            return turn.hints.language or "en"
        languages = yield from ask(Window(audio, DetectLanguageParams()))
        return languages.best

    def _work(self, turn: Turn, language: str) -> DecodeParams:
        options = turn.hints.options
        prompt = tuple(self._tokenizer.encode(" " + turn.hints.prompt.strip())) if turn.hints.prompt.strip() else ()
        return DecodeParams(
            prompt=(*prompt, *turn.before)[-self._room :],
            prefix=turn.stable,
            language=language,
            timestamps=False,
            # All of the prefix is kept if it and the new tokens together are no more than half of the context.
            max_tokens=max(1, self._dims.n_text_ctx // 2 - len(turn.stable)),
            suppress_tokens=self._tokenizer.suppressed(options.suppress_tokens),
            suppress_blank=not turn.stable,  # the text may end with what was shown
        )

    @property
    def _room(self) -> int:
        return self._dims.n_text_ctx // 2 - 1

    def _trusted(self, turn: Turn, attempt: Attempt) -> Tokens:
        """The tokens of a hypothesis; none of one that sounds silent, improbable or repetitive."""
        options = turn.hints.options
        whole = compression_ratio(self._tokenizer.decode((*turn.stable, *attempt.tokens)))
        ratio = options.compression_ratio_threshold
        is_repetitive = ratio is not None and whole > ratio
        if is_repetitive or needs_another(attempt, options) or is_silence(attempt, options):
            return ()
        return attempt.tokens

    def _settle(self, turn: Turn, tokens: Tokens) -> None:
        if tokens:
            turn.settle(tokens)
            self._show(turn, tokens)

    def _show(self, turn: Turn, tokens: Tokens) -> None:
        self._on_text(turn, self._tokenizer.decode(tokens))

    def _shorten(self, turn: Turn, audio: WindowAudio, n_samples: int, *, is_behind: bool) -> Steps[None]:
        """Drops what is settled from the start of a long piece; of one that is too long, something in any case."""
        tokens = (*turn.stable, *turn.guess)
        words, word_tokens = self._tokenizer.split_to_words([*tokens, self._tokenizer.eot], turn.language)
        cut = None
        if tokens:
            n_frames = n_samples // FRAME_SAMPLES
            work = AlignParams(text_tokens=tokens, n_frames=n_frames, language=turn.language, task="transcribe")
            aligned = yield from ask(Window(audio, work))
            timings = find_timings(aligned, words[:-1], word_tokens[:-1], n_frames)
            n_settled = len(turn.stable)
            if is_behind:
                sure_s = n_samples / SAMPLE_RATE - UNSURE_S
                n_settled = max(n_settled, sum(word.n_tokens for word in timings if word.end <= sure_s))
            cut = choose_cut(timings, n_settled, earliest_s=n_samples / SAMPLE_RATE / 3)
        if cut is None and is_behind:
            cut, turn.guess = Cut(len(turn.stable), n_samples / SAMPLE_RATE - UNSURE_S), ()
        if cut is not None:
            self._settle(turn, turn.guess[: max(0, cut.n_tokens - len(turn.stable))])
            turn.drop(cut.n_tokens, round(cut.at_s * SAMPLE_RATE))


def _alone(samples: npt.NDArray[np.int16]) -> WindowAudio:
    """As if it were a recording of its own, with silence up to 30 s."""
    return WindowAudio(as_float(samples), lead=0, n_mel_frames=WINDOW_MEL_FRAMES, mel_peak=None)


def _n_candidates(options: TranscribeOptions, temperature: float) -> int:
    return options.best_of if temperature > 0 else options.beam_size
