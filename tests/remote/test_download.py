"""Downloads from a real server that interrupts, refuses, sends wrong data and stalls."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

from choral import storage
from choral.errors import DownloadFailed, ModelCorrupt, ModelNotFound, StorageError
from choral.remote import download as fetch
from choral.remote.download import download, get, parse_json
from local_server import LocalServer, serve

BODY = random.Random(1).randbytes(700_000)
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalServer]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(fetch, "_FIRST_PAUSE_S", 0.01)
    with serve() as server:
        yield server


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_download_reports_its_progress(server: LocalServer, tmp_path: Path) -> None:
    reports: list[tuple[int, int | None]] = []
    url = server.add("/file", BODY)
    path = download(
        url, tmp_path / "new" / "file", sha256=SHA256, on_progress=lambda done, total: reports.append((done, total))
    )
    assert path.read_bytes() == BODY
    assert reports[0] == (0, len(BODY))
    assert reports[-1] == (len(BODY), len(BODY))
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
    assert names_in(path.parent) == ["file"]


def test_existing_file_is_not_downloaded_again(server: LocalServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(BODY)
    download(server.url + "/none", tmp_path / "file", sha256=SHA256)
    assert server.seen == []


def test_existing_wrong_file_is_replaced(server: LocalServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    download(server.add("/file", BODY), tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == BODY


def test_interrupted_connection_is_resumed(server: LocalServer, tmp_path: Path) -> None:
    download(server.add("/file", BODY, cuts=[100_000, 200_000]), tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == BODY
    assert [seen.range for seen in server.seen] == [None, "bytes=100000-", "bytes=300000-"]


def test_progress_resets_the_retry_count(server: LocalServer, tmp_path: Path) -> None:
    download(server.add("/file", BODY, cuts=[60_000] * 10), tmp_path / "file", sha256=SHA256, tries=2)
    assert len(server.seen) == 11


def test_no_progress_exhausts_the_retries(server: LocalServer, tmp_path: Path) -> None:
    url = server.add("/file", BODY, ranges=False, cuts=[100_000] * 20)
    with pytest.raises(DownloadFailed, match=r"ended after 100,000 of 700,000 bytes"):
        download(url, tmp_path / "file", sha256=SHA256, tries=3)
    assert len(server.seen) == 3
    assert not (tmp_path / "file").exists()


def test_part_file_is_resumed_by_a_later_call(server: LocalServer, tmp_path: Path) -> None:
    url = server.add("/file", BODY, cuts=[300_000])
    with pytest.raises(DownloadFailed):
        download(url, tmp_path / "file", sha256=SHA256, tries=1)
    assert names_in(tmp_path) == ["file.part"]
    reports: list[int] = []
    download(url, tmp_path / "file", sha256=SHA256, on_progress=lambda done, _: reports.append(done))
    assert (tmp_path / "file").read_bytes() == BODY
    assert reports[0] == 300_000
    assert server.seen[-1].range == "bytes=300000-"


def test_without_sha256_only_a_matching_etag_is_resumed(server: LocalServer, tmp_path: Path) -> None:
    url = server.add("/file", BODY, etag='"one"', cuts=[300_000])
    with pytest.raises(DownloadFailed):
        download(url, tmp_path / "file", tries=1)
    changed = BODY[::-1]
    server.add("/file", changed, etag='"two"')
    download(url, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == changed
    assert (server.seen[-1].range, server.seen[-1].if_range) == ("bytes=300000-", '"one"')
    assert names_in(tmp_path) == ["file"]


def test_without_sha256_and_etag_the_download_restarts(server: LocalServer, tmp_path: Path) -> None:
    download(server.add("/file", BODY, cuts=[300_000]), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == BODY
    assert [seen.range for seen in server.seen] == [None, None]


def test_server_without_ranges_restarts(server: LocalServer, tmp_path: Path) -> None:
    download(server.add("/file", BODY, ranges=False, cuts=[300_000]), tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == BODY
    assert [seen.range for seen in server.seen] == [None, "bytes=300000-"]


def test_part_file_of_other_content_is_discarded(server: LocalServer, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(b"x" * 1000)
    download(server.add("/file", BODY), tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == BODY
    assert [seen.range for seen in server.seen] == ["bytes=1000-", None]


def test_part_longer_than_the_file_is_discarded(server: LocalServer, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(BODY + b"x")
    download(server.add("/file", BODY), tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == BODY


def test_complete_part_file_needs_no_request(server: LocalServer, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(BODY)
    download(server.url + "/none", tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == BODY
    assert server.seen == []


def test_wrong_range_is_rejected(server: LocalServer, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(BODY[:1000])
    download(server.add("/file", BODY, range_shift=5), tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == BODY
    assert [seen.range for seen in server.seen] == ["bytes=1000-", None]


def test_wrong_content_is_an_error_and_leaves_nothing(server: LocalServer, tmp_path: Path) -> None:
    url = server.add("/file", BODY[:-1] + b"x", etag='"e"')
    with pytest.raises(ModelCorrupt, match=SHA256):
        download(url, tmp_path / "file", sha256=SHA256)
    assert names_in(tmp_path) == []
    assert len(server.seen) == 1


def test_temporary_failures_are_retried(server: LocalServer, tmp_path: Path) -> None:
    download(server.add("/file", BODY, statuses=[500, 503]), tmp_path / "file", sha256=SHA256)
    assert len(server.seen) == 3


def test_permanent_failures_are_not_retried(server: LocalServer, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match=r"answered 500"):
        download(server.add("/file", statuses=[500] * 9), tmp_path / "file", tries=3)
    assert len(server.seen) == 3
    with pytest.raises(DownloadFailed, match=r"/none: the server answered 404"):
        download(server.url + "/none", tmp_path / "file")
    assert len(server.seen) == 4
    assert names_in(tmp_path) == []


def test_the_error_for_404_can_be_chosen(server: LocalServer) -> None:
    with pytest.raises(ModelNotFound, match="answered 404"):
        get(server.url + "/none", not_found=ModelNotFound)
    with pytest.raises(DownloadFailed, match="answered 403"):
        get(server.add("/forbidden", statuses=[403]), not_found=ModelNotFound)


@pytest.mark.parametrize("declares_length", [True, False])
def test_the_size_limit_of_small_responses(server: LocalServer, declares_length: bool) -> None:
    url = server.add("/file", BODY, declares_length=declares_length)
    with pytest.raises(DownloadFailed, match=r"more than the 1,000 bytes"):
        get(url, max_bytes=1000)


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/x", "nonsense", "http://", "http://[::1"])
def test_only_http_and_https_are_supported(tmp_path: Path, url: str) -> None:
    with pytest.raises(DownloadFailed, match=r"not an? (http or https |valid )?URL"):
        download(url, tmp_path / "file")
    assert names_in(tmp_path) == []


def test_redirect_to_a_file_is_refused(server: LocalServer) -> None:
    with pytest.raises(DownloadFailed):
        get(server.add("/there", redirect="file:///etc/hostname"))


def test_connection_refused_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with serve() as gone:
        url = gone.url + "/file"
    with pytest.raises(DownloadFailed, match=r"connection refused"):
        download(url, tmp_path / "file", tries=1)


def test_stalled_server_times_out(server: LocalServer, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match=r"no response in time"):
        download(server.add("/file", BODY, delay_s=1.5), tmp_path / "file", timeout_s=0.2, tries=1)


def test_credentials_are_sent_only_to_their_server(server: LocalServer) -> None:
    basic = "Basic dXNlcjpwQHNz"  # user:p@ss
    server.add("/private", b"secret", authorization=basic)
    with serve() as other:
        server.add("/away", redirect=other.add("/open", b"public"))
        server.add("/stay", redirect="/private")
        address = f"http://user:p%40ss@{server.host}"
        assert get(address + "/private").body == b"secret"
        assert get(address + "/stay").body == b"secret"
        assert get(address + "/away").body == b"public"
        assert other.seen[0].authorization is None
    with pytest.raises(DownloadFailed) as failure:
        get(address + "/none?signature=1")
    assert str(failure.value).startswith(f"http://{server.host}/none: ")


def test_small_responses(server: LocalServer) -> None:
    assert parse_json(get(server.add("/json", b'{"a": [1]}', statuses=[503]))) == {"a": [1]}
    with pytest.raises(DownloadFailed, match=r"did not respond with JSON"):
        parse_json(get(server.add("/text", b"hello")))
    with pytest.raises(DownloadFailed, match=r"more than the 4 bytes"):
        get(server.url + "/text", max_bytes=4)
    assert get(server.add("/moved", redirect="/text")).url == server.url + "/text"


def test_insufficient_disk_space_is_detected_first(
    server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**6, 10**6 - 5000, 5000))
    with pytest.raises(StorageError, match=r"5,000 bytes free, and 700,000 more are needed"):
        download(server.add("/file", BODY), tmp_path / "file")
    assert names_in(tmp_path) == []


def test_disk_that_fills_up_is_reported(server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"the disk is full: .*file\.part"):
        download(server.add("/file", BODY), tmp_path / "file")
    assert names_in(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_failed_write_is_reported(server: LocalServer, tmp_path: Path) -> None:
    script = (
        "import resource, sys; from pathlib import Path; from choral.remote.download import download\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "from choral.errors import StorageError\n"
        "try: download(sys.argv[1], Path(sys.argv[2]))\n"
        "except StorageError as error: print(error)"
    )
    command = [sys.executable, "-c", script, server.add("/file", BODY), str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("the disk is full: ")
    assert names_in(tmp_path) == []


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """Drop root's privileges temporarily, because root may write everywhere."""
    was_root = os.geteuid() == 0
    if was_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if was_root:
            os.seteuid(0)


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_unwritable_folder_is_reported(server: LocalServer, tmp_path: Path) -> None:
    url = server.add("/file", BODY)
    tmp_path.chmod(0o500)
    try:
        with without_privileges(), pytest.raises(StorageError, match=r"no permission to use"):
            download(url, tmp_path / "file")
    finally:
        tmp_path.chmod(0o700)
    assert server.seen == []


