"""The boundary of an engine on a fake runner: what crosses it, what is refused, what the end of a client leaves."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from choral.engine.engine import Engine
from choral.engine.group import EngineGroup
from choral.engine.hotword_trie import HotwordTrie
from choral.engine.window import AlignParams, Caller, DecodeParams, DetectLanguageParams, Window, WindowAudio
from choral.errors import EngineClosed, QueueFull, UsageError, WindowFailed
from choral.options import Priority
from choral.serving import engine_protocol, served_client
from choral.serving.engine_client import LOST, EngineClient
from choral.serving.engine_protocol import Request, encode_window
from choral.serving.engine_server import EngineServer
from choral.serving.hotword_transfer import MAX_TRIES
from choral.serving.message_socket import HEAD
from choral.serving.sample_arena import KEPT_SLOTS, SLOT_BYTES, SampleArena
from client_process import client_process, result_of
from fake_model import ENDLESS, transcriber_on, wait_for
from fake_runner import SOON_S, FakeRunner, Gate, Plan, audio, engine_on, window

TEXT = AlignParams(text_tokens=(7,), n_frames=1, language="en", task="transcribe")


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
def engine(runner: FakeRunner) -> Iterator[Engine]:
    with contextlib.closing(engine_on(runner)) as engine:
        yield engine


@pytest.fixture
def server(engine: Engine) -> Iterator[EngineServer]:
    with contextlib.closing(EngineServer(transcriber_on(engine))) as server:
        yield server


@contextlib.contextmanager
def client_of(server: EngineServer, n_slots: int = 16) -> Iterator[EngineClient]:
    ours, theirs = socket.socketpair()
    server.add_client(theirs)
    with contextlib.closing(EngineClient(ours, n_slots)) as client:
        yield client


@pytest.fixture
def client(server: EngineServer) -> Iterator[EngineClient]:
    with client_of(server) as client:
        yield client


def serves(client: EngineClient) -> bool:
    return len(client.submit(window(50)).result(SOON_S).tokens) == 3


# What crosses


def test_results_and_errors_cross_the_boundary(client: EngineClient, engine: Engine, runner: FakeRunner) -> None:
    runner.plans[2] = Plan(fault="answer")
    assert client.submit(window(1)).result(SOON_S) == engine.submit(window(1)).result(SOON_S)
    assert client.submit(Window(audio(1), DetectLanguageParams())).result(SOON_S).probabilities == {"en": 1.0}
    aligned = client.submit(Window(audio(1), TEXT)).result(SOON_S)
    assert aligned.token_probs.tolist() == [1.0]
    with pytest.raises(WindowFailed, match=r"^not a number$"):
        client.submit(window(2)).result(SOON_S)
    with pytest.raises(UsageError, match="9 beams or samples were requested, but this engine has 8 slots"):
        client.submit(window(1, n_slots=9))
    with pytest.raises(UsageError, match="600,000 samples"):
        client.submit(Window(WindowAudio(np.zeros(600_000, np.float32), 0, 3000, None), DecodeParams()))
    assert (client.name, client.device, client.capacity, client.settings) == (
        engine.name,
        engine.device,
        engine.capacity,
        engine.settings,
    )
    client.self_test()
    assert client.stats == engine.stats
    assert client.stats.failed == 1


def test_hotwords_cross_once(client: EngineClient, runner: FakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner gets the trie of each window, and a message has it only once."""
    tries = [HotwordTrie.build([(number, 7)], lambda token: True) for number in range(MAX_TRIES + 2)]
    sent: list[int] = []
    seen: list[Any] = []
    send, prefill = client._messages.send, runner.prefill
    monkeypatch.setattr(client._messages, "send", lambda kind, *parts: (sent.append(kind), send(kind, *parts)))
    monkeypatch.setattr(runner, "prefill", lambda starts: seen.extend(s.params for s in starts) or prefill(starts))
    for trie in (tries[0], tries[0], *tries, tries[0]):  # the last was forgotten meanwhile
        params = DecodeParams(hotwords=trie, hotword_boost=1.5)
        client.submit(Window(audio(3), params)).result(SOON_S)
        assert seen[-1] == params
    assert sent.count(Request.HOTWORDS) == len(tries) + 1


def test_failure_of_the_device_reaches_clients_and_ends(
    server: EngineServer, client: EngineClient, runner: FakeRunner
) -> None:
    runner.plans |= {number: Plan(fault="raise") for number in range(10, 20)}
    caller = Caller()
    assert wait([client.submit(window(number), caller) for number in range(10, 20)], SOON_S).not_done == set()
    wait_for(lambda: client.failure is not None and "windows in a row failed on cpu" in client.failure)
    with client_of(server) as later:
        wait_for(lambda: later.failure == client.failure)
    client.self_test()
    wait_for(lambda: client.failure is None)


