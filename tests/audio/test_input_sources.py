"""Which paths and URLs the prep pool reads."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from choral.audio.prep.pool import PrepPool
from choral.audio.recording import Recording
from choral.errors import (
    AudioNotFound,
    AudioRefused,
    ChoralError,
    UsageError,
)
from local_server import LocalServer
from media_files import Int16Samples, wav


def test_paths_outside_the_roots(make_pool: Callable[..., PrepPool], tones: Int16Samples, tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "root-outside"
    for folder in (root / "sub", outside):
        folder.mkdir(parents=True)
        (folder / "a.wav").write_bytes(wav(tones))
    (root / "link.wav").symlink_to(outside / "a.wav")
    (root / "folder").symlink_to(outside)
    (root / "loop").symlink_to(root / "loop")
    (root / "good-link.wav").symlink_to(root / "sub" / "a.wav")
    os.mkfifo(root / "pipe")
    (root / "device").symlink_to("/dev/zero")
    pool = make_pool(roots=(str(root),))
    for good in (root / "sub" / "a.wav", root / "good-link.wav", root / "sub" / ".." / "sub" / "a.wav"):
        pool.submit(good).result(20).recording.close()
    for bad in (
        *(outside / "a.wav", root / ".." / "root-outside" / "a.wav", root / "link.wav", root / "folder" / "a.wav"),
        *(root / "device", tmp_path / "missing.wav", Path("/etc/passwd"), Path("a.wav"), root),
    ):
        with pytest.raises(AudioRefused, match="not below any of the folders"):
            pool.submit(bad).result(20)
    with pytest.raises(AudioRefused, match="not a regular file"):
        pool.submit(root / "pipe").result(20)
    for bad in (root / "loop", root / "missing.wav", root / "sub"):
        with pytest.raises(ChoralError) as expected:
            Recording.open(bad)
        with pytest.raises(type(expected.value)) as caught:
            pool.submit(bad).result(20)
        assert str(caught.value) == str(expected.value)
    with pytest.raises(AudioNotFound):
        pool.submit(str(root / "a\0.wav")).result(20)


def test_paths_are_refused_without_roots(
    make_pool: Callable[..., PrepPool], tones: Int16Samples, tmp_path: Path
) -> None:
    (tmp_path / "a.wav").write_bytes(wav(tones))
    with pytest.raises(AudioRefused):
        make_pool(roots=()).submit(tmp_path / "a.wav").result(20)


def test_file_swapped_during_open_is_refused(
    pool: PrepPool, tones: Int16Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "a.wav", tmp_path / "b.wav"
    path.write_bytes(wav(tones))
    other.write_bytes(wav(tones))
    real_open = os.open

    def swap(name: str, flags: int, *rest: int) -> int:
        return real_open(other if name == str(path) else name, flags, *rest)

    monkeypatch.setattr(os, "open", swap)
    with pytest.raises(AudioRefused, match="changed while it was opened"):
        pool.submit(path).result(20)


def test_urls_go_through_the_guard(
    make_pool: Callable[..., PrepPool], tones: Int16Samples, server: LocalServer
) -> None:
    url = server.add("/a.wav", wav(tones))
    with pytest.raises(AudioRefused, match="allowed hosts"):
        make_pool(allowed_hosts=()).submit(url).result(20)
    away = server.add("/away.wav", redirect="http://169.254.169.254/latest/meta-data/")
    with pytest.raises(AudioRefused, match=r"169\.254\.169\.254 is not a host on the public internet"):
        make_pool().submit(away).result(20)
    with pytest.raises(UsageError, match="file URLs are not supported"):
        make_pool().submit("file:///etc/passwd")
