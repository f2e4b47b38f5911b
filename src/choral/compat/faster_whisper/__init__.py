"""The interface of faster-whisper on Choral: `from choral.compat import faster_whisper`.

Same signatures, generators and results. An option without a counterpart in Choral raises, or warns if it has little
effect on the text. What works on CTranslate2's objects (`encode`, `generate_segments`, features) is not offered.
"""

from choral.compat.faster_whisper.audio import decode_audio
from choral.compat.faster_whisper.transcribe import (
    BatchedInferencePipeline,
    Segment,
    TranscriptionInfo,
    TranscriptionOptions,
    VadOptions,
    WhisperModel,
    Word,
)
from choral.compat.faster_whisper.utils import available_models, download_model, format_timestamp
from choral.compat.faster_whisper.version import __version__

__all__ = [
    "BatchedInferencePipeline",
    "Segment",
    "TranscriptionInfo",
    "TranscriptionOptions",
    "VadOptions",
    "WhisperModel",
    "Word",
    "__version__",
    "available_models",
    "decode_audio",
    "download_model",
    "format_timestamp",
]