def test_failure_of_one_device_of_several_reaches_clients() -> None:
    runners = [FakeRunner(device="cuda:0"), FakeRunner(device="cuda:1", on_call=fail_decode)]
    group = EngineGroup([engine_on(runner, warm_up=False) for runner in runners], queue_limit=99)
    with contextlib.closing(group), contextlib.closing(EngineServer(transcriber_on(group))) as server:
        with client_of(server) as client:
            assert client.failed_devices == {}
            client.self_test()
            wait_for(lambda: "broken" in client.failed_devices.get("cuda:1", ""))
            assert (list(client.failed_devices), client.failure) == (["cuda:1"], None)
        assert set(client.failed_devices) == {"cuda:0", "cuda:1"}  # it is closed


def fail_decode(call: str) -> None:
    if call == "decode":
        raise RuntimeError("broken")


def test_callers_keep_their_identity_and_priority(
    server: EngineServer, client: EngineClient, engine: Engine, runner: FakeRunner
) -> None:
    runner.on_call = lambda _: time.sleep(0.001)
    runner.plans |= {number: Plan(ENDLESS) for number in range(5)}
    priorities: list[Priority] = ["interactive", "batch"]
    callers = [Caller(priority) for priority in priorities]
    with client_of(server) as other:
        pending = [client.submit(window(0), callers[0]), client.submit(window(1), callers[0])]
        pending += [client.submit(window(2), callers[1]), other.submit(window(3), callers[1])]
        wait_for(lambda: len(engine._loop.scheduler.tasks) == 4)
        accounts = engine._loop.scheduler._fair.accounts()
        n_windows = [(account.caller.priority, len(account.waiting) + len(account.admitted)) for account in accounts]
        assert sorted(n_windows) == [
            ("batch", 1),
            ("batch", 1),
            ("interactive", 2),
        ]
        for caller in callers:
            client.cancel_all(caller)
        other.cancel(pending[-1])
        wait_for(lambda: engine.n_in_flight == 0)
    del callers, caller, accounts
    gc.collect()
    served = next(iter(server._clients))
    assert len(served._callers) == 2
    assert serves(client)  # the next message tells the server
    assert not served._callers


def test_new_caller_is_refused_when_the_queue_is_full(runner: FakeRunner) -> None:
    runner.on_call = gate = Gate("encode")
    known = Caller()
    with (
        contextlib.closing(engine_on(runner, queue_limit=4)) as engine,
        contextlib.closing(EngineServer(transcriber_on(engine))) as server,
        client_of(server) as client,
    ):
        pending = [client.submit(window(0), known)]
        assert gate.is_reached.wait(SOON_S)
        pending += [client.submit(window(number)) for number in range(1, 5)]
        with pytest.raises(QueueFull, match="4 windows of 30 s are waiting already"):
            client.submit(window(5)).result(SOON_S)
        pending += [client.submit(window(number), known) for number in range(6, 9)]
        gate.is_open.set()
        assert [len(each.result(SOON_S).tokens) for each in pending] == [3] * 8


def test_cancelled_window_leaves_before_the_next_step(client: EngineClient, engine: Engine, runner: FakeRunner) -> None:
    runner.plans |= {1: Plan(ENDLESS), 2: Plan(ENDLESS)}
    runner.on_call = gate = Gate("decode")
    running, waiting = client.submit(window(1, n_slots=8)), client.submit(window(2, n_slots=8))
    assert gate.is_reached.wait(SOON_S)
    client.cancel(running)
    waiting.cancel()  # as a cancelled `await` does
    assert running.cancelled()
    assert client._arena.n_used == 2  # the engine may be reading them
    gate.is_open.set()
    wait_for(lambda: client.n_in_flight == 0)
    assert client._arena.n_used == 0
    assert (engine.stats.cancelled, engine.stats.windows) == (2, 2)
    assert serves(client)


# Shared memory


