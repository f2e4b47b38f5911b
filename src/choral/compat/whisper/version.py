"""The version of openai-whisper whose interface this is."""

__version__ = "20250625"
