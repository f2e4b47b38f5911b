"""Every error that Choral raises on purpose.

ChoralError
├── UsageError            2  400   an option or setting that cannot be right
├── AudioError            3  400   this audio cannot be transcribed
│   ├── AudioNotFound     3  404   no such file, folder without audio, URL that answers 404
│   ├── AudioDenied       3  403   it exists and may not be read
│   ├── AudioRefused      3  403   its address or path is one that this service does not read from
│   ├── AudioEmpty        3  400   there is not one sample in it
│   ├── NotAudio          3  415   no decoder knows it, or it is damaged beyond use
│   ├── NoAudioTrack      3  400   a video without sound
│   ├── BadSamples        3  400   NaN or infinite samples, or an array of the wrong shape or type
│   ├── AudioTooLarge     3  413   over a limit of size or length
│   └── FetchFailed       3  502   the network or the other server failed; worth another try
├── ModelError            4  500   this model cannot be used
│   ├── ModelNotFound     4  404   unknown name, or no source has it
│   ├── ModelCorrupt      4  500   cut short, tampered with, or not a Whisper model
│   └── DownloadFailed    4  502   no source could be reached; worth another try
├── StorageError          5  507   a disk that is full, or a place that cannot be written
├── EngineError           6  500   the engine could not do its work
│   ├── EngineClosed      6  503   it was shut down
│   ├── QueueFull         6  503   too much is waiting; worth another try
│   ├── WindowFailed      6  500   this window failed; others are not affected
│   └── OutOfMemory       6  507   the device has too little memory for the model
├── MissingDependency     7  500   an optional package is needed and not installed
├── JobError              8  500   a job of the queue gives no result
│   ├── JobNotFound       8  404   no such job, or its record has run out
│   ├── JobNotReady       8  409   what was asked for does not fit the state it is in
│   ├── JobFailed         8  422   it ended without a result; the text says why
│   ├── JobCancelled      8  410   somebody cancelled it
│   └── JobTimeout        8  504   it was not done in the time that was given
└── RedisUnavailable      9  503   Redis cannot be reached, or refuses; worth another try

The numbers are the exit code and the HTTP status: both are part of the interface and do not change.
`is_retryable` tells a failure that may pass, of a network, a disk or an engine, from one that stays.
"""

from __future__ import annotations

import warnings


class ChoralError(Exception):
    """The base of all; its text says what happened and what to do."""

    exit_code = 1
    http_status = 500
    is_retryable = False

    @property
    def is_worth_another_try(self) -> bool:
        """Deprecated name of `is_retryable`."""
        warnings.warn("is_worth_another_try is deprecated: use is_retryable", DeprecationWarning, stacklevel=2)
        return self.is_retryable


class UsageError(ChoralError):
    exit_code = 2
    http_status = 400


class AudioError(ChoralError):
    exit_code = 3
    http_status = 400


class AudioNotFound(AudioError):
    http_status = 404


class AudioDenied(AudioError):
    http_status = 403


class AudioRefused(AudioError):
    http_status = 403


class AudioEmpty(AudioError):
    pass


class NotAudio(AudioError):
    http_status = 415


class NoAudioTrack(AudioError):
    pass


class BadSamples(AudioError):
    pass


class AudioTooLarge(AudioError):
    http_status = 413


class FetchFailed(AudioError):
    http_status = 502
    is_retryable = True

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        super().__init__(text)
        if is_final:  # the server understood, and said no
            self.is_retryable = False


class ModelError(ChoralError):
    exit_code = 4


class ModelNotFound(ModelError):
    http_status = 404


class ModelCorrupt(ModelError):
    pass


class DownloadFailed(ModelError):
    http_status = 502
    is_retryable = True


class StorageError(ChoralError):
    exit_code = 5
    http_status = 507
    is_retryable = True


class EngineError(ChoralError):
    exit_code = 6
    is_retryable = True


class EngineClosed(EngineError):
    http_status = 503


class QueueFull(EngineError):
    http_status = 503

    def __init__(self, text: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s  # where somebody can tell


class WindowFailed(EngineError):
    pass


class OutOfMemory(EngineError):
    http_status = 507


class MissingDependency(ChoralError):
    exit_code = 7


class JobError(ChoralError):
    exit_code = 8


class JobNotFound(JobError):
    http_status = 404


class JobNotReady(JobError):
    http_status = 409


class JobFailed(JobError):
    http_status = 422


class JobCancelled(JobError):
    http_status = 410


class JobTimeout(JobError):
    http_status = 504


class RedisUnavailable(ChoralError):
    exit_code = 9
    http_status = 503
    is_retryable = True
