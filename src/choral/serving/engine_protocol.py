"""Messages between an engine's server and its clients: windows and their results as structs and JSON.

Nothing is pickled, and a server checks all it receives: clients parse hostile media, and one that was taken over must
not take over the engine. Numbers arrive exactly as they were sent. A window is named by the slot of the shared memory
that its samples are in: a slot holds one window until its result was sent.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, Literal, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from choral.audio.constants import WINDOW_FRAMES, WINDOW_MEL_FRAMES
from choral.config import EngineSettings
from choral.engine.capacity import Capacity
from choral.engine.hotword_trie import HotwordTrie
from choral.engine.window import (
    Aligned,
    AlignParams,
    Decoded,
    DecodeParams,
    DetectLanguageParams,
    Languages,
    Params,
    TokenTimes,
    Window,
)
from choral.model.dims import ModelDims
from choral.options import Priority
from choral.serving.message_socket import Body, ProtocolError
from choral.validation import union_members

MAX_REQUEST_BYTES = 2**20  # of one message to the server
PRIORITIES: tuple[Priority, ...] = ("interactive", "batch")
PARAMS: tuple[type[Params[Any]], ...] = (DecodeParams, DetectLanguageParams, AlignParams)

TOKEN_BYTES = 4
# Every other number only has to be finite.
_RANGES = {
    "n_candidates": (1, 4096),
    "temperature": (0, 1000),
    "max_tokens": (1, 10**6),
    "n_frames": (0, WINDOW_FRAMES),
}

HELLO = struct.Struct("<I")  # slots of the arena; its descriptor comes with this
SLOT = struct.Struct("<I")
_SUBMIT = struct.Struct("<IIIId32sBBI")
_DECODED = struct.Struct("<ddIB")
_ALIGNED = struct.Struct("<IIIII")
_TIMES = struct.Struct("<II")


class Request(IntEnum):
    """Messages of a client."""

    SUBMIT = 1
    CANCEL = 2  # a slot
    FORGET_CALLER = 3  # a number
    CLEAR_CACHE = 4
    STATS = 5
    SELF_TEST = 6
    HOTWORDS = 7  # that windows after it may name


class Reply(IntEnum):
    """Messages of a server: results and errors start with the slot of their window."""

    HELLO = 1
    DECODED = 2
    ALIGNED = 3
    TOKEN_TIMES = 4
    LANGUAGES = 5
    WINDOW_FAILED = 6
    FAILURE = 7  # of the engine, or null, and its failed devices; sent at first and when they change
    STATS = 8
    SELF_TEST = 9  # its error, or null


@dataclass(frozen=True)
class EngineDescription:
    """What a client needs to know of the engine and its model."""

    name: str
    device: str
    compute_type: str
    n_devices: int
    capacity: Capacity
    settings: EngineSettings
    dims: ModelDims
    vocabulary: tuple[bytes, ...] | None

    def to_json(self) -> bytes:
        fields = dataclasses.asdict(self)
        if self.vocabulary is not None:
            fields["vocabulary"] = [token.decode("latin-1") for token in self.vocabulary]
        return json.dumps(fields).encode()

    @classmethod
    def from_json(cls, body: Body) -> EngineDescription:
        fields = json.loads(bytes(body))
        vocabulary = fields.pop("vocabulary")
        return cls(
            capacity=Capacity(**fields.pop("capacity")),
            settings=EngineSettings(**fields.pop("settings")),
            dims=ModelDims(**fields.pop("dims")),
            vocabulary=None if vocabulary is None else tuple(token.encode("latin-1") for token in vocabulary),
            **fields,
        )


@dataclass(frozen=True)
class SubmittedWindow:
    """A window as it arrives at the server; its samples are in the slot."""

    slot: int
    caller: int  # a number that the client chose; 0: none
    n_samples: int
    lead: int
    n_mel_frames: int
    mel_peak: float | None
    priority: Priority
    key: bytes
    params: Params[Any]


def encode_window(window: Window[Any], caller: int, priority: Priority) -> bytes:
    """The message without the slot, which comes first."""
    audio, params = window.audio, window.params
    fields, tokens = [], array("i")
    for value in vars(params).values():
        is_tokens = type(value) is tuple
        is_trie = type(value) is HotwordTrie
        fields.append(len(value) if is_tokens else value.digest.hex() if is_trie else value)
        if is_tokens:
            tokens.extend(value)
    text = json.dumps(fields).encode()
    head = _SUBMIT.pack(
        caller,
        audio.samples.size,
        audio.lead,
        audio.n_mel_frames,
        math.nan if audio.mel_peak is None else audio.mel_peak,
        audio.key,
        PRIORITIES.index(priority),
        PARAMS.index(type(params)),
        len(text),
    )
    return head + text + tokens.tobytes()


def decode_window(body: Body, hotwords: Mapping[str, HotwordTrie]) -> SubmittedWindow:
    """Raises `ProtocolError` for values that no client of ours sends."""
    try:
        (slot,) = SLOT.unpack_from(body)
        start = SLOT.size + _SUBMIT.size
        *audio, mel_peak, key, priority, kind, n_text = _SUBMIT.unpack_from(body, SLOT.size)
        caller, n_samples, lead, n_mel_frames = audio
        text, tokens = bytes(body[start : start + n_text]), memoryview(body)[start + n_text :].cast("i")
        params = _decode_params(kind, text, tokens, hotwords)
        if lead > n_samples or n_mel_frames > WINDOW_MEL_FRAMES or math.isinf(mel_peak):
            raise ValueError("the window is not part of a recording")
        peak = None if math.isnan(mel_peak) else mel_peak
        return SubmittedWindow(slot, caller, n_samples, lead, n_mel_frames, peak, PRIORITIES[priority], key, params)
    except (struct.error, ValueError, TypeError, LookupError, RecursionError) as error:
        raise ProtocolError(f"a malformed window: {error}") from error


def _decode_params(kind: int, text: bytes, tokens: memoryview, hotwords: Mapping[str, HotwordTrie]) -> Params[Any]:
    fields, token_counts = _decode_fields(kind, text)
    values, start = dict(fields), 0
    for name, n_tokens in token_counts.items():
        values[name] = tuple(tokens[start : start + n_tokens])
        start += n_tokens
    if start != len(tokens):
        raise ValueError("tokens are missing")
    if values.get("hotwords") is not None:
        values["hotwords"] = hotwords[values["hotwords"]]
    return PARAMS[kind](**values)


@lru_cache(maxsize=256)  # windows differ in their tokens, and little in the rest
def _decode_fields(kind: int, text: bytes) -> tuple[dict[str, Any], dict[str, int]]:
    """The checked fields of parameters, and of those that are tokens, how many. The runner checks texts and tokens."""
    fields = dict(zip(_FIELD_TYPES[kind], _JSON.decode(text.decode()), strict=True))
    token_counts = {}
    for name, accepted in _FIELD_TYPES[kind].items():
        value = fields[name]
        low, high = _RANGES.get(name, (-math.inf, math.inf))
        if type(value) not in accepted:
            raise TypeError(f"{name} is a {type(value).__name__}")
        if type(value) in (int, float) and not low <= value <= high:
            raise ValueError(f"{name} is out of range")
        if tuple in accepted:
            token_counts[name] = fields.pop(name)
            if token_counts[name] < 0:
                raise ValueError(f"{name} has a negative length")
    return fields, token_counts


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


_JSON = json.JSONDecoder(parse_constant=_refuse_constant)


def _field_types(kind: type[Params[Any]]) -> dict[str, set[type]]:
    """The types that a field may have in JSON: an integer may stand for a float, and for tokens their number.

    The digest of a hotword trie stands for it.
    """
    types: dict[str, set[type]] = {}
    for name, hint in get_type_hints(kind).items():
        members = [get_origin(member) or member for member in union_members(hint)]
        types[name] = {str if member in (Literal, HotwordTrie) else member for member in members}
        if types[name] & {float, tuple}:
            types[name].add(int)
    return types


_FIELD_TYPES = tuple(map(_field_types, PARAMS))


def decode_number(body: Body) -> int:
    """A slot or the number of a caller."""
    if len(body) != SLOT.size:
        raise ProtocolError("a malformed number")
    number: int = SLOT.unpack(body)[0]
    return number


def encode_result(slot: int, result: object) -> tuple[Reply, list[Body]]:
    head = SLOT.pack(slot)
    match result:
        case Decoded(tokens, avg_logprob, no_speech_prob, logprobs):
            numbers = _DECODED.pack(avg_logprob, no_speech_prob, len(tokens), logprobs is not None)
            logprob_bytes = b"" if logprobs is None else array("d", logprobs).tobytes()
            return Reply.DECODED, [head + numbers + array("i", tokens).tobytes() + logprob_bytes]
        case Aligned(scores, n_start_tokens, token_probs):
            shape = _ALIGNED.pack(*scores.shape, n_start_tokens, token_probs.size)
            return Reply.ALIGNED, [head + shape, _raw_bytes(token_probs), _raw_bytes(scores)]
        case TokenTimes(token_frames, token_probs):
            sizes = _TIMES.pack(token_frames.size, token_probs.size)
            return Reply.TOKEN_TIMES, [head + sizes, _raw_bytes(token_frames), _raw_bytes(token_probs)]
        case Languages(probabilities):
            return Reply.LANGUAGES, [head + json.dumps(probabilities).encode()]
    raise TypeError(f"unknown result: {result!r}")


def decode_result(kind: Reply, body: Body) -> Decoded | Aligned | TokenTimes | Languages:
    """The body without its slot."""
    match kind:
        case Reply.DECODED:
            avg_logprob, no_speech_prob, n_tokens, has_logprobs = _DECODED.unpack_from(body)
            end = _DECODED.size + n_tokens * TOKEN_BYTES
            tokens = tuple(memoryview(body)[_DECODED.size : end].cast("i"))
            logprobs = tuple(memoryview(body)[end:].cast("d")) if has_logprobs else None
            return Decoded(tokens, avg_logprob, no_speech_prob, logprobs)
        case Reply.ALIGNED:
            *shape, n_start_tokens, n_probs = _ALIGNED.unpack_from(body)
            probs = np.frombuffer(body, np.float32, n_probs, _ALIGNED.size)
            scores = np.frombuffer(body, np.float32, offset=_ALIGNED.size + probs.nbytes).reshape(shape)
            return Aligned(scores, n_start_tokens, probs)
        case Reply.TOKEN_TIMES:
            n_frames, n_probs = _TIMES.unpack_from(body)
            frames = np.frombuffer(body, np.intp, n_frames, _TIMES.size)
            return TokenTimes(frames, np.frombuffer(body, np.float32, n_probs, _TIMES.size + frames.nbytes))
        case Reply.LANGUAGES:
            return Languages(json.loads(bytes(body)))
    raise TypeError(f"not a result: {kind!r}")


def _raw_bytes(values: npt.NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
