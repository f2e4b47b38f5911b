"""The Python API on a real model and real speech."""

from __future__ import annotations

import gc
import io
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import choral
from choral import errors
from choral.engine.window import DecodeParams, Window
from choral.errors import EngineClosed, ModelNotFound, UsageError
from choral.longform.cuts import Cutter, n_mel_frames
from choral.options import Loudness, Mode
from interruptible import start_interruptible

PUBLIC_MODULES = ("choral.options", "choral.transcript", "choral.diarization")
ROOT = Path(__file__).parent.parent
SENTENCE = " And so my fellow Americans ask not what your country can do for you ask what you can do for your country"


@pytest.fixture(scope="module")
def model(tiny_en_pt: Path) -> Iterator[choral.Model]:
    with choral.load(tiny_en_pt, device="cpu", compute_type="float32") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def multilingual(tiny_ggml: Path) -> Iterator[choral.Model]:
    with choral.load(tiny_ggml, device="cpu", compute_type="float32") as loaded:
        yield loaded


def test_public_names_are_complete_and_documented() -> None:
    """What `import choral` offers is `__all__`, each name resolves, and docs/python.md mentions it."""
    pages = "".join((ROOT / "docs" / name).read_text() for name in ("python.md", "jobs.md", "speakers.md"))
    undocumented = [name for name in choral.__all__ if f"choral.{name}" not in pages]
    assert undocumented == []
    lazy = {*choral._LAZY_MODULES, *choral._LAZY_NAMES} - {"load_with"}
    eager = {name for name, value in vars(choral).items() if getattr(value, "__module__", "") in PUBLIC_MODULES}
    assert {*lazy, *eager} == set(choral.__all__)
    for name in choral.__all__:
        assert getattr(choral, name).__doc__, f"choral.{name} has no docstring"


def test_every_error_is_documented() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    classes = [kind.__name__ for kind in vars(errors).values() if isinstance(kind, type)]
    assert len(classes) > 20
    assert [name for name in classes if f"`{name}`" not in page and f"choral.errors.{name}`" not in page] == []


def test_load_takes_settings(tiny_en_pt: Path) -> None:
    with choral.load(tiny_en_pt, settings=choral.EngineSettings(device="cpu", slots=3)) as model:
        assert model.n_slots == 3
    with pytest.raises(UsageError, match="not both"):
        choral.load(tiny_en_pt, device="cpu", settings=choral.EngineSettings())


def test_load_with_is_deprecated_and_works(tiny_en_pt: Path) -> None:
    with pytest.warns(DeprecationWarning, match="settings="):
        model = choral.load_with(choral.EngineSettings(device="cpu", slots=3), tiny_en_pt)
    with model:
        assert model.n_slots == 3


def test_hotwords_and_replacements(model: choral.Model, jfk: Path) -> None:
    others = [f"Zarkon{number}" for number in range(1000)]
    assert model.transcribe(jfk, language="en", hotwords=others).text == SENTENCE
    options = {"hotwords": "Americas", "replacements": "ask not=demand not", "word_timestamps": True}
    changed = model.transcribe(jfk, language="en", hotword_boost=8, **options)
    expected = SENTENCE.replace("Americans", "Americas").replace("ask not", "demand not")
    assert changed.text.rstrip(".") == expected
    assert changed.text == "".join(segment.text for segment in changed.segments)
    (demand,) = [word for word in changed.words if "demand" in word.text]
    assert (demand.text, demand.start < demand.end) == (" demand not", True)
    assert changed.warnings == ()


def test_transcribe_with_word_timestamps(model: choral.Model, jfk: Path) -> None:
    transcript = model.transcribe(jfk, language="en", word_timestamps=True)
    assert transcript.text == SENTENCE
    assert transcript.language == "en"
    assert transcript.language_probability is None
    assert transcript.duration == 11.0
    assert transcript.warnings == ()
    americans = next(word for word in transcript.words if word.text == " Americans")
    assert americans.start < 1.8 < americans.end
    assert "".join(word.text for word in transcript.words) == transcript.text
    assert "00:00:00,000 --> " in choral.formats.srt(transcript)


@pytest.mark.parametrize("path", ["jfk", "bytes", "file", "array", "recording"])
def test_every_kind_of_input_gives_the_same_text(path: str, model: choral.Model, jfk: Path) -> None:
    with choral.Recording.open(jfk) as recording, jfk.open("rb") as file:
        audio = {
            "jfk": str(jfk),
            "bytes": jfk.read_bytes(),
            "file": file,
            "array": recording.samples(0, recording.n_samples),
            "recording": recording,
        }[path]
        assert model.transcribe(audio).text == SENTENCE


