"""The error hierarchy: every error that Choral raises on purpose, with its exit code and HTTP status.

ChoralError
├── UsageError            2  400   an invalid option or setting
├── AudioError            3  400   this audio cannot be transcribed
│   ├── AudioNotFound     3  404   no such file, a folder without audio, or a URL that returns 404
│   ├── AudioDenied       3  403   no permission to read it
│   ├── AudioRefused      3  403   a URL or path that this service is not allowed to read
│   ├── AudioEmpty        3  400   it contains no samples
│   ├── NotAudio          3  415   no decoder recognises it, or it is damaged beyond use
│   ├── NoAudioTrack      3  400   a video without an audio track
│   ├── BadSamples        3  400   NaN or infinite samples, or an array of the wrong shape or type
│   ├── NoSpeech          3  400   a clip of a voice in which nobody speaks
│   ├── AudioTooLarge     3  413   over a size or length limit
│   └── FetchFailed       3  502   the network or the remote server failed; retryable
├── ModelError            4  500   the model cannot be used
│   ├── ModelNotFound     4  404   unknown name, or not available from any source
│   ├── ModelCorrupt      4  500   truncated, modified, or not a Whisper model
│   └── DownloadFailed    4  502   no source could be reached; retryable
├── StorageError          5  507   a full disk, or a path that cannot be written
├── EngineError           6  500   the engine failed
│   ├── EngineClosed      6  503   it was shut down
│   ├── QueueFull         6  503   too many windows are waiting; retryable
│   ├── WindowFailed      6  500   this window failed; other windows are not affected
│   └── OutOfMemory       6  507   the device has too little memory for the model
├── MissingDependency     7  500   a required optional package is not installed
├── JobError              8  500   a queued job has no result
│   ├── JobNotFound       8  404   no such job, or its record has expired
│   ├── JobNotReady       8  409   the job is in the wrong state for this operation
│   ├── JobFailed         8  422   it ended without a result; the message says why
│   ├── JobCancelled      8  410   it was cancelled
│   └── JobTimeout        8  504   it did not finish within the time limit
├── RedisUnavailable      9  503   Redis cannot be reached or refuses commands; retryable
└── ClusterError         10  503   a Ray cluster cannot be reached, or one of its nodes cannot be used

The columns are the exit code and the HTTP status; both are part of the public interface and do not change.
`is_retryable` marks transient failures (network, disk, engine) that a retry may resolve.
"""

from __future__ import annotations

import warnings


class ChoralError(Exception):
    """Base class; the message says what happened and what to do."""

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


class NoSpeech(AudioError):
    pass


class AudioTooLarge(AudioError):
    http_status = 413


class FetchFailed(AudioError):
    http_status = 502
    is_retryable = True

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        super().__init__(text)
        if is_final:  # the server refused: a retry would get the same response
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
        self.retry_after_s = retry_after_s  # None: unknown


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


class ClusterError(ChoralError):
    exit_code = 10
    http_status = 503
