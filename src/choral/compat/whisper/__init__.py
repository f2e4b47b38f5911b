"""The interface of openai-whisper on Choral: `from choral.compat import whisper`.

`load_model(...).transcribe(...)` returns openai-whisper's dict, computed by sequential mode. `decode` and
`detect_language`, which take features, are not offered: Choral's engine takes audio.
"""

from choral.compat.whisper import tokenizer, utils
from choral.compat.whisper.audio import load_audio, log_mel_spectrogram, pad_or_trim
from choral.compat.whisper.model import Whisper, available_models, load_model
from choral.compat.whisper.transcribe import transcribe
from choral.compat.whisper.version import __version__

__all__ = [
    "Whisper",
    "__version__",
    "available_models",
    "load_audio",
    "load_model",
    "log_mel_spectrogram",
    "pad_or_trim",
    "tokenizer",
    "transcribe",
    "utils",
]
