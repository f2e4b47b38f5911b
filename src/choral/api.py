"""The Python API: `choral.load(...)` returns a `Model`, whose `transcribe` returns a `Transcript`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from choral.audio.growing_recording import open_growing
from choral.audio.recording import Recording
from choral.config import ComputeType, EngineName, EngineSettings, OptimizeFor
from choral.engine.any_engine import AnyEngine
from choral.engine.engine import EngineStats
from choral.errors import UsageError
from choral.longform.alignment import start_alignment
from choral.longform.load_transcriber import OnDownload, default_name
from choral.longform.progress_reporter import OnProgress
from choral.longform.token_logprobs import text_tokens
from choral.longform.transcriber import AnyTranscription, Transcriber, detect_language
from choral.options import Priority, TranscribeOptions
from choral.serving.device_processes import load_on_devices
from choral.speakers.voice_options import options_by_name
from choral.transcript import Segment, Token, Transcript

if TYPE_CHECKING:
    from choral.audio.recording import AudioInput
    from choral.serving.runtime import InputResult, Runtime

# Concurrent requests per device: a long file has one window in the engine at a time, so the number of slots sets it,
# plus a few because some requests are always between two windows.
EXTRA_REQUESTS, MAX_REQUESTS = 8, 64


def load(
    model: str | Path | None = None,
    *,
    engine: EngineName = "auto",
    device: str = "auto",
    compute_type: ComputeType = "auto",
    threads: int = 0,
    optimize_for: OptimizeFor = "latency",
    settings: EngineSettings | None = None,
    on_download: OnDownload | None = None,
) -> Model:
    """Load a model by name, Hugging Face id or path; download it first if necessary.

    The default model is `large-v3-turbo` with CUDA and `base` on a CPU. On a CPU, `optimize_for="throughput"` chooses
    the engine that is faster for many callers instead of the one for a single file. `settings` holds every engine
    setting (slots, …) and takes the place of the five named ones. `on_download` gets the bytes so far and in total.
    """
    named = EngineSettings(
        engine=engine, device=device, compute_type=compute_type, threads=threads, optimize_for=optimize_for
    )
    if settings is None:
        settings = named
    elif named != EngineSettings():
        raise UsageError(
            "pass either settings=, or engine=, device=, compute_type=, threads= and optimize_for=, not both"
        )
    name = str(model) if model is not None else default_name(settings)
    transcriber = load_on_devices(name, settings, on_download)
    return Model(name, transcriber.engine, transcriber)


def load_with(
    settings: EngineSettings, model: str | Path | None = None, *, on_download: OnDownload | None = None
) -> Model:
    """Deprecated: use `load(model, settings=settings)`."""
    warnings.warn("load_with is deprecated: use load(model, settings=settings)", DeprecationWarning, stacklevel=2)
    return load(model, settings=settings, on_download=on_download)


class Model:
    """A loaded model, safe to use from any number of threads. Close it, or use it in a `with`, to free its memory."""

    def __init__(self, name: str, engine: AnyEngine, transcriber: Transcriber) -> None:
        self.name = name
        self._engine, self._transcriber = engine, transcriber
        self._runtimes: dict[int, Runtime] = {}  # by their number of processes

    @property
    def engine(self) -> str:
        return self._engine.name

    @property
    def device(self) -> str:
        return self._engine.device

    @property
    def compute_type(self) -> str:
        return self._engine.compute_type

    @property
    def is_multilingual(self) -> bool:
        """Whether the model knows languages other than English and can translate."""
        return self._transcriber.tokenizer.is_multilingual

    @property
    def transcriber(self) -> Transcriber:
        """The long-form transcriber, for callers that submit windows themselves, such as live sessions."""
        return self._transcriber

    @property
    def n_slots(self) -> int:
        return self._engine.capacity.n_slots

    @property
    def encoder_budget(self) -> int:
        """The maximum frames per encoder step; a window has 1,500."""
        return self._engine.settings.encoder_budget

    @property
    def is_working(self) -> bool:
        """False once the model is closed, and while all its devices fail at everything."""
        return self.failure is None

    @property
    def failure(self) -> str | None:
        """Why no request can succeed; None while the model works. A window that succeeds ends it."""
        return self._engine.failure

    @property
    def failed_devices(self) -> dict[str, str]:
        """Why each device fails that does; the others get all windows meanwhile."""
        return self._engine.failed_devices

    def self_test(self) -> None:
        """Decode noise on every device; raises an `EngineError` if all fail."""
        self._engine.self_test()

    @property
    def requests_at_once(self) -> int:
        """How many concurrent requests keep all devices busy; more would only wait."""
        return self._engine.n_devices * min(self.n_slots + EXTRA_REQUESTS, MAX_REQUESTS)

    @property
    def stats(self) -> EngineStats:
        return self._engine.stats

    def transcribe(
        self,
        audio: AudioInput | Recording,
        options: TranscribeOptions | None = None,
        *,
        on_segment: Callable[[Segment], None] | None = None,
        on_progress: OnProgress | None = None,
        priority: Priority = "interactive",
        **named_options: Any,
    ) -> Transcript:
        """Transcribe the whole audio. Pass `TranscribeOptions`, or options by name: `language="en"`.

        Requests of priority "batch" yield to "interactive" ones but are never starved.
        """
        chosen = self._options(options, named_options, priority)
        with self._growing_recording(audio, chosen) as recording:
            transcription = self._transcriber.start(recording, chosen, on_progress, priority)
            for segment in transcription:
                if on_segment is not None:
                    on_segment(segment)
            return transcription.transcript()

    def transcribe_many(
        self,
        inputs: Iterable[AudioInput | Recording],
        options: TranscribeOptions | None = None,
        *,
        priority: Priority = "batch",
        processes: int | None = None,
        **named_options: Any,
    ) -> Iterator[InputResult]:
        """Transcribe many inputs together; yields `(audio, outcome)` for each as it finishes.

        The outcome is a `Transcript` or a `ChoralError`. Inputs are taken from an iterable as results are taken from
        this iterator. With a GPU, all work but the engine's is done in `processes` of its own; None: as many as help.
        """
        chosen = self._options(options, named_options, priority)
        return self.runtime(_count(inputs), processes).transcribe_many(inputs, chosen, priority)

    def atranscribe_many(
        self,
        inputs: Iterable[AudioInput | Recording],
        options: TranscribeOptions | None = None,
        *,
        priority: Priority = "batch",
        processes: int | None = None,
        **named_options: Any,
    ) -> AsyncIterator[InputResult]:
        """`transcribe_many` for asyncio: `async for audio, outcome in model.atranscribe_many(paths)`."""
        chosen = self._options(options, named_options, priority)
        return self.runtime(_count(inputs), processes).atranscribe_many(inputs, chosen, priority)

    def runtime(self, n_inputs: int | None = None, processes: int | None = None) -> Runtime:
        """What runs the requests of a program with this many inputs. It is kept, with its processes, until `close`."""
        from choral.serving.runtime import Runtime
        from choral.serving.runtime_plan import plan_runtime

        plan = plan_runtime(self.device, n_inputs, processes)
        if plan.n_processes not in self._runtimes:
            self._runtimes[plan.n_processes] = Runtime(self._transcriber, plan, self.requests_at_once)
        return self._runtimes[plan.n_processes]

    def begin(
        self,
        recording: Recording,
        options: TranscribeOptions,
        *,
        on_progress: OnProgress | None = None,
        priority: Priority = "interactive",
    ) -> AnyTranscription:
        """Start a transcription that runs while it is iterated and that any thread may `cancel()`.

        The caller keeps ownership of the recording and closes it.
        """
        return self._transcriber.start(recording, self._options(options, {}, priority), on_progress, priority)

    def stream(
        self,
        audio: AudioInput | Recording,
        options: TranscribeOptions | None = None,
        *,
        priority: Priority = "interactive",
        **named_options: Any,
    ) -> Iterator[Segment]:
        """Yield each segment as soon as it is final."""
        chosen = self._options(options, named_options, priority)
        with self._growing_recording(audio, chosen) as recording:
            yield from self._transcriber.start(recording, chosen, None, priority)

    def text_tokens(self, segment: Segment) -> list[Token]:
        """The text tokens of a segment with their log-probabilities; needs `token_logprobs=True`."""
        return text_tokens(segment, self._transcriber.tokenizer)

    def detect_language(self, audio: AudioInput | Recording) -> dict[str, float]:
        """The probability of each language in the first 30 s, most probable first."""
        with self._recording(audio) as recording:
            probabilities = detect_language(self._engine, recording, self._transcriber.dims.n_mels).probabilities
        return dict(sorted(probabilities.items(), key=lambda item: item[1], reverse=True))

    def align(
        self,
        audio: AudioInput | Recording,
        text: str,
        options: TranscribeOptions | None = None,
        *,
        on_progress: OnProgress | None = None,
        priority: Priority = "interactive",
        **named_options: Any,
    ) -> Transcript:
        """When each word of a known text is spoken, in audio of any length; segments are its sentences.

        Words that are not in the audio have NaN for times; speech that is not in the text is left out.
        """
        chosen = self._options(options, named_options, priority)
        with self._growing_recording(audio, chosen) as recording:
            alignment = start_alignment(self._transcriber, recording, text, chosen, on_progress, priority)
            for _ in alignment:
                pass
            return alignment.transcript()

    def close(self) -> None:
        for runtime in self._runtimes.values():
            runtime.close()
        self._engine.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _options(
        self, options: TranscribeOptions | None, named_options: dict[str, Any], priority: Priority
    ) -> TranscribeOptions:
        if options is not None and named_options:
            raise UsageError("pass either options=, or single options by name, not both")
        if options is not None and not isinstance(options, TranscribeOptions):
            raise UsageError("options must be choral.TranscribeOptions(...); or pass options by name: language='en'")
        if priority not in get_args(Priority):
            raise UsageError(f"priority is {priority!r}; it must be one of {', '.join(get_args(Priority))}")
        return options if options is not None else options_by_name(**named_options)

    def _recording(self, audio: AudioInput | Recording) -> contextlib.AbstractContextManager[Recording]:
        """Open the audio and close it afterwards; a `Recording` passed by the caller stays open."""
        return contextlib.nullcontext(audio) if isinstance(audio, Recording) else Recording.open(audio)

    def _growing_recording(
        self, audio: AudioInput | Recording, options: TranscribeOptions
    ) -> contextlib.AbstractContextManager[Recording]:
        """The same without waiting until it is decoded."""
        if isinstance(audio, Recording):
            return contextlib.nullcontext(audio)
        return open_growing(audio, channels=options.channels)


def _count(inputs: Iterable[Any]) -> int | None:
    return len(inputs) if isinstance(inputs, Sized) else None
