"""A model on several devices: an engine process for each, behind one queue.

In one process, the engines of fast GPUs would wait for each other's turn in Python. Each process is started again when
it ends; its windows go to another device meanwhile.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from choral.common.logs import LogFormat, configured_format
from choral.config import MAX_QUEUE_LIMIT, EngineSettings
from choral.engine.group import EngineGroup
from choral.longform.load_transcriber import OnDownload, load_transcriber
from choral.longform.transcriber import Transcriber
from choral.model.store import ModelStore

if TYPE_CHECKING:
    from choral.serving.supervised_engine import SupervisedEngine

N_WINDOWS = 1024  # with each process: more than its slots, so that some wait there


def load_on_devices(name: str, settings: EngineSettings, on_download: OnDownload | None = None) -> Transcriber:
    """Load a model on all devices of the settings; on one, or without processes (which need Linux), in this process."""
    if len(settings.device_names) < 2 or sys.platform != "linux":
        return load_transcriber(name, settings, on_download)
    ModelStore().resolve(name, on_progress=on_download)  # once, not in every process
    engines = _start_engines(name, settings, configured_format())
    return Transcriber(EngineGroup(engines, settings.queue_limit), engines[0].tokenizer, engines[0].dims)


def _start_engines(name: str, settings: EngineSettings, log_format: LogFormat | None) -> list[SupervisedEngine]:
    """All at the same time; if one cannot be started, none stays."""
    from choral.serving.supervised_engine import SupervisedEngine

    def start(device: str) -> SupervisedEngine:
        # The group bounds the queue, its engines do not.
        device_settings = replace(settings, device=device, devices="", queue_limit=MAX_QUEUE_LIMIT)
        return SupervisedEngine(name, device_settings, log_format=log_format, n_windows=N_WINDOWS)

    with ThreadPoolExecutor(len(settings.device_names)) as pool:
        starting = [pool.submit(start, device) for device in settings.device_names]
    errors = [error for each in starting if (error := each.exception()) is not None]
    if errors:
        for each in starting:
            if each.exception() is None:
                each.result().close()
        raise errors[0]
    return [each.result() for each in starting]
