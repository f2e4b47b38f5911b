"""Hears whether a speaker who pauses has finished: smart-turn, a small network, for OpenAI's `semantic_vad`.

It takes the last 8 s before the pause as Whisper's features, and returns the probability that the turn is complete.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import numpy as np

from choral.audio.constants import HOP_LENGTH, SAMPLE_RATE
from choral.audio.mel import log_mel
from choral.audio.samples import as_float
from choral.common.onnx_session import onnx_session
from choral.errors import ChoralError, ModelCorrupt
from choral.model.store import ModelStore
from choral.server.realtime.audio_formats import Int16
from choral.server.realtime.session_config import TurnDetection
from choral.storage import storage_errors

log = logging.getLogger("choral.server")
MODEL_NAME = "smart-turn"
MAX_SAMPLES = 8 * SAMPLE_RATE
N_MELS = 80
THRESHOLD = 0.5
RETRY_S = 600.0  # after it could not be loaded
PAUSE_S = 0.2  # of silence after which it is asked, as it was trained


class TurnEndDetector:
    """A call uses one core for about a tenth of a second and releases the GIL; any thread may make it."""

    def __init__(self, path: Path) -> None:
        with storage_errors(path):
            model = path.read_bytes()
        try:
            self._session = onnx_session(model)
        except Exception as error:  # ONNX Runtime's own errors have no common public class
            raise ModelCorrupt(f"{path} cannot be loaded: {error}") from error

    def probability(self, samples: Int16) -> float:
        """That the speaker has finished; of the samples, the last 8 s count."""
        audio = np.zeros(MAX_SAMPLES, np.float32)
        last = as_float(samples[-MAX_SAMPLES:])
        audio[MAX_SAMPLES - last.size :] = last
        audio -= audio.mean()
        audio /= np.sqrt(audio.var() + np.float32(1e-7))
        features = log_mel(audio, N_MELS, n_frames=MAX_SAMPLES // HOP_LENGTH)
        return float(self._session.run(None, {"input_features": features[None]})[0][0, 0])

    def is_complete(self, samples: Int16) -> bool:
        return self.probability(samples) > THRESHOLD


class DetectorLoader:
    """Loads the detector once in a process, the first time on a machine from the network.

    Sessions wait for it: after a failure, the next try is not made at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._detector: TurnEndDetector | None = None
        self._next_try_s = 0.0

    def find(self) -> TurnEndDetector | None:
        """None if it cannot be loaded."""
        with self._lock:
            if self._detector is None and time.monotonic() >= self._next_try_s:
                try:
                    self._detector = TurnEndDetector(ModelStore().resolve(MODEL_NAME))
                except ChoralError as error:
                    self._next_try_s = time.monotonic() + RETRY_S
                    log.error(
                        "the model %s cannot be loaded, so semantic_vad ends turns by silence: %s", MODEL_NAME, error
                    )
            return self._detector


DETECTOR = DetectorLoader()


def find_turn_end_detector(detection: TurnDetection | None) -> TurnEndDetector | None:
    """None if it is not needed, or cannot be loaded: then turns end by silence."""
    return DETECTOR.find() if detection is not None and detection.is_semantic else None