DOWNLOAD = """
import sys
from pathlib import Path
from choral.remote.download import download
download(sys.argv[1], Path(sys.argv[2]), sha256=sys.argv[3])
"""


def start_download(url: str, target: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", DOWNLOAD, url, str(target), SHA256])


def test_concurrent_processes_download_once(server: LocalServer, tmp_path: Path) -> None:
    url = server.add("/file", BODY, delay_s=0.05)
    both = [start_download(url, tmp_path / "file") for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert (tmp_path / "file").read_bytes() == BODY
    assert names_in(tmp_path) == ["file"]
    assert len(server.seen) == 1


def test_killed_process_releases_its_lock(server: LocalServer, tmp_path: Path) -> None:
    url = server.add("/file", BODY, delay_s=0.2)
    process = start_download(url, tmp_path / "file")
    part = tmp_path / "file.part"
    deadline = time.monotonic() + 30
    while not (part.exists() and part.stat().st_size > 0) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert "file.lock" in names_in(tmp_path)
    server.routes["/file"].delay_s = 0
    download(url, tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == BODY
    assert server.seen[-1].range is not None
    assert names_in(tmp_path) == ["file"]


def test_lock_is_exclusive(tmp_path: Path) -> None:
    inside, most = 0, 0

    def hold_often() -> None:
        nonlocal inside, most
        for _ in range(40):
            with storage.locked(tmp_path / "x.lock"):
                inside += 1
                most = max(most, inside)
                time.sleep(0.0005)
                inside -= 1

    threads = [threading.Thread(target=hold_often) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert names_in(tmp_path) == []


def test_file_system_without_locks_uses_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, taken = storage._lock, []
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    def lock_if_possible(descriptor: int) -> None:
        taken.append(descriptor)
        if len(taken) == 1:
            raise OSError(errno.ENOSYS, "not implemented")
        lock(descriptor)

    monkeypatch.setattr(storage, "_lock", lock_if_possible)
    with storage.locked(tmp_path / "x.lock"):
        assert [name.startswith("choral-lock-") for name in names_in(temporary)] == [True]
        assert names_in(tmp_path) == ["tmp"]
    assert names_in(temporary) == []
