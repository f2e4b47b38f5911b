"""Archives from local indexes, found through pip's and npm's configuration."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from choral.errors import DownloadFailed, ModelCorrupt
from choral.remote import download as fetch
from choral.remote import pip_config
from choral.remote.package_archives import Archive, extract, fetch_archive
from choral.remote.pip_config import pip_settings
from local_server import LocalServer, serve

CONTENT = b"a member of an archive" * 4000


def wheel(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, CONTENT + name.encode())
    return buffer.getvalue()


def tarball(*names: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(CONTENT) + len(name)
            archive.addfile(member, io.BytesIO(CONTENT + name.encode()))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)
    return buffer.getvalue()


WHEEL = wheel("pkg/model.bin", "pkg/config.json")
DIGEST = hashlib.sha256(WHEEL).hexdigest()
ARCHIVE = Archive("python", "My_Pkg", "1.0", "my_pkg-1.0-py3-none-any.whl", DIGEST, len(WHEEL))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalServer]:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(fetch, "_FIRST_PAUSE_S", 0.01)
    pip_settings.cache_clear()
    with serve() as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url + "/simple")
        yield server
    pip_settings.cache_clear()


def add_html(server: LocalServer, link: str = "../../files/{filename}#sha256={digest}", **behaviour: object) -> None:
    filename = ARCHIVE.filename
    href = link.format(filename=filename, digest=DIGEST)
    page = f'<!DOCTYPE html><html><body><a href="other.whl">o</a><a href="{href}">{filename}</a></body></html>'
    server.add("/simple/my-pkg/", page.encode(), content_type="text/html; charset=utf-8", **behaviour)
    server.add(f"/files/{filename}", WHEEL, **behaviour)


def add_json(server: LocalServer, digest: str = DIGEST) -> None:
    file = {"filename": ARCHIVE.filename, "url": f"/files/{ARCHIVE.filename}", "hashes": {"sha256": digest}}
    page = json.dumps({"meta": {"api-version": "1.1"}, "name": "my-pkg", "files": [file]}).encode()
    server.add("/simple/my-pkg/", page, content_type="application/vnd.pypi.simple.v1+json")
    server.add(f"/files/{ARCHIVE.filename}", WHEEL)


@pytest.mark.parametrize("add", [add_html, add_json])
def test_archive_is_fetched_from_the_configured_index(
    server: LocalServer, tmp_path: Path, add: Callable[[LocalServer], None]
) -> None:
    add(server)
    path = fetch_archive(ARCHIVE, tmp_path)
    assert path == tmp_path / ARCHIVE.filename
    assert path.read_bytes() == WHEEL
    assert server.paths() == ["/simple/my-pkg/", f"/files/{ARCHIVE.filename}"]
    assert "application/vnd.pypi.simple.v1+json" in (server.seen[0].accept or "")


def test_sha256_of_the_index_is_used_where_none_is_pinned(server: LocalServer, tmp_path: Path) -> None:
    add_json(server, digest="0" * 64)
    unpinned = Archive("python", "my-pkg", "1.0", ARCHIVE.filename)
    with pytest.raises(ModelCorrupt, match="0" * 64):
        fetch_archive(unpinned, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_file_with_another_sha256_is_not_downloaded(server: LocalServer, tmp_path: Path) -> None:
    add_json(server, digest="0" * 64)
    with pytest.raises(ModelCorrupt, match="the index offers"):
        fetch_archive(ARCHIVE, tmp_path)
    assert server.paths() == ["/simple/my-pkg/"]


def test_extra_indexes_are_searched(server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    add_json(server)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "empty").as_uri())
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{server.url}/nothing {server.url}/simple/")
    assert fetch_archive(ARCHIVE, tmp_path).read_bytes() == WHEEL


def test_index_in_a_local_folder(server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "simple" / "my-pkg" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="../../files/{ARCHIVE.filename}#sha256={DIGEST}">x</a>')
    (tmp_path / "files").mkdir()
    wheel_file = tmp_path / "files" / ARCHIVE.filename
    wheel_file.write_bytes(WHEEL)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    assert fetch_archive(ARCHIVE, tmp_path / "work").samefile(wheel_file)
    wheel_file.write_bytes(WHEEL + b"x")
    with pytest.raises(ModelCorrupt, match="SHA-256"):
        fetch_archive(ARCHIVE, tmp_path / "work")


def test_index_with_a_password(server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_html(server, authorization="Basic bWU6cHc=")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:pw@{server.host}/simple")
    assert fetch_archive(ARCHIVE, tmp_path).read_bytes() == WHEEL


def test_error_names_every_index(server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.add("/simple/my-pkg/", b"<html></html>", content_type="text/html")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"http://me:pw@{server.host}/more")
    with pytest.raises(DownloadFailed) as failure:
        fetch_archive(ARCHIVE, tmp_path)
    assert str(failure.value) == (
        f"{server.url}/simple has no file {ARCHIVE.filename}; "
        f"{server.url}/more/my-pkg/: the server answered 404 Not Found"
    )


def test_pips_no_index_is_honoured(server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(DownloadFailed, match="no-index forbids"):
        fetch_archive(ARCHIVE, tmp_path)
    assert server.seen == []


def test_settings_come_from_pips_configuration(
    server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = http://a/simple\nproxy = http://p:1\ncert = /ca.pem\nextra-index-url =\n"
        "    http://b/simple\n    http://c/simple\n[download]\nindex-url = http://d/simple\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.delenv("PIP_INDEX_URL")
    settings = pip_settings()
    assert settings.index_urls == ("http://d/simple", "http://b/simple", "http://c/simple")
    assert (settings.proxy, settings.cert, settings.problem) == ("http://p:1", "/ca.pem", None)


def test_pips_default_index(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://extra/simple")
    main, extra = pip_settings().index_urls
    assert main.startswith("https://")
    assert extra == "http://extra/simple"


def test_without_pip_the_environment_is_used(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert pip_settings().index_urls == (server.url + "/simple",)
    monkeypatch.delenv("PIP_INDEX_URL")
    pip_settings.cache_clear()
    with pytest.raises(DownloadFailed, match=r"pip is not installed for this Python.*set PIP_INDEX_URL"):
        fetch_archive(ARCHIVE, Path("unused"))


def test_folder_named_pip_is_not_imported(server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").write_text("")
    (tmp_path / "pip" / "__main__.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    assert pip_config.pip_settings().index_urls == (server.url + "/simple",)
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = tmp_path / "bin" / "npm"
    script.parent.mkdir()
    monkeypatch.setenv("PATH", str(script.parent))
    return script


def write_npm(script: Path, body: str) -> None:
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for npm")
def test_archive_is_fetched_from_the_npm_registry(server: LocalServer, tmp_path: Path, npm: Path) -> None:
    body = tarball("package/model.bin")
    url = server.add("/x/-/x-1.0.tgz", body)
    write_npm(npm, f"test \"$*\" = 'view @a/x@1.0 dist.tarball --json' && echo '\"{url}\"'")
    archive = Archive("npm", "@a/x", "1.0", "a-x-1.0.tgz", hashlib.sha256(body).hexdigest())
    assert fetch_archive(archive, tmp_path).read_bytes() == body
    write_npm(npm, "echo 'npm error code E404' >&2; exit 1")
    with pytest.raises(DownloadFailed, match=r"npm does not know where @a/x 1.0 is: code E404"):
        fetch_archive(archive, tmp_path)


def test_missing_npm_is_reported(tmp_path: Path, npm: Path) -> None:
    with pytest.raises(DownloadFailed, match="needs npm"):
        fetch_archive(Archive("npm", "x", "1.0", "x.tgz"), tmp_path)


@pytest.mark.parametrize(("name", "make"), [("a.whl", wheel), ("a.tar.gz", tarball), ("a.tgz", tarball)])
class TestExtract:
    def test_members_go_where_the_caller_says(self, tmp_path: Path, name: str, make: Callable[..., bytes]) -> None:
        archive = tmp_path / name
        archive.write_bytes(make("../../evil", "pkg/a", "pkg/b", "pkg/c"))
        extract(archive, {"pkg/c": tmp_path / "new" / "c", "pkg/a": tmp_path / "a", "../../evil": tmp_path / "e"})
        assert (tmp_path / "new" / "c").read_bytes() == CONTENT + b"pkg/c"
        assert (tmp_path / "a").read_bytes() == CONTENT + b"pkg/a"
        assert (tmp_path / "e").read_bytes() == CONTENT + b"../../evil"
        assert sorted(path.name for path in tmp_path.rglob("*")) == sorted([name, "a", "c", "e", "new"])

    def test_a_missing_member_is_named(self, tmp_path: Path, name: str, make: Callable[..., bytes]) -> None:
        archive = tmp_path / name
        archive.write_bytes(make("pkg/a"))
        with pytest.raises(ModelCorrupt, match="does not contain link, pkg/z"):
            extract(archive, {"pkg/a": tmp_path / "a", "pkg/z": tmp_path / "z", "link": tmp_path / "l"})

    @pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
    def test_a_cut_archive_is_damaged(
        self, tmp_path: Path, name: str, make: Callable[..., bytes], share: float
    ) -> None:
        archive = tmp_path / name
        whole = make("pkg/a", "pkg/b")
        archive.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(ModelCorrupt, match="damaged or cut short"):
            extract(archive, {"pkg/b": tmp_path / "b"})