def test_known_no_speech_probability(model: choral.Model, jfk: Path) -> None:
    """CTranslate2's tests have the same number for this model and clip."""
    with choral.Recording.open(jfk) as recording:
        window = Window(
            Cutter(recording, 80).cut(0, n_mel_frames(recording)), DecodeParams(language="en", max_tokens=1)
        )
        assert model._engine.submit(window).result().no_speech_prob == pytest.approx(0.06238, abs=1e-3)


def test_segments_stream_as_they_become_final(model: choral.Model, jfk: Path) -> None:
    with choral.Recording.open(jfk) as recording:
        six_times = np.tile(recording.samples(0, recording.n_samples), 6)
    before = model.stats.windows
    stream = model.stream(six_times, mode="sequential", temperature=0.0)
    first = next(stream)
    assert model.stats.windows == before + 1  # of more than 60 s, one window was enough for the first segment
    rest = list(stream)
    assert model.stats.windows > before + 1
    assert [first, *rest] == list(model.transcribe(six_times, mode="sequential", temperature=0.0).segments)


def test_callbacks(model: choral.Model, jfk: Path) -> None:
    segments: list[choral.Segment] = []
    progress: list[tuple[float, float]] = []
    transcript = model.transcribe(
        jfk, on_segment=segments.append, on_progress=lambda done, total: progress.append((done, total))
    )
    assert tuple(segments) == transcript.segments
    assert progress == sorted(progress)
    assert progress[-1] == (11.0, 11.0)


def test_detect_language(multilingual: choral.Model, jfk: Path) -> None:
    probabilities = multilingual.detect_language(jfk)
    assert next(iter(probabilities)) == "en"
    assert probabilities["en"] > 0.9
    assert sum(probabilities.values()) == pytest.approx(1, abs=1e-4)


def test_english_only_model_refuses_other_languages_and_detection(model: choral.Model, jfk: Path) -> None:
    with pytest.raises(UsageError, match="English-only"):
        model.detect_language(jfk)
    with pytest.raises(UsageError):
        model.transcribe(jfk, language="fr")


def test_fallback_language_and_words_encode_once(multilingual: choral.Model, jfk: Path) -> None:
    """In batched mode, language detection, every temperature and alignment use one encoder result."""
    with choral.Recording.open(jfk) as recording:
        audio = recording.samples(0, 10 * 16_000)  # not what was encoded for another test
    before = multilingual.stats
    options = {"temperature": (0.0, 0.4, 0.8), "logprob_threshold": 0.0, "no_speech_threshold": None}
    transcript = multilingual.transcribe(audio, mode="batched", word_timestamps=True, **options)
    after = multilingual.stats
    assert transcript.segments[0].temperature == 0.8
    assert after.encoded - before.encoded == 1
    assert after.windows - before.windows == 5  # language, three temperatures, words


def test_sampling_is_reproducible_and_depends_on_the_seed(model: choral.Model, jfk: Path) -> None:
    def sampled(seed: int) -> tuple[int, ...]:
        return model.transcribe(jfk, temperature=1.0, best_of=1, seed=seed).segments[0].tokens

    first = sampled(1)
    model.transcribe(jfk, temperature=0.5)  # something else in between
    assert sampled(1) == first
    assert any(sampled(seed) != first for seed in (2, 3, 4))


def test_concurrent_results_equal_sequential_ones(model: choral.Model, jfk: Path, speech_clips: list[Path]) -> None:
    clips = [jfk, *speech_clips]
    alone = [model.transcribe(clip).text for clip in clips]
    together: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda i=i: together.__setitem__(i, model.transcribe(clips[i]).text))
        for i in range(len(clips))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[i] for i in range(len(clips))] == alone


def test_errors_name_the_invalid_option(model: choral.Model, jfk: Path) -> None:
    with pytest.raises(UsageError, match="unknown option 'langauge'"):
        model.transcribe(jfk, langauge="en")
    with pytest.raises(UsageError, match="klingon"):
        model.transcribe(jfk, language="klingon")
    with pytest.raises(UsageError, match="not both"):
        model.transcribe(jfk, choral.TranscribeOptions(), language="en")
    with pytest.raises(UsageError, match="device"):
        choral.load("tiny.en", device="tpu")
    with pytest.raises(ModelNotFound, match="tiny"):
        choral.load("tinny.en")


def test_closed_model_raises_engine_closed(tiny_en_pt: Path, jfk: Path) -> None:
    model = choral.load(tiny_en_pt)
    model.close()
    model.close()
    with pytest.raises(EngineClosed, match="load it again"):
        model.transcribe(jfk)


def test_close_stops_running_transcriptions(tiny_en_pt: Path, jfk: Path) -> None:
    model = choral.load(tiny_en_pt)
    started, failed = threading.Event(), []

    def endless() -> None:
        with choral.Recording.open(jfk) as recording:
            audio = np.tile(recording.samples(0, recording.n_samples), 60)
        with pytest.raises(EngineClosed) as caught:
            model.transcribe(audio, on_segment=lambda segment: started.set())
        failed.append(caught.value)

    thread = threading.Thread(target=endless)
    thread.start()
    assert started.wait(60)
    model.close()
    thread.join(20)
    assert len(failed) == 1


