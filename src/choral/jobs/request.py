"""What a client submits: audio, options, priority and callback, stored as versioned JSON.

Audio is referenced, not contained: a URL, a path on storage that workers share, a blob in Redis, or `inline`, which
means that the bytes are in the job's record.
"""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
from dataclasses import dataclass
from typing import Literal, get_args

from choral.errors import UsageError
from choral.jobs.job_states import DAY_S, KEEP_S
from choral.options import Priority, TranscribeOptions
from choral.remote.urls import MAX_SHOWN_CHARACTERS, redact_url, url_problem
from choral.validation import check_fields

VERSION = 1
UPDATE = "update the older Choral, or submit the job again"
AudioKind = Literal["url", "path", "inline", "blob"]
MAX_BRIEF_BYTES = 4096
MAX_ALIGNED_IN_JOB = 1_000_000  # characters: records are in Redis's memory
LONG_OPTIONS = tuple(field.name for field in dataclasses.fields(TranscribeOptions) if field.metadata.get("max_length"))


@dataclass(frozen=True)
class AudioRef:
    kind: AudioKind
    location: str  # the URL, path or blob name; empty for inline. Stored as "place", as version 1 requires
    name: str  # for display, without credentials

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    id: str
    audio: AudioRef
    options: TranscribeOptions
    model: str | None = None  # of a server with several; None: its default model, or that of the worker
    priority: Priority = "interactive"
    callback: str | None = None
    keep_s: int = KEEP_S  # how long record and result are kept after the job has ended
    align: str | None = None  # a text to be aligned with the audio; None: the audio is transcribed

    def __post_init__(self) -> None:
        require_id(self.id)
        if self.priority not in get_args(Priority):
            raise UsageError(f"priority is {self.priority!r}; it must be one of {', '.join(get_args(Priority))}")
        if self.callback is not None and not re.match(r"https?://[^/]", self.callback):
            raise UsageError(f"callback is {self.callback!r}; it must be an http or https URL")
        if not 60 <= self.keep_s <= 3650 * DAY_S:
            raise UsageError(f"keep_s is {self.keep_s!r}; it must be seconds, from 60 up to ten years")
        if self.align is not None:
            check_job_text(self.align, self.options)

    def check_callback(self) -> None:
        """Raise `UsageError` for a callback that can never be called; for new jobs, since queued ones stay readable."""
        if self.callback is not None and (problem := url_problem(self.callback)):
            raise UsageError(f"callback is {redact_url(self.callback)[:MAX_SHOWN_CHARACTERS]!r}; {problem}")

    def to_json(self) -> str:
        fields = {
            "v": VERSION,
            "id": self.id,
            "audio": {"kind": self.audio.kind, "place": self.audio.location, "name": self.audio.name},
            "options": self.options.changed(),
            "priority": self.priority,
            "callback": self.callback,
            "keep_s": self.keep_s,
            **({} if self.model is None else {"model": self.model}),
        }
        if self.align is not None:  # versions without it refuse the field, rather than transcribe
            fields["align"] = self.align
        return json.dumps(fields, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes, *, is_brief: bool = False) -> JobRequest:
        """Raises `UsageError`, and nothing else, for a request that this version cannot read.

        `is_brief`: for listings, without the texts and lists among the options if the request is long.
        """
        try:
            text = text if isinstance(text, str) else text.decode()
            fields = json.loads(text)
            if "\\u" in text:
                json.dumps(fields, ensure_ascii=False).encode()  # half of a surrogate pair could not be shown
            version = fields.pop("v", None)
            if version != VERSION:
                raise UsageError(f"this job has version {version!r}, and this Choral reads {VERSION}: {UPDATE}")
            audio, options = fields.pop("audio"), fields.pop("options")
            audio_ref = AudioRef(location=audio.pop("place"), **audio)
            if is_brief and len(text) > MAX_BRIEF_BYTES:
                options = {name: value for name, value in options.items() if name not in LONG_OPTIONS}
                fields.pop("align", None)
            return cls(audio=audio_ref, options=TranscribeOptions.of(**options), **fields)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UsageError(f"this job cannot be read ({type(error).__name__}: {error}): {UPDATE}") from error


def check_job_text(text: str, options: TranscribeOptions) -> None:
    """Raise `UsageError` for a text that no job can align."""
    from choral.longform.alignment import check_alignment  # few jobs need it

    check_alignment(text, options)
    if len(text) > MAX_ALIGNED_IN_JOB:
        raise UsageError(
            f"the text has {len(text):,} characters, and a job takes at most {MAX_ALIGNED_IN_JOB:,}: "
            "use `choral align` or POST /v1/audio/alignments"
        )


def new_id() -> str:
    return secrets.token_hex(8)


def require_id(job_id: str) -> str:
    if not isinstance(job_id, str) or not re.fullmatch(r"[A-Za-z0-9_.:-]{1,128}", job_id):
        raise UsageError(
            f"{job_id!r} is not a valid job id; it must be 1 to 128 letters, digits, dots, colons or dashes"
        )
    return job_id