def test_windows_beyond_the_shared_memory_wait_on_the_clients_side(
    server: EngineServer, engine: Engine, runner: FakeRunner
) -> None:
    runner.on_call = gate = Gate("encode")
    finished: list[int] = []
    batch, other_batch, interactive, cancelled = Caller("batch"), Caller("batch"), Caller(), Caller()
    order = [(0, batch), (1, batch), (2, batch), (3, other_batch), (4, interactive), (5, cancelled), (6, cancelled)]
    with client_of(server, n_slots=1) as client:
        pending = [client.submit(window(number), caller) for number, caller in order]
        for number, each in enumerate(pending):
            each.add_done_callback(lambda future, number=number: future.cancelled() or finished.append(number))
        client.cancel_all(cancelled)
        assert wait(pending[5:], SOON_S).not_done == set()  # at once, though the engine stands still
        assert gate.is_reached.wait(SOON_S)
        assert (engine.n_in_flight, client.n_in_flight) == (1, 5)
        gate.is_open.set()
        assert wait(pending, SOON_S).not_done == set()
        assert finished == [0, 4, 1, 3, 2]
        with pytest.raises(CancelledError):
            client.submit(window(7), cancelled)


def test_shared_memory_is_returned_when_idle(client: EngineClient, runner: FakeRunner) -> None:
    runner.on_call = gate = Gate("encode")
    samples = np.ones(480_000, np.float32)
    caller = Caller()
    pending = [client.submit(Window(WindowAudio(samples, 0, 3000, None), DecodeParams()), caller) for _ in range(8)]
    assert gate.is_reached.wait(SOON_S)
    used_bytes = os.fstat(client._arena.fd).st_blocks * 512
    gate.is_open.set()
    assert wait(pending, SOON_S).not_done == set()
    wait_for(lambda: client.n_in_flight == 0)
    kept_bytes = os.fstat(client._arena.fd).st_blocks * 512
    assert 7 * SLOT_BYTES < used_bytes <= 8 * SLOT_BYTES
    assert kept_bytes <= KEPT_SLOTS * SLOT_BYTES
    assert serves(client)


def n_mapped() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:choral-samples")


# The end of one side


def test_killed_client_leaves_nothing_and_others_go_on(
    server: EngineServer, engine: Engine, runner: FakeRunner
) -> None:
    runner.plans |= {number: Plan(ENDLESS) for number in range(100, 104)}
    runner.plans |= {number: Plan(number % 5 + 1) for number in range(60)}
    others = [list(range(60)), list(range(59, -1, -1))]
    with contextlib.ExitStack() as stack:
        killed = stack.enter_context(client_process(server.add_client, "decode_forever", list(range(100, 104))))
        processes = [
            stack.enter_context(client_process(server.add_client, "decode_many", numbers)) for numbers in others
        ]
        assert killed.stdout is not None
        killed.stdout.readline()
        wait_for(lambda: engine.n_in_flight >= 4)
        killed.kill()
        assert [result_of(process) for process in processes] == [[n % 5 + 1 for n in numbers] for numbers in others]
        wait_for(lambda: engine.n_in_flight == 0 and server.n_clients == 0)
        wait_for(lambda: n_mapped() == 0)
    assert engine.stats.cancelled == 4


def test_end_of_the_server_fails_windows(server: EngineServer, client: EngineClient, runner: FakeRunner) -> None:
    runner.plans[1] = Plan(ENDLESS)
    pending = client.submit(window(1))
    server.close()
    with pytest.raises(EngineClosed, match=LOST):
        pending.result(SOON_S)
    with pytest.raises(EngineClosed, match=LOST):
        client.submit(window(2))
    assert client.failure == LOST
    assert client.stats.windows == 0
    with pytest.raises(EngineClosed, match=LOST):
        client.self_test()
    ours, theirs = socket.socketpair()
    server.add_client(theirs)
    with pytest.raises(EngineClosed, match=LOST):
        EngineClient(ours)


def test_drain_and_close_of_a_client(client: EngineClient, engine: Engine, runner: FakeRunner) -> None:
    runner.plans[1] = Plan(ENDLESS)
    done, endless = client.submit(window(0)), client.submit(window(1))
    assert client.drain(0.01) is False
    with pytest.raises(EngineClosed):
        client.submit(window(2))
    assert done.result(SOON_S)
    client.close()
    with pytest.raises(EngineClosed):
        endless.result(SOON_S)
    wait_for(lambda: engine.n_in_flight == 0)


# Hostile clients


def hello(connection: socket.socket) -> None:
    arena = SampleArena(2)
    socket.send_fds(connection, [engine_protocol.HELLO.pack(2)], [arena.fd])
    arena.close()
    n_body, _ = HEAD.unpack(connection.recv(HEAD.size))
    assert connection.recv(n_body, socket.MSG_WAITALL)


def message(kind: int, body: bytes) -> bytes:
    return HEAD.pack(len(body), kind) + body


