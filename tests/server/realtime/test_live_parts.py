"""The parts of live audio without a server: formats, the streaming detector, agreement, cuts, and events' fields."""

from __future__ import annotations

import io
from pathlib import Path

import av
import numpy as np
import pytest

from audio.media_files import Sound, read_clip
from choral.audio.recording import Recording
from choral.audio.resample import LiveResampler
from choral.audio.vad import speech_probabilities, speech_spans
from choral.longform.words import Timing
from choral.model.dims import ModelDims
from choral.model.tokenizer import Tokenizer
from choral.server.api_errors import ApiError
from choral.server.realtime.agreement import agreed
from choral.server.realtime.audio_formats import AudioFormat, Encoding, g711_table
from choral.server.realtime.buffer import AudioBuffer
from choral.server.realtime.cutting import Cut, choose_cut
from choral.server.realtime.objects import JsonObject
from choral.server.realtime.session_config import ServerVad, SessionConfig, TranscriptionConfig
from choral.server.realtime.session_schema import SessionReader, session_fields
from choral.server.realtime.streaming_vad import SpeechEnd, SpeechStart, StreamingVad

THRESHOLD, MIN_SILENCE_S = 0.5, 0.5


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    english = ModelDims(
        n_mels=80, n_audio_ctx=1500, n_audio_state=384, n_audio_head=6, n_audio_layer=4,
        n_vocab=51864, n_text_ctx=448, n_text_state=384, n_text_head=6, n_text_layer=4,
    )  # fmt: skip
    return Tokenizer.for_checkpoint(english)


@pytest.mark.parametrize(("encoding", "codec"), [("pcmu", "mulaw"), ("pcma", "alaw")])
def test_g711_bytes_mean_what_ffmpeg_says(encoding: Encoding, codec: str) -> None:
    data = bytes(range(256)) * 8
    with av.open(io.BytesIO(data), format=codec, options={"sample_rate": "8000"}) as container:
        heard = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
    assert AudioFormat(encoding, 8_000).samples(data).tolist() == heard.tolist()
    assert g711_table(encoding).dtype == np.int16


@pytest.mark.parametrize("rate", [24_000, 16_000, 8_000])
def test_chunk_sizes_do_not_matter_to_the_resampler(rate: int, jfk_sound: Sound) -> None:
    sound = jfk_sound[: 3 * rate]
    whole = LiveResampler(rate)
    wanted = np.concatenate([whole.push(sound), whole.flush()])
    assert wanted.size == pytest.approx(sound.size * 16_000 / rate, abs=1)
    for size in (1, 37, 480, 9_999):
        part = sound[:2_000] if size == 1 else sound
        piecewise = LiveResampler(rate)
        heard = [piecewise.push(part[start : start + size]) for start in range(0, part.size, size)]
        if size == 1:
            assert np.concatenate(heard).tolist() == wanted[: sum(map(len, heard))].tolist()
        else:
            assert np.concatenate([*heard, piecewise.flush()]).tolist() == wanted.tolist()


def test_samples_must_be_whole() -> None:
    with pytest.raises(ApiError, match="3 bytes are no whole number of 16-bit samples") as raised:
        AudioFormat("pcm", 24_000).samples(b"abc")
    assert raised.value.param == "audio"


@pytest.mark.parametrize("chunk", [160, 511, 4_000, 10**9])
def test_the_streaming_detector_finds_what_the_whole_recording_has(speech_clips: list[Path], chunk: int) -> None:
    pause = np.zeros(16_000, np.int16)
    sound = np.concatenate([part for path in speech_clips for part in (pause, read_clip(path), pause)])
    with Recording.open(sound) as recording:
        probabilities = speech_probabilities(recording)
    wanted = speech_spans(probabilities, sound.size, threshold=THRESHOLD, min_silence_s=MIN_SILENCE_S, pad_s=0.0)
    voice = StreamingVad(threshold=THRESHOLD, min_silence_s=MIN_SILENCE_S)
    heard = [part for start in range(0, sound.size, chunk) for part in voice.hear(sound[start : start + chunk])]
    assert np.concatenate([*(frame for frame, _ in heard), voice.rest]).tolist() == sound.tolist()
    changes = [change for _, change in heard if change is not None]
    found = [(change.sample, type(change)) for change in changes]
    assert found == [edge for span in wanted for edge in ((span.start, SpeechStart), (span.stop, SpeechEnd))]
    assert len(wanted) >= 5


