"""The Python front door: `choral.load(...)` gives a `Model`, which transcribes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, get_args

from choral.audio.recording import Recording
from choral.config import ComputeType, EngineName, EngineSettings
from choral.engine.engine import EngineStats
from choral.engine.factory import make_engine, pick_engine
from choral.engine.group import AnyEngine
from choral.errors import UsageError
from choral.longform.align import align
from choral.longform.language import detect_language
from choral.longform.transcriber import OnProgress, Transcriber, Transcription
from choral.model.store import Store, default_model
from choral.model.tokenizer import Tokenizer
from choral.model.weights import open_checkpoint
from choral.types import Priority, Segment, Token, TranscribeOptions, Transcript, Word

if TYPE_CHECKING:
    from choral.audio.recording import AudioInput


# Requests at once, of each device: long files are one window after another, so there are as many as it has slots; and a
# few more, since some are always between two windows.
SPARE_REQUESTS, MOST_REQUESTS = 8, 64


def load(
    model: str | Path | None = None,
    *,
    engine: EngineName = "auto",
    device: str = "auto",
    compute_type: ComputeType = "auto",
    threads: int = 0,
    on_download: Callable[[int, int | None], None] | None = None,
) -> Model:
    """Loads a model by name, Hugging Face id, or path, and fetches it first if need be.

    Without a name it is `large-v3-turbo` with CUDA and `base` on a CPU. `on_download` is told the bytes done and
    in all.
    """
    settings = EngineSettings(engine=engine, device=device, compute_type=compute_type, threads=threads)
    return load_with(settings, model, on_download=on_download)


def load_with(
    settings: EngineSettings,
    model: str | Path | None = None,
    *,
    on_download: Callable[[int, int | None], None] | None = None,
) -> Model:
    """The same with every setting of the engine: its slots, encoder budget, queue limit, and so on."""
    kind = pick_engine(settings)
    name = str(model) if model is not None else default_model(cuda=kind == "torch" and uses_cuda(settings))
    checkpoint = open_checkpoint(Store().resolve(name, on_progress=on_download))
    tokenizer = Tokenizer.for_checkpoint(checkpoint.dims, checkpoint.vocabulary)
    engine = make_engine(checkpoint, tokenizer, settings)
    return Model(name, engine, Transcriber(engine, tokenizer, checkpoint.dims))


class Model:
    """A loaded model. Use it from any number of threads; close it, or use it in a `with`, to free its memory."""

    def __init__(self, name: str, engine: AnyEngine, transcriber: Transcriber) -> None:
        self.name = name
        self._engine, self._transcriber = engine, transcriber

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
        """Whether it knows other languages than English, and can translate."""
        return self._transcriber.tokenizer.is_multilingual

    @property
    def transcriber(self) -> Transcriber:
        """For servers that lay out windows themselves, of sound that is just being spoken."""
        return self._transcriber

    @property
    def n_slots(self) -> int:
        return self._engine.capacity.n_slots

    @property
    def encoder_budget(self) -> int:
        """Frames that one encoder step may take; a window has 1,500."""
        return self._engine.settings.encoder_budget

    @property
    def is_working(self) -> bool:
        """False when it was closed, or its engine has failed: nothing can be transcribed then."""
        return self._engine.is_working

    @property
    def requests_at_once(self) -> int:
        """How many requests keep all devices busy; more would only wait."""
        return len(self.device.split(", ")) * min(self.n_slots + SPARE_REQUESTS, MOST_REQUESTS)

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
        **given: Any,
    ) -> Transcript:
        """The whole transcript. Options come as `TranscribeOptions` or by name: `language="en"`.

        Requests of priority "batch" go behind "interactive" ones, but never wait for ever.
        """
        with self._recording(audio) as recording:
            transcription = self._start(recording, options, given, on_progress, priority)
            for segment in transcription:
                if on_segment is not None:
                    on_segment(segment)
            return transcription.transcript()

    def begin(
        self,
        recording: Recording,
        options: TranscribeOptions,
        *,
        on_progress: OnProgress | None = None,
        priority: Priority = "interactive",
    ) -> Transcription:
        """For servers: the work is done as it is iterated, and any thread may `stop()` it. The recording is yours."""
        return self._start(recording, options, {}, on_progress, priority)

    def stream(
        self,
        audio: AudioInput | Recording,
        options: TranscribeOptions | None = None,
        *,
        priority: Priority = "interactive",
        **given: Any,
    ) -> Iterator[Segment]:
        """Segments, as soon as each is final."""
        with self._recording(audio) as recording:
            yield from self._start(recording, options, given, None, priority)

    def text_tokens(self, segment: Segment) -> list[Token]:
        """The tokens of its text, with what each was worth; of a transcript with `token_logprobs`."""
        if segment.token_logprobs is None:
            raise UsageError("the log-probabilities of tokens were not kept: transcribe with token_logprobs=True")
        tokenizer, pairs = self._transcriber.tokenizer, zip(segment.tokens, segment.token_logprobs, strict=True)
        return [Token(tokenizer.token_bytes(token), logprob) for token, logprob in pairs if token < tokenizer.eot]

    def detect_language(self, audio: AudioInput | Recording) -> dict[str, float]:
        """The probability of each language, likeliest first, from the first 30 s."""
        with self._recording(audio) as recording:
            found = detect_language(self._engine, recording, self._transcriber.dims.n_mels).probabilities
        return dict(sorted(found.items(), key=lambda item: item[1], reverse=True))

    def align(
        self,
        audio: AudioInput | Recording,
        text: str,
        *,
        language: str | None = None,
        options: TranscribeOptions | None = None,
    ) -> tuple[Word, ...]:
        """Where each word of a known text lies in at most 30 s of audio."""
        with self._recording(audio) as recording:
            return align(self._transcriber, recording, text, language, options or TranscribeOptions())

    def close(self) -> None:
        self._engine.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(
        self,
        recording: Recording,
        options: TranscribeOptions | None,
        given: dict[str, Any],
        on_progress: OnProgress | None,
        priority: Priority,
    ) -> Transcription:
        if options is not None and given:
            raise UsageError("give either options or single options by name, not both")
        if options is not None and not isinstance(options, TranscribeOptions):
            raise UsageError("options must be choral.TranscribeOptions(...); or give them by name: language='en'")
        chosen = options if options is not None else TranscribeOptions.of(**given)
        if priority not in get_args(Priority):
            raise UsageError(f"priority is {priority!r}; it must be one of {', '.join(get_args(Priority))}")
        return self._transcriber.start(recording, chosen, on_progress, priority)

    def _recording(self, audio: AudioInput | Recording) -> contextlib.AbstractContextManager[Recording]:
        """A recording of the caller's own stays open; one made here is closed when done."""
        return contextlib.nullcontext(audio) if isinstance(audio, Recording) else Recording.open(audio)


def uses_cuda(settings: EngineSettings) -> bool:
    if (settings.devices or settings.device) == "cpu":
        return False
    import torch

    return torch.cuda.is_available()