def submit(params: Any = None, slot: int = 0, **changes: Any) -> bytes:
    params = params or DecodeParams(seed=1)
    vars(params).update(changes)
    body = encode_window(Window(audio(1), params), 0, "interactive")
    return message(Request.SUBMIT, engine_protocol.SLOT.pack(slot) + body)


def unsealed() -> tuple[bytes, list[int]]:
    fd = os.memfd_create("unsealed")
    os.ftruncate(fd, 2 * SLOT_BYTES)
    return engine_protocol.HELLO.pack(2), [fd]


FIRST_MESSAGES = {
    "nothing": lambda: (b"x", []),
    "no_memory": lambda: (engine_protocol.HELLO.pack(2), []),
    "not_memory": lambda: (engine_protocol.HELLO.pack(2), [os.open("/dev/zero", os.O_RDONLY)]),
    "too_large": lambda: (engine_protocol.HELLO.pack(2**31), [os.dup(SampleArena(2).fd)]),
    "unsealed": unsealed,
}
MESSAGES = {
    "too_long": HEAD.pack(2**31, Request.SUBMIT),
    "unknown_kind": message(77, b""),
    "no_hotwords": message(Request.HOTWORDS, b"1234"),
    "unknown_hotwords": submit(hotwords=HotwordTrie.build([(1,)], lambda token: True)),
    "empty": message(Request.SUBMIT, b""),
    "cut": message(Request.SUBMIT, submit()[HEAD.size : -9]),
    "unknown_slot": submit(slot=2),
    "slot_in_use": submit(DecodeParams(seed=0)) + submit(DecodeParams(seed=0)),
    "bad_cancel": message(Request.CANCEL, b"123"),
    "not_json": submit().replace(b"[", b"("),
    "no_slots": submit(n_candidates=0),
    "text_for_number": submit(seed="1"),
    "number_for_flag": submit(timestamps=1),
    "nan": submit(patience=float("nan")),
    "nested": submit(seed=[[]]),
    "negative_tokens": submit(prefix=-1),
    "missing_tokens": submit(prefix=5),
    "frames": submit(AlignParams(text_tokens=(1,), n_frames=1501, language=None, task="transcribe")),
    "two_tests": message(Request.SELF_TEST, b"") * 2,
}


def is_dropped(connection: socket.socket) -> bool:
    """The server has closed it, after whatever it sent before."""
    connection.settimeout(SOON_S)
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(2**16):
            pass
    return True


@pytest.mark.parametrize("name", FIRST_MESSAGES)
def test_malformed_first_message_drops_that_client_only(
    name: str, server: EngineServer, client: EngineClient, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = socket.socketpair()
    server.add_client(theirs)
    body, fds = FIRST_MESSAGES[name]()
    with ours:
        socket.send_fds(ours, [body], fds)
        assert is_dropped(ours)
    for fd in fds:
        os.close(fd)
    assert "a malformed first message" in caplog.text
    assert serves(client)


def test_malformed_messages_drop_that_client_only(
    server: EngineServer, client: EngineClient, runner: FakeRunner, caplog: pytest.LogCaptureFixture
) -> None:
    runner.plans[0] = Plan(ENDLESS)
    for name, data in MESSAGES.items():
        caplog.clear()
        ours, theirs = socket.socketpair()
        server.add_client(theirs)
        with ours:
            hello(ours)
            ours.sendall(submit() + data)
            assert is_dropped(ours), name
        assert [record.levelname for record in caplog.records] == ["WARNING"], name  # not an error of the server
    assert serves(client)


def test_mutated_messages_never_stop_the_server(server: EngineServer, client: EngineClient) -> None:
    rng = random.Random(0)
    good = submit() + submit(TEXT, slot=1)
    for _ in range(150):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        ours, theirs = socket.socketpair()
        server.add_client(theirs)
        with ours:
            hello(ours)
            ours.sendall(data)
    assert serves(client)
    wait_for(lambda: server.n_clients == 1)


def test_client_that_does_not_read_is_dropped(
    server: EngineServer, client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_client, "PAUSE_UNSENT_BYTES", 2**20)
    monkeypatch.setattr(served_client, "MAX_UNSENT_BYTES", 2**20 + 2**10)
    ours, theirs = socket.socketpair()
    server.add_client(theirs)
    with ours, contextlib.suppress(ConnectionError):
        hello(ours)
        while True:  # until it is dropped: each answer is longer than the question
            ours.sendall(message(Request.STATS, b"") * 1000)
            assert serves(client)
    wait_for(lambda: server.n_clients == 1)