def test_collected_model_ends_its_threads(tiny_en_pt: Path) -> None:
    before = set(threading.enumerate())
    model = choral.load(tiny_en_pt, engine="torch")
    own = set(threading.enumerate()) - before
    assert {thread.name for thread in own} == {"choral-engine", "choral-lane"}
    del model
    gc.collect()
    for thread in own:
        thread.join(20)
    assert not any(thread.is_alive() for thread in own)


@pytest.mark.parametrize("stage", ["loading", "loaded", "decoding"])
def test_control_c_ends_cleanly(stage: str, tiny_en_pt: Path, jfk: Path) -> None:
    """The engine's thread ends before the interpreter does; otherwise the process would abort."""
    code = (
        "import choral, numpy, sys, torch\n"
        "say = lambda stage: print(stage, flush=True)\n"
        "say('loading')\n"
        "model = choral.load(sys.argv[1])\n"
        "audio = numpy.tile(choral.Recording.open(sys.argv[2]).samples(0, 176000), 60)\n"
        "say('loaded')\n"
        "model.transcribe(audio, on_segment=lambda segment: say('decoding'))\n"
    )
    command = [sys.executable, "-c", code, str(tiny_en_pt), str(jfk)]
    with start_interruptible(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline().strip() != stage:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (1, -signal.SIGINT), errors
    assert "KeyboardInterrupt" in errors
    assert "terminate" not in errors


def test_very_short_audio_has_no_words(model: choral.Model, jfk: Path) -> None:
    thresholds = {"no_speech_threshold": None, "logprob_threshold": None, "temperature": 0.0}
    for mode in ("sequential", "batched"):
        options = {"mode": mode, "vad": False, "clip_timestamps": (1.0, 1.01), "word_timestamps": True, **thresholds}
        assert model.transcribe(jfk, **options).words == ()
    assert not any(word.is_timed for word in model.align(np.ones(160, dtype=np.float32) * 0.1, "hello world").words)


def test_an_empty_array_has_an_empty_transcript(model: choral.Model) -> None:
    """As an array that is too short for speech has; an empty file is an error, because it was meant to have audio."""
    empty = np.zeros(0, np.float32)
    transcripts = [model.transcribe(empty), model.transcribe(empty.astype(np.int16), mode="batched", loudness="ebu")]
    transcripts += [result.transcript for result in model.transcribe_many([empty], processes=1)]
    for transcript in transcripts:
        assert (transcript.text, transcript.segments, transcript.duration) == ("", (), 0.0)
        assert transcript.warnings == ("only 0 ms of audio: too short for speech",)


@pytest.mark.parametrize("mode", ["sequential", "batched"])
def test_a_prefix_with_timestamps_loses_no_text(model: choral.Model, jfk: Path, mode: Mode) -> None:
    """openai-whisper returns nothing here. Windows after the first one have timestamps."""
    with choral.Recording.open(jfk) as recording:
        audio = np.tile(recording.samples(0, recording.n_samples), 4)
    options = {"mode": mode, "vad": False, "temperature": 0.0, "condition_on_previous_text": False}
    transcript = model.transcribe(audio, prefix="And so my fellow", **options)
    first, *others = transcript.segments
    assert first.text.startswith(" Americans ask not what your country can do for you")
    assert first.start == 0.0
    assert others
    assert all(
        token >= model.transcriber.tokenizer.timestamp_begin for segment in others for token in segment.tokens[:1]
    )


def test_stream_can_be_closed_early(model: choral.Model, jfk: Path) -> None:
    stream = model.stream(io.BytesIO(jfk.read_bytes()))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert model.transcribe(jfk).text == SENTENCE


@pytest.mark.slow
@pytest.mark.parametrize("compute_type", ["bfloat16", "float16"])
def test_16_bit_precision_gives_the_same_words(compute_type: str, tiny_en_pt: Path, jfk: Path) -> None:
    with choral.load(tiny_en_pt, device="cpu", compute_type=compute_type) as model:
        words = model.transcribe(jfk).text.lower().replace(",", "").replace(".", "").split()
    assert words[:5] == ["and", "so", "my", "fellow", "americans"]


@pytest.mark.parametrize(("kind", "mode"), [("ebu", "batched"), ("rms", "sequential")])
def test_normalised_loudness_removes_level_differences(
    model: choral.Model, jfk: Path, kind: Loudness, mode: Mode
) -> None:
    with choral.Recording.open(jfk) as recording:
        loud = recording.samples(0, recording.n_samples)
    text = model.transcribe(loud, loudness=kind, mode=mode).text
    assert text.rstrip(".") == SENTENCE
    assert model.transcribe(loud * np.float32(0.01), loudness=kind, mode=mode).text == text
