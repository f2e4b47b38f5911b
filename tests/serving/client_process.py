"""A process with a client of an engine: its standard input is the client's socket, its argument what to do there."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from choral.audio.recording import Recording
from choral.engine.window import Caller
from choral.longform.transcriber import Transcriber, detect_language
from choral.options import TranscribeOptions
from choral.serving.engine_client import connect
from fake_runner import window


def everything(transcriber: Transcriber, audio: str, options: list[dict[str, Any]]) -> Any:
    """The transcripts with these options and the languages; and whether this process needed torch for it."""
    transcripts = []
    with Recording.open(audio) as recording:
        for fields in options:
            transcription = transcriber.start(recording, TranscribeOptions.of(**fields))
            list(transcription)
            transcripts.append(asdict(transcription.transcript()))
        languages = detect_language(transcriber.engine, recording, transcriber.dims.n_mels).probabilities
    return {"transcripts": transcripts, "languages": languages, "has_torch": "torch" in sys.modules}


def decode_many(transcriber: Transcriber, numbers: list[int]) -> Any:
    """The number of tokens of each window."""
    caller = Caller()
    pending = [transcriber.engine.submit(window(number), caller) for number in numbers]
    return [len(each.result().tokens) for each in pending]


def decode_forever(transcriber: Transcriber, numbers: list[int]) -> Any:
    """Prints a line when the windows were submitted."""
    pending = [transcriber.engine.submit(window(number)) for number in numbers]
    print(flush=True)
    return [len(each.result().tokens) for each in pending]


@contextlib.contextmanager
def client_process(
    add_client: Callable[[socket.socket], None], action: str, *arguments: Any
) -> Iterator[subprocess.Popen[str]]:
    """A process that connects to an engine's server, runs a function of this module, and prints its result as JSON."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, str(Path(__file__)), json.dumps([action, *arguments])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.PIPE, text=True, env=environment)
    add_client(ours)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def result_of(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


if __name__ == "__main__":
    action, *arguments = json.loads(sys.argv[1])
    with socket.socket(fileno=sys.stdin.fileno()) as connection:
        transcriber = connect(connection)
        print(json.dumps(globals()[action](transcriber, *arguments)), flush=True)
        transcriber.engine.close()
