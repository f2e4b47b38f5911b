"""OpenAI's fields `known_speaker_names[]` and `known_speaker_references[]`: clips of voices, as data URLs.

What is in the clips is checked by the process that decodes them; here, only that there is one for each name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from choral.diarization import check_speaker_names
from choral.errors import UsageError
from choral.server.api_errors import ApiError
from choral.speakers.reference_clips import DATA_URL, ReferenceClip

MAX_KNOWN_SPEAKERS = 4  # as in OpenAI's API
NAMES, REFERENCES = "known_speaker_names", "known_speaker_references"
_AT_MOST: dict[str, Any] = {"maxItems": MAX_KNOWN_SPEAKERS}


def names_field() -> Any:
    text = "names of known speakers, in the order of their references"
    return Field([], alias=f"{NAMES}[]", description=text, json_schema_extra=_AT_MOST)


def references_field() -> Any:
    text = "a clip of each known speaker: data URLs with 2 to 10 s of audio"
    return Field([], alias=f"{REFERENCES}[]", description=text, json_schema_extra=_AT_MOST)


def reference_clips(names: Sequence[str], references: Sequence[str]) -> tuple[ReferenceClip, ...]:
    """Raises `ApiError` for names and references that do not fit together."""
    for field, values in ((NAMES, names), (REFERENCES, references)):
        if len(values) > MAX_KNOWN_SPEAKERS:
            text = f"{field} has {len(values)} values: send at most {MAX_KNOWN_SPEAKERS}"
            raise ApiError(text, param=field, code="array_above_max_length")
    if len(names) != len(references):
        text = f"there are {len(names)} {NAMES} and {len(references)} {REFERENCES}: send a reference for each name"
        raise ApiError(text, param=REFERENCES if names else NAMES, code="invalid_value")
    try:
        check_speaker_names(NAMES, names)
    except UsageError as error:
        raise ApiError(str(error), param=NAMES, code="invalid_value") from error
    for name, url in zip(names, references, strict=True):
        if not re.match(DATA_URL, url):
            text = f"{REFERENCES}: that of {name!r} is not a data URL: send data:audio/wav;base64,…"
            raise ApiError(text, param=REFERENCES, code="invalid_value")
    return tuple(ReferenceClip(name, url) for name, url in zip(names, references, strict=True))
