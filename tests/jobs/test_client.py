"""Clients: uploads, errors of Redis and audio, waiting, deleting."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
import redis as library

from choral import errors
from choral.jobs import AsyncClient, Client, ClientSettings
from choral.jobs.active_job import ActiveJob
from choral.jobs.job_queue import PRIORITIES, JobQueue
from choral.jobs.redis_connection import connect
from choral.jobs.redis_keys import RedisKeys
from choral.jobs.worker_queue import WorkerQueue
from choral.options import TranscribeOptions
from choral.transcript import Transcript
from support.redis_server import RedisServer, free_port

TRANSCRIPT = Transcript("Hello.", (), "en", None, 1.0)
PASSWORD = "do-not-show-me"


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    settings = ClientSettings(inline_bytes=1000, blob_bytes=9_000_000, queue_limit=3)
    with Client(redis_url, settings) as opened:
        yield opened


@pytest.fixture
def as_worker(redis_url: str) -> Callable[..., ActiveJob]:
    """Start the next job and, if asked to, end it."""

    def act(*, succeed: bool = False, error: errors.ChoralError | None = None) -> ActiveJob:
        async def take_job() -> ActiveJob:
            redis = connect(redis_url)
            queue = WorkerQueue(JobQueue(redis, RedisKeys()), "worker")
            await queue.jobs.create_groups()
            [entry] = await queue.read(PRIORITIES, 1)
            job = await queue.start(entry, 2)
            assert isinstance(job, ActiveJob)
            if succeed:
                await queue.succeed(job, TRANSCRIPT)
            if error is not None:
                await queue.fail(job, "failed", error)
            if job.request.audio.kind == "blob":
                job.audio = await queue.jobs.read_blob(job.request.audio.location)
            await redis.aclose()
            return job

        return asyncio.run(take_job())

    return act


@pytest.mark.parametrize("size", [1, 1000, 1001, 8_999_999])
def test_audio_arrives_byte_for_byte(client: Client, as_worker: Callable[..., ActiveJob], size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    client.submit(data[:size])
    job = as_worker()
    assert job.request.audio.kind == ("inline" if size <= 1000 else "blob")
    assert job.audio == data[:size]


def test_a_blob_is_deleted_with_its_job(client: Client, redis_url: str, as_worker: Callable[..., ActiveJob]) -> None:
    client.submit(b"x" * 2000)
    with library.Redis.from_url(redis_url) as plain:
        [blob] = plain.keys("{choral}:blob:*")
        assert 0 < plain.ttl(blob) <= ClientSettings().blob_keep_s
        as_worker(succeed=True)
        assert plain.keys("{choral}:blob:*") == []
        job_id = client.submit(b"x" * 2000, job_id="twice")
        assert client.submit(b"x" * 2000, job_id="twice") == job_id
        assert len(plain.keys("{choral}:blob:*")) == 1


def test_files_streams_addresses_and_paths(client: Client, as_worker: Callable[..., ActiveJob], tmp_path: Path) -> None:
    file = tmp_path / "talk.wav"
    file.write_bytes(b"RIFF")
    client.submit(file)
    audio = as_worker(succeed=True).request.audio
    assert (audio.kind, audio.name) == ("inline", "talk.wav")
    client.submit(io.BytesIO(b"RIFF"), name="mine")
    assert as_worker(succeed=True).request.audio.name == "mine"
    client.submit(file, by_path=True)
    audio = as_worker(succeed=True).request.audio
    assert (audio.kind, audio.location) == ("path", str(file))
    client.submit(f"https://user:{PASSWORD}@files.example.org/talk.mp3?key={PASSWORD}")
    audio = as_worker(succeed=True).request.audio
    assert (audio.kind, audio.name) == ("url", "https://files.example.org/talk.mp3")


@pytest.mark.parametrize(
    ("audio", "arguments", "error", "message"),
    [
        (b"", {}, errors.AudioEmpty, "empty"),
        (b"x" * 9_000_001, {}, errors.AudioTooLarge, "by_path"),
        ("/no/such/file.wav", {}, errors.AudioNotFound, "does not exist"),
        ("ftp://example.org/a.wav", {}, errors.UsageError, "http or https"),
        (b"x", {"by_path": True}, errors.UsageError, "only with a path"),
        (b"x", {"language": "klingonese"}, errors.UsageError, "klingonese"),
        (b"x", {"beam": 5}, errors.UsageError, "unknown option 'beam'"),
        (b"x", {"beam_size": 0}, errors.UsageError, "beam_size"),
        (b"x", {"options": TranscribeOptions(), "language": "en"}, errors.UsageError, "not both"),
        (b"x", {"priority": "urgent"}, errors.UsageError, "interactive, batch"),
        (b"x", {"callback": "mailto:me"}, errors.UsageError, "callback"),
        (b"x", {"job_id": "a b"}, errors.UsageError, "not a valid job id"),
        (3, {}, errors.UsageError, "audio is a int"),
    ],
)
def test_invalid_submissions_raise_and_store_nothing(
    client: Client, redis_url: str, audio: object, arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        client.submit(audio, **arguments)  # type: ignore[arg-type]
    with library.Redis.from_url(redis_url) as plain:
        assert plain.dbsize() == 0


def test_a_full_queue_refuses_and_keeps_no_blob(client: Client, redis_url: str) -> None:
    for _ in range(3):
        client.submit(b"x")
    with pytest.raises(errors.QueueFull, match="3 interactive jobs are waiting"):
        client.submit(b"x" * 2000)
    client.submit(b"x", priority="batch")
    with library.Redis.from_url(redis_url) as plain:
        assert plain.keys("{choral}:blob:*") == []
    assert client.counts().waiting == {"interactive": 3, "batch": 1}


def test_wait_returns_when_the_job_ends(client: Client, as_worker: Callable[..., ActiveJob]) -> None:
    job_id = client.submit(b"x", callback="http://example.org")
    with pytest.raises(errors.JobNotReady, match="queued"):
        client.result(job_id)
    with pytest.raises(errors.JobTimeout):
        client.wait(job_id, timeout_s=0.05)
    seen: list[str] = []
    started_s = time.monotonic()
    ending = threading.Timer(0.3, lambda: as_worker(succeed=True))
    ending.start()
    assert client.wait(job_id, on_record=lambda record: seen.append(record.state)) == TRANSCRIPT
    assert time.monotonic() - started_s < 3.0
    assert (seen[0], seen[-1]) == ("queued", "succeeded")
    ending.join()
    assert client.result(job_id) == TRANSCRIPT


def test_close_cancels_waiting_threads(redis_url: str) -> None:
    client = Client(redis_url)
    job_id = client.submit(b"x")
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            client.wait(job_id)
        except BaseException as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.2)
    client.close()
    waiting.join(5)
    assert [type(error) for error in ended] == [CancelledError]
    client.close()


def test_the_result_of_an_unsuccessful_job_raises_the_reason(
    client: Client, as_worker: Callable[..., ActiveJob]
) -> None:
    job_id = client.submit(b"x", name="talk.mp3")
    as_worker(error=errors.NotAudio("it is no audio"))
    with pytest.raises(errors.JobFailed, match=r"talk\.mp3\): it is no audio"):
        client.wait(job_id)
    with pytest.raises(errors.JobNotReady, match="audio was deleted"):
        client.retry(job_id)
    by_url = client.submit("http://example.org/talk.mp3")
    assert client.cancel(by_url).state == "cancelled"
    with pytest.raises(errors.JobCancelled):
        client.result(by_url)
    assert client.retry(by_url).state == "queued"
    with pytest.raises(errors.JobNotFound, match="job unknown does not exist"):
        client.show("unknown")
    with pytest.raises(errors.JobNotFound):
        client.cancel("unknown")
    assert [record.id for record in client.list()] == [by_url, job_id]


def test_delete_removes_an_ended_job(client: Client, redis_url: str, as_worker: Callable[..., ActiveJob]) -> None:
    job = client.submit(bytes(5000))
    with pytest.raises(errors.JobNotReady, match="queued: cancel it first"):
        client.delete(job)
    as_worker(succeed=True)
    client.delete(job)
    for call in (client.show, client.result, client.delete):
        with pytest.raises(errors.JobNotFound):
            call(job)
    assert client.list() == []
    with library.Redis.from_url(redis_url) as plain:
        assert not plain.keys("*blob*")
        assert not plain.keys("*job:*")
        assert not plain.keys("*result:*")


def test_forget_is_a_deprecated_name_of_delete(redis_url: str, client: Client) -> None:
    async def forget(job_id: str) -> None:
        async with AsyncClient(redis_url) as async_client:
            await async_client.forget(job_id)

    for call in (client.forget, lambda job_id: asyncio.run(forget(job_id))):
        job_id = client.submit(b"x")
        client.cancel(job_id)
        with pytest.warns(DeprecationWarning, match="use delete"):
            call(job_id)
        assert client.list() == []


def test_is_worth_another_try_is_a_deprecated_name_of_is_retryable() -> None:
    for error in (errors.FetchFailed("busy"), errors.FetchFailed("gone", is_final=True), errors.NotAudio("text")):
        with pytest.warns(DeprecationWarning, match="use is_retryable"):
            assert error.is_worth_another_try is error.is_retryable


def test_many_waiters_share_one_connection(redis_url: str, as_worker: Callable[..., ActiveJob]) -> None:
    async def wait_for_all() -> list[Transcript]:
        async with AsyncClient(redis_url) as client:
            ids = [await client.submit(b"x") for _ in range(5)]
            waits = [asyncio.create_task(client.wait(job_id)) for job_id in ids]
            await asyncio.sleep(0.1)
            for _ in ids:
                await asyncio.to_thread(as_worker, succeed=True)
            done = await asyncio.gather(*waits)
            connections = await client._redis.client_list()
            assert len(connections) <= 8
            return done

    assert asyncio.run(asyncio.wait_for(wait_for_all(), 20)) == [TRANSCRIPT] * 5


def test_namespaces_are_separate(redis_url: str) -> None:
    with Client(redis_url) as one, Client(redis_url, ClientSettings(namespace="other")) as two:
        job_id = one.submit(b"x")
        assert two.list() == []
        with pytest.raises(errors.JobNotFound):
            two.show(job_id)


@pytest.fixture
def locked_redis(redis_program: None, tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path, "--requirepass", PASSWORD, "--maxmemory", "4mb") as server:
        yield server


def test_redis_errors_do_not_show_the_password(locked_redis: RedisServer) -> None:
    port = locked_redis.port
    for url, message in [
        (f"redis://127.0.0.1:{free_port()}", "cannot be reached"),
        (f"redis://127.0.0.1:{port}", "password"),
        (f"redis://:{PASSWORD}-wrong@127.0.0.1:{port}", "password"),
    ]:
        with Client(url) as client, pytest.raises(errors.RedisUnavailable, match=message) as caught:
            client.submit(b"x")
        assert PASSWORD not in str(caught.value)
    with Client(f"redis://:{PASSWORD}@127.0.0.1:{port}") as client:
        assert PASSWORD not in client.address
        with pytest.raises(errors.RedisUnavailable, match="out of memory"):
            [client.submit(bytes(900_000)) for _ in range(10)]
        with pytest.raises(errors.RedisUnavailable, match="out of memory"):
            client.submit(bytes(9_000_000))
        with library.Redis.from_url(f"redis://:{PASSWORD}@127.0.0.1:{port}") as plain:
            assert plain.keys("{choral}:blob:*") == []
    for url in ("localhost:6379", f"http://:{PASSWORD}@localhost", "redis://localhost:port"):
        with pytest.raises(errors.UsageError) as wrong:
            Client(url)
        assert PASSWORD not in str(wrong.value)


def test_without_the_package_the_error_says_how_to_install_it() -> None:
    import subprocess
    import sys

    code = (
        "import sys; sys.modules['redis'] = None\n"
        "import choral\n"
        "try: choral.jobs.Client\n"
        "except choral.errors.MissingDependency as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'choral[jobs]'" in done.stdout
