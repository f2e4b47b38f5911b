"""Transcribes a turn: hypotheses while it is being spoken, and its remaining text when it has ended.

Streaming uses LocalAgreement-2: the words on which two consecutive hypotheses agree are confirmed and sent, and every
hypothesis continues the confirmed text, which therefore never changes. A turn that ends before any text was confirmed
is transcribed like a file. Everything here is long-form logic: it yields windows, is sent their results, and holds no
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from choral.audio.constants import HOP_LENGTH, SAMPLE_RATE, WINDOW_MEL_FRAMES, WINDOW_S
from choral.audio.recording import Recording
from choral.audio.samples import as_float
from choral.engine.window import AlignParams, DecodeParams, DetectLanguageParams, Window, WindowAudio
from choral.longform.chain import Chain
from choral.longform.chain_types import Attempt, ChainContext, Steps, request
from choral.longform.cuts import Clip, Cutter, n_mel_frames
from choral.longform.fallback import (
    compression_ratio,
    decode_with_fallback,
    is_silence,
    needs_fallback,
    score,
)
from choral.longform.hotwords import hotword_trie, without_boost
from choral.longform.prompts import Prompts
from choral.longform.token_logprobs import text_tokens
from choral.longform.transcriber import MIN_DURATION_S, Transcriber
from choral.longform.words import find_timings
from choral.options import TranscribeOptions
from choral.server.realtime.audio_formats import Int16
from choral.server.realtime.local_agreement import local_agreement
from choral.server.realtime.turn import Tokens, Turn, TurnCut, choose_cut
from choral.transcript import Token

CUT_FROM_S = 20.0  # a piece of this length is cut after confirmed text, if there is any
MAX_PIECE_S = 28.0  # a longer piece is always cut
UNSTABLE_S = 2.0  # the end of a piece, where a word may be incomplete
FRAME_SAMPLES = 2 * HOP_LENGTH

OnText = Callable[[Turn, str, Sequence[Token]], None]  # the tokens with their log-probabilities, if asked for


class TurnTranscriber:
    def __init__(self, transcriber: Transcriber, on_text: OnText) -> None:
        self._tokenizer, self._dims = transcriber.tokenizer, transcriber.dims
        self._engine_name = transcriber.engine.name
        self._on_text = on_text

    def hypothesize(self, turn: Turn) -> Steps[None]:
        """Decode the piece once, and send the text that agrees with the previous hypothesis."""
        turn.n_transcribed = turn.n_samples
        is_too_long = turn.audio.duration_s > MAX_PIECE_S
        samples = turn.audio.copy(0, round(MAX_PIECE_S * SAMPLE_RATE))
        audio = _padded_window(samples)
        language = turn.language if turn.confirmed or turn.history else None
        language = language or (yield from self._detect_language(turn, audio))
        decoded = yield from request(Window(audio, self._decode_params(turn, language)))
        hypothesis = self._accepted_tokens(turn, score(decoded, 0.0, self._tokenizer))
        logprobs = (decoded.token_logprobs or ()) if hypothesis else ()
        agreed: Tokens = ()
        if turn.language == language:
            agreed = local_agreement(turn.unconfirmed, hypothesis, self._tokenizer, language)
        turn.unconfirmed, turn.unconfirmed_logprobs, turn.language = hypothesis, logprobs, language
        self._confirm(turn, agreed)
        if samples.size >= CUT_FROM_S * SAMPLE_RATE:
            yield from self._cut_piece(turn, audio, samples.size, is_too_long=is_too_long)

    def finish(self, turn: Turn) -> Steps[None]:
        """Send the text of an ended turn that follows its confirmed text."""
        while turn.confirmed and turn.audio.duration_s > WINDOW_S:
            yield from self.hypothesize(turn)
        if turn.confirmed:
            yield from self._decode_remaining(turn)
        else:
            yield from self._transcribe_as_file(turn)

    def _decode_remaining(self, turn: Turn) -> Steps[None]:
        assert turn.language is not None
        options = self._options(turn)
        params = self._decode_params(turn, turn.language)
        decode_steps = [
            replace(params, temperature=t, n_candidates=_n_candidates(options, t)) for t in options.temperatures
        ]
        audio = _padded_window(turn.audio.copy())
        attempt = yield from decode_with_fallback(audio, decode_steps, options, self._tokenizer)
        if not is_silence(attempt, options):
            self._send_text(turn, attempt.tokens, attempt.token_logprobs or ())

    def _transcribe_as_file(self, turn: Turn) -> Steps[None]:
        """Run the sequential algorithm, and send segments as they become final."""
        if turn.audio.duration_s < MIN_DURATION_S:
            return
        with Recording.open(turn.audio.copy()) as recording:
            if recording.is_silent:
                return
            cutter = Cutter(recording, self._dims.n_mels)
            language = turn.language if turn.history else None
            language = language or (yield from self._detect_language(turn, cutter.first_window()))
            turn.language = language
            options = self._options(turn)
            if turn.history:
                prompt = self._tokenizer.decode(turn.history[-self._max_prompt_tokens :])
                options = replace(options, initial_prompt=prompt)
            context = ChainContext(recording, options, self._tokenizer, language, self._dims.n_text_ctx, cutter)
            chain = Chain(context, [Clip(0, n_mel_frames(recording))], is_first=True, keep_tail=False)
            yield from self._run_chain(turn, chain)

    def _run_chain(self, turn: Turn, chain: Chain) -> Steps[None]:
        steps, result, n_sent = chain.run(), None, 0
        is_running = True
        while is_running:
            try:
                window = steps.send(result)
            except StopIteration:
                is_running = False
            for segment in chain.segments[n_sent:]:
                self._on_text(
                    turn, segment.text, text_tokens(segment, self._tokenizer) if turn.logprobs is not None else ()
                )
            n_sent = len(chain.segments)
            if is_running:
                result = yield window

    def _detect_language(self, turn: Turn, audio: WindowAudio) -> Steps[str]:
        """The configured language, or the detected one: detected again until there is text, as a second says little."""
        if turn.transcription.language is not None or not self._tokenizer.is_multilingual:
            return turn.transcription.language or "en"
        heard = (yield from request(Window(audio, DetectLanguageParams()))).probabilities
        return max(turn.transcription.languages or heard, key=lambda code: heard[code])

    def _decode_params(self, turn: Turn, language: str) -> DecodeParams:
        options = self._options(turn)
        prompts = Prompts(options, self._tokenizer, self._dims.n_text_ctx, has_prefix=False)
        n_left = self._max_prompt_tokens - len(prompts.hotwords)
        return DecodeParams(
            prompt=prompts.hotwords + (*prompts.initial, *turn.history)[-n_left:],
            prefix=turn.confirmed,
            language=language,
            timestamps=False,
            # The prefix is kept whole if it and the new tokens together take at most half of the context.
            max_tokens=max(1, self._dims.n_text_ctx // 2 - len(turn.confirmed)),
            suppress_tokens=self._tokenizer.suppressed(options.suppress_tokens),
            hotwords=hotword_trie(options, self._tokenizer, language),
            hotword_boost=options.hotword_boost,
            suppress_blank=not turn.confirmed,  # the text may end with the confirmed text
            token_logprobs=options.token_logprobs,
        )

    def _options(self, turn: Turn) -> TranscribeOptions:
        options = replace(turn.transcription.options, token_logprobs=turn.logprobs is not None)
        return without_boost(options, self._engine_name)

    @property
    def _max_prompt_tokens(self) -> int:
        return self._dims.n_text_ctx // 2 - 1

    def _accepted_tokens(self, turn: Turn, attempt: Attempt) -> Tokens:
        """The tokens of a hypothesis, or none if it is judged silent, improbable or repetitive."""
        options = self._options(turn)
        ratio = compression_ratio(self._tokenizer.decode((*turn.confirmed, *attempt.tokens)))
        threshold = options.compression_ratio_threshold
        is_repetitive = threshold is not None and ratio > threshold
        if is_repetitive or needs_fallback(attempt, options) or is_silence(attempt, options):
            return ()
        return attempt.tokens

    def _confirm(self, turn: Turn, tokens: Tokens) -> None:
        if tokens:
            logprobs = turn.unconfirmed_logprobs[: len(tokens)]
            turn.confirm(tokens)
            self._send_text(turn, tokens, logprobs)

    def _send_text(self, turn: Turn, tokens: Tokens, logprobs: Sequence[float]) -> None:
        to_bytes = self._tokenizer.token_bytes
        pairs = zip(tokens, logprobs, strict=True) if turn.logprobs is not None else ()
        scored = [Token(to_bytes(token), logprob) for token, logprob in pairs if token < self._tokenizer.eot]
        self._on_text(turn, self._tokenizer.decode(tokens), scored)

    def _cut_piece(self, turn: Turn, audio: WindowAudio, n_samples: int, *, is_too_long: bool) -> Steps[None]:
        """Cut a long piece after confirmed text if possible, and one that is too long in any case."""
        tokens = (*turn.confirmed, *turn.unconfirmed)
        words, word_tokens = self._tokenizer.split_to_words([*tokens, self._tokenizer.eot], turn.language)
        stable_s = n_samples / SAMPLE_RATE - UNSTABLE_S
        cut = None
        if tokens:
            n_frames = n_samples // FRAME_SAMPLES
            params = AlignParams(text_tokens=tokens, n_frames=n_frames, language=turn.language, task="transcribe")
            aligned = yield from request(Window(audio, params))
            timings = find_timings(aligned, words[:-1], word_tokens[:-1], n_frames)
            n_confirmed = len(turn.confirmed)
            if is_too_long:
                n_confirmed = max(n_confirmed, sum(word.n_tokens for word in timings if word.end <= stable_s))
            cut = choose_cut(timings, n_confirmed, min_s=n_samples / SAMPLE_RATE / 3)
        if cut is None and is_too_long:
            cut, turn.unconfirmed, turn.unconfirmed_logprobs = TurnCut(len(turn.confirmed), stable_s), (), ()
        if cut is not None:
            self._confirm(turn, turn.unconfirmed[: max(0, cut.n_tokens - len(turn.confirmed))])
            turn.cut(cut.n_tokens, round(cut.at_s * SAMPLE_RATE))


def _padded_window(samples: Int16) -> WindowAudio:
    """The samples as a recording of their own, padded with silence to 30 s."""
    return WindowAudio(as_float(samples), lead=0, n_mel_frames=WINDOW_MEL_FRAMES, mel_peak=None)


def _n_candidates(options: TranscribeOptions, temperature: float) -> int:
    return options.best_of if temperature > 0 else options.beam_size
