"""Times as text."""

from choral.compat.faster_whisper.utils import format_timestamp

__all__ = ["format_timestamp"]
