"""A `Service` with one model that the test has loaded."""

from __future__ import annotations

import choral
from choral.server.model_loader import LoadedModel, ModelInfo
from choral.server.model_pool import ModelPool
from choral.server.service import Service
from choral.server.settings import ServerSettings
from choral.serving.runtime import Runtime
from choral.serving.settings import ServingSettings


def service_of(model: choral.Model, runtime: Runtime, settings: ServerSettings) -> Service:
    info = ModelInfo("tiny.en", model.name, model.transcriber.tokenizer, size_bytes=0)
    return Service.of(ModelPool.of_one(LoadedModel.of(info, model, runtime), ServingSettings(), settings), settings)
