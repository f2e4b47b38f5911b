"""The names under which clients may ask for a server's models: their own, those of other projects, and configured ones.

OpenAI's names stand for the default model, so that its clients work unchanged. The names of the same weights on
Hugging Face are those that vLLM and speaches serve them under.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from choral.errors import UsageError
from choral.model import catalog
from choral.server.api_errors import ApiError

OPENAI_NAMES = (
    "whisper-1",
    "gpt-4o-transcribe",
    "gpt-4o-mini-transcribe",
    "gpt-4o-mini-transcribe-2025-12-15",
    "gpt-4o-transcribe-diarize",
    "gpt-transcribe",
    "gpt-live-transcribe",
    "gpt-realtime-whisper",
)
MAX_MODEL_NAME_CHARACTERS = 256
MAX_SHOWN_CHARACTERS = 100


@dataclass(frozen=True)
class ModelNames:
    model_ids: tuple[str, ...]  # the models' own names; the default model first
    targets: Mapping[str, str]  # every name and the model that it stands for; the models' own first
    accepts_any: bool = False  # a name that is none of these is the default model

    @classmethod
    def of(cls, model_ids: Sequence[str], aliases: Sequence[str] = (), *, accepts_any: bool = False) -> ModelNames:
        """`aliases` are of the form NAME=MODEL, in which MODEL is a name of a model that is served."""
        targets = {model_id: model_id for model_id in model_ids}
        targets |= {name: model_ids[0] for name in OPENAI_NAMES if name not in targets}
        for model_id in model_ids:
            for name in _hub_names(model_id):
                targets.setdefault(name, model_id)
        for alias in aliases:
            name, target = alias_name(alias), alias.partition("=")[2].strip()
            if not name or len(name) > MAX_MODEL_NAME_CHARACTERS:
                raise UsageError(f"alias {alias!r} must look like NAME=MODEL, for example my-whisper={model_ids[0]}")
            if target not in targets:
                raise UsageError(f"alias {alias!r} is for a model that is not served: write {name}={model_ids[0]}")
            if name not in model_ids:
                targets[name] = targets[target]
        return cls(tuple(model_ids), targets, accepts_any)

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(self.targets)

    @property
    def default(self) -> str:
        return self.model_ids[0]

    def __contains__(self, name: str) -> bool:
        return name in self.targets or (self.accepts_any and 0 < len(name) <= MAX_MODEL_NAME_CHARACTERS)

    def resolve(self, name: str | None) -> str:
        """The model's own name; None is the default model. An unknown name is a 404."""
        if name is None:
            return self.default
        if name not in self:
            raise ApiError(
                f"there is no model {name[:MAX_SHOWN_CHARACTERS]!r} here: {self.advice}",
                status=404,
                param="model",
                code="model_not_found",
            )
        return self.targets.get(name, self.default)

    def of_model(self, model_id: str) -> ModelNames:
        """What a session with this model may be asked for: its names, and OpenAI's, which stand for any model."""
        own = {name: model_id for name, target in self.targets.items() if target == model_id or name in OPENAI_NAMES}
        return dataclasses.replace(self, model_ids=(model_id,), targets={model_id: model_id, **own})

    @property
    def advice(self) -> str:
        return f"use {self.default} or {OPENAI_NAMES[0]}; GET /v1/models lists all names"


def alias_name(alias: str) -> str:
    """Of NAME=MODEL."""
    return alias.partition("=")[0].strip()


def _hub_names(model_id: str) -> Iterator[str]:
    """Repositories with the same weights on Hugging Face, and other names of them."""
    known = catalog.find(model_id)
    if known is None or known.repo is None:
        return
    yield from (known.name, *known.aliases, known.repo)
    is_distilled = known.name.startswith("distil-")
    size = known.name.removeprefix("distil-")
    yield f"Systran/faster-{'distil-' if is_distilled else ''}whisper-{size}"
