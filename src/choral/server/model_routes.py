"""Models at run time: what is loaded, and for admin keys adding, removing, loading and unloading them.

`POST` and `DELETE /v1/models/{id}` and `/api/ps` are those of speaches. Adding a model downloads and stores gigabytes
that somebody else chose, so it needs a key that `choral keys add --admin` made; a server without keys refuses it.
"""

from __future__ import annotations

import time
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel
from starlette.responses import Response

from choral.common.aio import run_in_thread
from choral.model.store import ModelStore
from choral.server.admission import AdmissionControl
from choral.server.api_errors import ApiError, error_responses
from choral.server.model_budget import PoolEntry
from choral.server.model_names import MAX_MODEL_NAME_CHARACTERS
from choral.server.quota import principal_of
from choral.server.service import Service

ModelName = Annotated[str, Path(max_length=MAX_MODEL_NAME_CHARACTERS)]


class LoadedModelBody(BaseModel):
    id: str
    device: str
    compute_type: str
    memory_bytes: int  # of its engine; 0: it shares the process of the server
    requests: int  # requests, jobs and live sessions that use it
    idle_s: float
    pinned: bool


class LoadedModelsBody(BaseModel):
    models: list[str]
    details: list[LoadedModelBody]


class ChangedModelBody(BaseModel):
    id: str
    object: Literal["model"] = "model"
    status: Literal["added", "served", "deleted", "loaded", "unloaded"]


def make_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["models"])
    pool = service.models
    downloads = AdmissionControl(1, "downloads")
    errors = error_responses(401, 404, 409, 503, 507)

    @router.get("/api/ps", summary="List the models that are in memory", responses=error_responses(401))
    async def loaded_models() -> LoadedModelsBody:
        details = [body for entry in pool.entries if (body := _loaded_body(entry)) is not None]
        return LoadedModelsBody(models=[body.id for body in details], details=details)

    @router.post("/v1/models/{model:path}", summary="Download a model, and serve it", responses=errors)
    async def add(request: Request, response: Response, model: ModelName) -> ChangedModelBody:
        _require_admin(request)
        service.requests.require_capacity()
        with downloads.admit():
            is_new = await pool.add(model)
        response.status_code = 201 if is_new else 200
        return ChangedModelBody(id=model, status="added" if is_new else "served")

    @router.delete("/v1/models/{model:path}", summary="Delete a model", responses=errors)
    async def remove(request: Request, model: ModelName) -> ChangedModelBody:
        _require_admin(request)
        if not pool.info(model).is_stored:
            text = f"{model} is a file or folder of this machine: it is not deleted over HTTP"
            raise ApiError(text, status=409, param="model", code="local_model")
        info = await pool.remove(model)
        await run_in_thread(lambda: ModelStore().remove(info.id), "model-remove")
        return ChangedModelBody(id=info.id, status="deleted")

    @router.post("/api/ps/{model:path}", summary="Load a model", responses=errors)
    async def load(request: Request, model: ModelName) -> ChangedModelBody:
        _require_admin(request)
        async with service.hold_model(model) as loaded:
            return ChangedModelBody(id=loaded.id, status="loaded")

    @router.delete("/api/ps/{model:path}", summary="Unload a model", responses=errors)
    async def unload(request: Request, model: ModelName) -> ChangedModelBody:
        _require_admin(request)
        await pool.unload(model)
        return ChangedModelBody(id=service.names.resolve(model), status="unloaded")

    return router


def _require_admin(request: Request) -> None:
    key = principal_of(request).key
    if key is None or not key.admin:
        text = "this needs an admin key: `choral keys add NAME --admin --file FILE` makes one"
        raise ApiError(text, status=403, code="admin_key_required")


def _loaded_body(entry: PoolEntry) -> LoadedModelBody | None:
    if entry.loaded is None:
        return None
    return LoadedModelBody(
        id=entry.info.id,
        device=entry.loaded.model.device,
        compute_type=entry.loaded.model.compute_type,
        memory_bytes=entry.loaded.memory_bytes,
        requests=entry.n_users,
        idle_s=0.0 if entry.n_users else round(time.monotonic() - entry.last_used_s, 1),
        pinned=entry.is_pinned,
    )
