"""ONNX Runtime for small networks: one thread a call, on the CPU, without telemetry."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


def onnx_session(model: bytes) -> InferenceSession:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # telemetry writes a file and sends data
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
