"""The models of a server: loaded when they are first used, unloaded when idle or when others need their memory.

Every request, job and live session holds its model while it runs; a model that somebody holds is never unloaded. Loads
and unloads take place one at a time, so that the memory is counted right. Used in the event loop only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from choral.api import Model
from choral.common.aio import run_in_thread
from choral.errors import ChoralError, EngineClosed, UsageError
from choral.server.api_errors import ApiError
from choral.server.model_budget import MemoryBudget, PoolEntry
from choral.server.model_loader import LoadedModel, ModelInfo, ModelLoader
from choral.server.model_names import ModelNames, alias_name
from choral.server.settings import ServerSettings
from choral.serving.settings import ServingSettings

log = logging.getLogger("choral.server")
RELOAD_AFTER_S = 5.0  # after a load that failed: until then its error is repeated
IN_USE = "model_in_use"


class ModelPool:
    def __init__(
        self,
        loader: ModelLoader,
        infos: Sequence[ModelInfo],
        settings: ServerSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The first model is the default one."""
        ids = [info.id for info in infos]
        if repeated := sorted({model_id for model_id in ids if ids.count(model_id) > 1}):
            raise UsageError(f"two models are called {repeated[0]!r}: rename one, or leave it out")
        self._loader, self._settings, self._clock = loader, settings, clock
        self.names = names = ModelNames.of(ids, settings.alias, accepts_any=settings.any_model)
        self._aliases = {name: names.targets[name] for name in map(alias_name, settings.alias)}
        if unknown := [name for name in settings.pin if name not in names.targets]:
            raise UsageError(f"cannot pin {unknown[0]!r}, which is not served: name it with --model too")
        pinned = {names.targets[name] for name in settings.pin}
        self._is_sole = len(infos) == 1 and not settings.idle_unload_s
        self._entries = {info.id: PoolEntry(info, self._is_sole or info.id in pinned) for info in infos}
        self._budget = MemoryBudget(settings.models_memory_bytes)
        self._changing = asyncio.Lock()  # held while a model is loaded or unloaded
        self._first: dict[str, Model] = {}  # loaded before the event loop runs
        self._tasks: set[asyncio.Task[Any]] = set()

    @classmethod
    def of_one(cls, loaded: LoadedModel, prep: ServingSettings, settings: ServerSettings) -> ModelPool:
        """With a model that is loaded already."""
        pool = cls(ModelLoader(loaded.transcriber.engine.settings, prep), [loaded.info], settings)
        pool._set_loaded(pool._entries[loaded.id], loaded)
        return pool

    # --- what is served ---

    @property
    def prep(self) -> ServingSettings:
        return self._loader.prep

    @property
    def entries(self) -> Iterable[PoolEntry]:
        return list(self._entries.values())

    @property
    def loaded(self) -> list[LoadedModel]:
        return [entry.loaded for entry in self.entries if entry.loaded is not None]

    def info(self, name: str | None = None) -> ModelInfo:
        return self._entries[self.names.resolve(name)].info

    @property
    def resident_default(self) -> LoadedModel | None:
        """The default model, if it is never unloaded."""
        entry = self._entries[self.names.default]
        return entry.loaded if entry.is_pinned else None

    @property
    def failure(self) -> str | None:
        """Why no request can succeed: all models that are loaded fail."""
        failures = [loaded.model.failure for loaded in self.loaded]
        return failures[0] if failures and all(failures) else None

    def engine_failure(self, name: str | None) -> str | None:
        """Why the engine of this model fails, if it is loaded."""
        entry = self._entries[self.names.resolve(name)]
        return None if entry.loaded is None else entry.loaded.model.failure

    @property
    def failed_models(self) -> dict[str, str]:
        return {entry.info.id: entry.failure for entry in self.entries if entry.failure}

    @property
    def failed_devices(self) -> dict[str, str]:
        return {device: reason for loaded in self.loaded for device, reason in loaded.model.failed_devices.items()}

    @property
    def requests_at_once(self) -> int:
        """That keep the engines busy which are loaded now."""
        return sum(loaded.model.requests_at_once for loaded in self.loaded) or 1

    # --- loading and unloading ---

    def load_first(self) -> None:
        """Load the default and the pinned models, before the event loop runs; raises the error of loading one."""
        for entry in self.entries:
            if entry.is_pinned or entry.info.id == self.names.default:
                self._first[entry.info.id] = self._load_blocking(entry)

    def start(self) -> None:
        """Call it once the event loop runs, before all else; a model that nobody uses is unloaded too."""
        for entry in self.entries:
            if (model := self._first.pop(entry.info.id, None)) is not None:
                self._set_loaded(entry, self._loader.start(entry.info, model, len(self._entries)))
            self._restart_timer(entry)

    @asynccontextmanager
    async def use(self, name: str | None = None) -> AsyncIterator[LoadedModel]:
        """Hold a model, by any of its names; it is loaded first if need be. None: the default model."""
        entry = self._entries[self.names.resolve(name)]
        entry.n_users += 1
        try:
            if entry.loaded is None:
                await self._wait_until_loaded(entry)
            assert entry.loaded is not None
            yield entry.loaded
        finally:
            entry.n_users -= 1
            entry.last_used_s = self._clock()
            if self._settings.idle_unload_s:
                self._restart_timer(entry)

    async def unload(self, name: str) -> None:
        """Unload a model that nobody uses; no effect if it is not loaded."""
        entry = self._entries[self.names.resolve(name)]
        async with self._changing:
            if entry.is_pinned or entry.n_users:
                raise ApiError(f"{entry.info.id} is {_reason(entry)}: it stays loaded", status=409, code=IN_USE)
            await self._unload(entry)

    async def add(self, name: str) -> bool:
        """Serve another model, downloading it if need be; False if it is served already."""
        if name in self.names.targets:
            return False
        info = await run_in_thread(lambda: self._loader.pull(name), "model-download")
        if info.id in self._entries:  # another request was faster
            return False
        self._entries[info.id] = PoolEntry(info)
        self._update_names()
        return True

    async def remove(self, name: str) -> ModelInfo:
        """Serve a model no longer, and unload it."""
        entry = self._entries[self.names.resolve(name)]
        async with self._changing:
            if entry.info.id == self.names.default:
                text = f"{entry.info.id} is the default model of this server: it stays"
                raise ApiError(text, status=409, code="default_model")
            if entry.is_pinned or entry.n_users:
                raise ApiError(f"{entry.info.id} is {_reason(entry)}: it stays", status=409, code=IN_USE)
            del self._entries[entry.info.id]
            self._update_names()
            await self._unload(entry)
        return entry.info

    def close(self) -> None:
        """End all engines; a second call has no effect. Call it in the event loop, if there was one.

        A load in progress ends with this process.
        """
        for entry in self.entries:
            loaded, entry.loaded = entry.loaded, None
            if loaded is not None:
                loaded.runtime.close()
                loaded.model.close()
        while self._first:
            self._first.popitem()[1].close()

    def _update_names(self) -> None:
        """After a model was added or removed; its aliases come and go with it."""
        aliases = [f"{name}={model_id}" for name, model_id in self._aliases.items() if model_id in self._entries]
        self.names = ModelNames.of([*self._entries], aliases, accepts_any=self._settings.any_model)

    async def _wait_until_loaded(self, entry: PoolEntry) -> None:
        """The load goes on when the one who waits for it leaves: others may be waiting, and its memory is counted."""
        if entry.loading is None:
            entry.loading = self._start(self._load(entry))
            entry.loading.add_done_callback(lambda _: setattr(entry, "loading", None))
        await asyncio.shield(entry.loading)

    async def _load(self, entry: PoolEntry) -> None:
        async with self._changing:
            if entry.loaded is not None:
                return
            if entry.error is not None and self._clock() < entry.failed_s + RELOAD_AFTER_S:
                raise entry.error
            while (victim := self._budget.victim_for(entry, self._entries.values())) is not None:
                await self._unload(victim)
            started_s = self._clock()
            try:
                model = await run_in_thread(lambda: self._load_blocking(entry), "model-load")
                loaded = self._loader.start(entry.info, model, len(self._entries))
            except ChoralError as error:
                log.error("the model %s cannot be loaded: %s", entry.info.id, error)
                # Without the reason, which may have paths: only the log has it.
                entry.error = EngineClosed(f"the model {entry.info.id} cannot be loaded: the server's log says why")
                entry.failed_s = self._clock()
                raise entry.error from error
            self._set_loaded(entry, loaded)
            log.info("the model %s was loaded in %.1f s", entry.info.id, self._clock() - started_s)
            while (victim := self._budget.victim_after(entry, self._entries.values())) is not None:
                await self._unload(victim)
            self._restart_timer(entry)  # those who waited for it may have left

    def _load_blocking(self, entry: PoolEntry) -> Model:
        return self._loader.load(
            entry.info, len(self._entries), in_own_process=not self._is_sole or not entry.is_pinned
        )

    def _set_loaded(self, entry: PoolEntry, loaded: LoadedModel) -> None:
        entry.loaded, entry.error = loaded, None
        entry.last_used_s = self._clock()
        entry.n_loads += 1
        entry.measure()

    async def _unload(self, entry: PoolEntry) -> None:
        entry.measure()
        loaded, entry.loaded = entry.loaded, None
        if loaded is not None:
            loaded.runtime.close()  # here, because its requests run in the event loop
            await run_in_thread(loaded.model.close, "model-unload")
            log.info("the model %s was unloaded", entry.info.id)

    # --- idle models ---

    def _restart_timer(self, entry: PoolEntry) -> None:
        if entry.idle_timer is not None:
            entry.idle_timer.cancel()
            entry.idle_timer = None
        if self._settings.idle_unload_s and entry.is_idle:
            loop = asyncio.get_running_loop()
            unload = self._unload_if_idle
            entry.idle_timer = loop.call_later(self._settings.idle_unload_s, lambda: self._start(unload(entry)))

    async def _unload_if_idle(self, entry: PoolEntry) -> None:
        async with self._changing:
            is_due = self._clock() >= entry.last_used_s + self._settings.idle_unload_s
            if entry.is_idle and is_due:
                await self._unload(entry)
            else:
                self._restart_timer(entry)

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()  # those who wait for it get it too
        if error is not None and not isinstance(error, ChoralError):
            log.error("internal error: please report it", exc_info=error)


def _reason(entry: PoolEntry) -> str:
    return "pinned" if entry.is_pinned else "in use"
