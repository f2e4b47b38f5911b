"""Forced alignment: the start and end of each word of a known text."""

from __future__ import annotations

from choral.audio.constants import WINDOW_S
from choral.audio.recording import Recording
from choral.engine.window import AlignParams, Window
from choral.errors import UsageError
from choral.longform.cuts import Cutter, n_mel_frames
from choral.longform.transcriber import Transcriber, detect_in
from choral.longform.words import as_words, find_timings, merge_punctuation
from choral.model.languages import to_code
from choral.types import MAX_TEXT_CHARACTERS, TranscribeOptions, Word

N_SPECIAL_TOKENS = 8  # reserved for start of transcript, language, task, …


def align(
    transcriber: Transcriber,
    recording: Recording,
    text: str,
    language: str | None,
    options: TranscribeOptions,
) -> tuple[Word, ...]:
    engine, tokenizer, dims = transcriber.engine, transcriber.tokenizer, transcriber.dims
    if recording.duration > WINDOW_S:
        raise UsageError(
            f"align takes at most {WINDOW_S} s of audio and this is {recording.duration:.1f} s: "
            "cut it, or transcribe it with word_timestamps"
        )
    if not isinstance(text, str):
        raise UsageError(f"the text to align is {text!r}; it must be a string")
    if not text.strip():
        return ()
    if len(text) > MAX_TEXT_CHARACTERS:
        raise UsageError(f"the text has {len(text):,} characters, more than fit {WINDOW_S} s of audio: cut both")
    tokens = tuple(tokenizer.encode(" " + text.strip()))
    if len(tokens) > dims.n_text_ctx - N_SPECIAL_TOKENS:
        raise UsageError(f"the text has {len(tokens)} tokens, more than fit {WINDOW_S} s of audio: cut both")
    cutter = Cutter(recording, dims.n_mels)
    code = to_code(language) if language is not None else "en"
    if language is None and tokenizer.is_multilingual:
        code = detect_in(engine, cutter.first_window()).best
    words, word_tokens = tokenizer.split_to_words([*tokens, tokenizer.eot], code)
    n_frames = n_mel_frames(recording)
    params = AlignParams(text_tokens=tokens, n_frames=n_frames // 2, language=code, task="transcribe")
    aligned = engine.submit(Window(cutter.cut(0, n_frames), params)).result()
    timings = find_timings(aligned, words[:-1], word_tokens[:-1], n_frames // 2)
    merge_punctuation(timings, options)
    return as_words([timing for timing in timings if timing.text])
