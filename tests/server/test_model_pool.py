"""The models of a server with real engines: loading, idle models, the memory budget, failures."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from choral.config import EngineSettings
from choral.engine.engine_plan import EnginePlan
from choral.errors import EngineClosed, OutOfMemory, QueueFull, UsageError
from choral.model.drafts import NO_DRAFT
from choral.options import TranscribeOptions
from choral.server import model_loader, model_pool
from choral.server.api_errors import ApiError
from choral.server.health import Readiness
from choral.server.model_budget import MemoryBudget, PoolEntry
from choral.server.model_loader import LoadedModel, ModelLoader
from choral.server.model_pool import ModelPool
from choral.server.service import Service
from choral.server.settings import ServerSettings
from choral.serving.input_sources import OpenFile
from choral.serving.settings import ServingSettings

ENGINE = EngineSettings(engine="ctranslate2", device="cpu", threads=1)


async def wait_until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
def weights(tiny_en_ct2: Path, tmp_path: Path) -> list[str]:
    """The same weights under three names."""
    paths = [tmp_path / name for name in ("first", "second", "third")]
    for path in paths:
        path.symlink_to(tiny_en_ct2)
    return [str(path) for path in paths]


@asynccontextmanager
async def opened(names: list[str], **settings: object) -> AsyncIterator[Service]:
    loader = ModelLoader(ENGINE, ServingSettings(processes=1), at_once=4)
    chosen = ServerSettings(**settings)  # type: ignore[arg-type]
    pool = ModelPool(loader, [loader.describe(name) for name in names], chosen)
    try:
        pool.start()
        yield Service.of(pool, chosen)
    finally:
        pool.close()


def loaded_ids(service: Service) -> list[str]:
    return [loaded.id for loaded in service.models.loaded]


async def transcribe(service: Service, path: Path, model: str | None = None) -> str:
    with path.open("rb") as file:
        return (await service.transcribe(OpenFile("jfk.wav", file), TranscribeOptions(), model=model)).text


def process_exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_idle_models_end_their_processes_and_are_loaded_again(weights: list[str], jfk: Path) -> None:
    async def run() -> None:
        async with opened(weights[:2], idle_unload="0.3s", pin=("first",)) as service:
            assert loaded_ids(service) == []  # `load_first` was not called
            texts = [await transcribe(service, jfk)]
            texts += await asyncio.gather(*(transcribe(service, jfk, "second") for _ in range(2)))
            assert len(set(texts)) == 1
            assert "country" in texts[0]
            assert [entry.n_loads for entry in service.models.entries] == [1, 1]
            second = next(loaded for loaded in service.models.loaded if loaded.id == "second")
            assert second.memory_bytes > second.info.size_bytes
            assert second.engine_pid is not None
            await wait_until(lambda: loaded_ids(service) == ["first"])  # which is pinned
            await wait_until(lambda: not process_exists(second.engine_pid or 0))
            async with service.models.use("second") as again:
                await asyncio.sleep(0.6)  # longer than the limit, but in use
                assert loaded_ids(service) == ["first", "second"]
                assert again.engine_pid != second.engine_pid
            await wait_until(lambda: loaded_ids(service) == ["first"])
            with pytest.raises(ApiError, match="first is pinned"):
                await service.models.unload("first")

    asyncio.run(run())


def test_the_longest_idle_model_makes_room(weights: list[str]) -> None:
    async def run() -> None:
        async with opened(weights, models_memory="1MB") as service:  # one fits, because it is alone
            models = service.models
            async with models.use("first"):
                with pytest.raises(QueueFull, match="no memory for the model second while others are in use"):
                    async with models.use("second"):
                        pass
            async with models.use("second"):
                assert loaded_ids(service) == ["second"]
        async with opened(weights, models_memory="100GB") as service:
            models = service.models
            for name in ("first", "second", "first"):
                async with models.use(name):
                    pass
            entries = {entry.info.id: entry for entry in models.entries}
            used = entries["first"].memory_bytes + entries["second"].memory_bytes
            models._budget = type(models._budget)(used + 1)
            async with models.use("third"):
                assert "second" not in loaded_ids(service)
                assert "third" in loaded_ids(service)
        async with opened(weights[:2], models_memory="1MB", pin=("first",)) as service:
            async with service.models.use("first"):
                pass
            with pytest.raises(OutOfMemory, match="pin fewer models"):
                async with service.models.use("second"):
                    pass

    asyncio.run(run())


def test_the_weights_of_a_draft_model_count(weights: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, where drafts work; on a CPU there are none."""
    alone = ModelLoader(ENGINE, ServingSettings()).describe(weights[0])
    assert alone.weights_bytes == alone.size_bytes
    plan = EnginePlan("torch", "cuda:0", "float16", 1, "for this test")
    monkeypatch.setattr(model_loader, "plan_engine", lambda settings: plan)
    drafted = ModelLoader(replace(ENGINE, draft=weights[1]), ServingSettings()).describe(weights[0])
    assert drafted.weights_bytes == 2 * alone.size_bytes
    undrafted = ModelLoader(replace(ENGINE, draft=NO_DRAFT), ServingSettings()).describe(weights[0])
    assert undrafted.weights_bytes == alone.size_bytes
    small, large = PoolEntry(undrafted), PoolEntry(drafted)
    budget = MemoryBudget(alone.size_bytes)
    other = PoolEntry(alone, loaded=cast(LoadedModel, SimpleNamespace(memory_bytes=0)))
    assert budget.victim_for(small, [small, other]) is None
    assert budget.victim_for(large, [large, other]) is other