def test_a_buffer_grows_and_is_dropped_from_its_start() -> None:
    buffer, wanted = AudioBuffer(), np.zeros(0, np.int16)
    numbers = np.random.default_rng(0)
    for _ in range(200):
        more = numbers.integers(-(2**15), 2**15, numbers.integers(0, 3_000), dtype=np.int16)
        buffer.append(more)
        wanted = np.concatenate([wanted, more])
        gone = int(numbers.integers(0, 2_000))
        buffer.drop(gone)
        wanted = wanted[gone:]
        assert len(buffer) == wanted.size
    assert buffer.copy().tolist() == wanted.tolist()
    assert buffer.copy(10, 20).tolist() == wanted[10:20].tolist()


@pytest.mark.parametrize(
    ("older", "newer", "common"),
    [
        (" And so my fellow", " And so my fellow Americans", " And so my fellow"),
        (" And so, My fellow.", " and so my fellow Americans", " and so my fellow"),
        (" my fellow Americans.", " my fellow Americans.", " my fellow Americans"),  # whether it ends is not known
        (" my fellow Americans. Ask", " my fellow Americans, ask not", " my fellow Americans, ask"),
        (" the trans", " the translation of it", " the"),
        ("", " And so", ""),
        (" You", " And so", ""),
    ],
)
def test_agreement_is_on_first_words(tokenizer: Tokenizer, older: str, newer: str, common: str) -> None:
    tokens = tokenizer.encode(newer)
    found = agreed(tokenizer.encode(older), tokens, tokenizer, "en")
    assert found == tuple(tokens[: len(found)])
    assert tokenizer.decode(found) == common


def test_half_a_letter_is_not_agreed_on(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode(" go 語")
    found = agreed(tokens[:-1], tokens[:-1], tokenizer, "en")
    assert tokenizer.decode(found) == " go"


def test_long_turns_are_cut_behind_sentences() -> None:
    texts = [(" One", 1.0), (" two", 6.0), (".", 8.0), (" Three", 9.0), (" four", 10.0), (" five", 12.0)]
    starts = [0.0, *(end for _, end in texts)]
    words = [Timing(text, 1, start, end, 1.0) for (text, end), start in zip(texts, starts, strict=False)]
    assert choose_cut(words, 5, 4.0) == Cut(3, 7.0)  # in the middle of the pause
    assert choose_cut(words, 2, 4.0) == Cut(2, 6.0)  # no sentence has ended
    assert choose_cut(words, 5, 9.5) == Cut(5, 10.0)
    assert choose_cut(words, 1, 4.0) is None


def test_both_shapes_of_a_session_say_the_same(tokenizer: Tokenizer) -> None:
    reader = SessionReader(("tiny.en", "whisper-1"), tokenizer)
    usual = SessionConfig(TranscriptionConfig("tiny.en"))
    turns = {"type": "server_vad", "threshold": 0.7, "prefix_padding_ms": 100, "silence_duration_ms": 900}
    hints = {"model": "whisper-1", "language": "English", "prompt": "Names: Hale"}
    new = {"format": {"type": "audio/pcmu"}, "transcription": hints, "turn_detection": turns, "noise_reduction": None}
    old = {"input_audio_format": "g711_ulaw", "input_audio_transcription": hints, "turn_detection": turns}
    wanted = SessionConfig(
        TranscriptionConfig("whisper-1", "en", "Names: Hale"), AudioFormat("pcmu", 8_000), ServerVad(0.7, 100, 900)
    )
    assert reader.update(usual, JsonObject({"type": "transcription", "audio": {"input": new}})) == wanted
    assert reader.update_beta(usual, JsonObject(old)) == wanted
    for is_beta, update in ((False, reader.update), (True, reader.update_beta)):
        told = session_fields(wanted, "sess_1", is_beta=is_beta)
        del told["id"], told["object"]
        assert update(usual, JsonObject(told)) == wanted  # what is told can be sent back
    only = JsonObject({"type": "transcription", "audio": {"input": {"turn_detection": None}}})
    assert reader.update(wanted, only) == SessionConfig(wanted.hints, wanted.format, None)
