"""Messages between a server and its session processes: JSON frames, and descriptors beside them.

To a process: `ProcessStart` once, then `open` (with the descriptor of a connection), `drain`, `refuse` and `stop` of a
session, `engine` (with the descriptor of a connection to an engine that was started again) and `alive`. From a process:
`ready`, `alive`, `charge` and `ended` of a session, and `metrics`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import BaseModel

from choral.server.api_errors import ApiError
from choral.server.model_names import ModelNames
from choral.server.realtime.session import SessionStart
from choral.server.realtime.session_config import SessionConfig
from choral.server.realtime.session_host import SessionLimits
from choral.serving.request_protocol import ProcessMessage


@dataclass(frozen=True)
class ProcessStart:
    """What a session process needs to know of its server."""

    names: ModelNames
    limits: SessionLimits
    n_processes: int


def encode_process_start(start: ProcessStart) -> ProcessMessage:
    return ["start", asdict(start)]


def decode_process_start(message: ProcessMessage) -> ProcessStart:
    fields = message[1]
    names = fields["names"]
    model_names = ModelNames(tuple(names["model_ids"]), names["targets"], names["accepts_any"])
    return ProcessStart(model_names, SessionLimits(**fields["limits"]), fields["n_processes"])


def encode_session_start(start: SessionStart) -> list[Any]:
    return [_given_fields(start.config), start.is_beta, start.unknown_params]


def decode_session_start(values: list[Any]) -> SessionStart:
    fields, is_beta, unknown_params = values
    # As JSON, because pydantic takes lists for tuples only from there. The server has checked the names.
    config = SessionConfig.model_validate_json(json.dumps(fields))
    return SessionStart(config, is_beta, tuple(unknown_params))


def _given_fields(value: Any) -> Any:
    """The fields that were given, in all depths; the others follow from them."""
    if isinstance(value, BaseModel):
        return {name: _given_fields(getattr(value, name)) for name in value.model_fields_set}
    return value


def encode_refusal(error: ApiError) -> list[Any]:
    return [str(error), error.http_status, error.param, error.code]


def decode_refusal(values: list[Any]) -> ApiError:
    text, status, param, code = values
    return ApiError(text, status=status, param=param, code=code)
