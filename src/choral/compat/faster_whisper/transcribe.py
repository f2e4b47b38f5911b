"""The names of `faster_whisper.transcribe`."""

from choral.compat.faster_whisper.results import Segment, TranscriptionInfo, TranscriptionOptions, VadOptions, Word
from choral.compat.faster_whisper.tokenizer import Tokenizer, get_suppressed_tokens
from choral.compat.faster_whisper.whisper_model import BatchedInferencePipeline, WhisperModel

__all__ = [
    "BatchedInferencePipeline",
    "Segment",
    "Tokenizer",
    "TranscriptionInfo",
    "TranscriptionOptions",
    "VadOptions",
    "WhisperModel",
    "Word",
    "get_suppressed_tokens",
]