def test_a_model_that_fails_leaves_the_others_alone(
    weights: list[str], jfk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_pool, "RELOAD_AFTER_S", 1000.0)

    async def run() -> None:
        async with opened(weights) as service, AsyncExitStack() as stack:
            readiness = Readiness(service)
            first = await stack.enter_async_context(service.models.use("first"))
            await readiness.self_test(first.id)
            Path(weights[2]).unlink()
            with pytest.raises(EngineClosed, match="third cannot be loaded: the server's log says why"):
                await transcribe(service, jfk, "third")
            assert list(service.models.failed_models) == ["third"]
            assert readiness.status == "ready"
            second = await stack.enter_async_context(service.models.use("second"))
            assert second.engine_pid is not None
            os.kill(second.engine_pid, signal.SIGKILL)
            await wait_until(lambda: "second" in service.models.failed_models)
            assert service.models.engine_failure("second")
            assert readiness.status == "ready"
            with suppress(EngineClosed):  # unless the engine has been started again
                assert "country" in await transcribe(service, jfk, "second")
            assert "country" in await transcribe(service, jfk)
            await wait_until(lambda: "second" not in service.models.failed_models)
            assert "country" in await transcribe(service, jfk, "second")
            Path(weights[2]).symlink_to(Path(weights[1]).resolve())
            with pytest.raises(EngineClosed):  # the error is repeated for a while
                await transcribe(service, jfk, "third")
            monkeypatch.setattr(model_pool, "RELOAD_AFTER_S", 0.0)
            assert "country" in await transcribe(service, jfk, "third")
            assert not service.models.failed_models

    asyncio.run(run())


def test_a_load_goes_on_when_the_one_who_asked_leaves(weights: list[str]) -> None:
    async def use(pool: ModelPool) -> None:
        async with pool.use("first"):
            pass

    async def run() -> None:
        async with opened(weights[:2], idle_unload="0.2s") as service:
            asking = asyncio.create_task(use(service.models))
            await asyncio.sleep(0.05)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await wait_until(lambda: loaded_ids(service) == ["first"])
            await wait_until(lambda: loaded_ids(service) == [])  # it was idle from the start

    asyncio.run(run())


def test_settings_of_models_are_checked(weights: list[str], tmp_path: Path) -> None:
    loader = ModelLoader(ENGINE, ServingSettings())
    info = loader.describe(weights[0])
    with pytest.raises(UsageError, match="cannot pin 'other'"):
        ModelPool(loader, [info], ServerSettings(pin=("other",)))
    with pytest.raises(UsageError, match="two models are called 'first'"):
        ModelPool(loader, [info, info], ServerSettings())
    with pytest.raises(UsageError, match="idle_unload is 'soon'"):
        ServerSettings(idle_unload="soon")
    with pytest.raises(UsageError, match="models_memory is '8 elephants'"):
        ServerSettings(models_memory="8 elephants")
    settings = ServerSettings(idle_unload="10m", models_memory="1.5 GiB")
    assert (settings.idle_unload_s, settings.models_memory_bytes) == (600, 3 * 2**29)
