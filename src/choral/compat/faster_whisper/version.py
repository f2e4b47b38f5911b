"""The version of faster-whisper whose interface this is."""

__version__ = "1.2.1"
