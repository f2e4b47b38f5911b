"""Prometheus's own checker, of Debian's package; unpacked only, since installing it would start a Prometheus."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from choral.errors import DownloadFailed, MissingDependency
from choral.storage import cache_root, locked


def program() -> Path:
    folder = cache_root() / "test-promtool"
    found = folder / "promtool"
    with locked(cache_root() / ".test-promtool.lock"):
        if not found.exists():
            folder.mkdir(exist_ok=True)
            _unpack(found)
    return found


def _unpack(place: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise MissingDependency("promtool, which apt-get and dpkg-deb would bring")
    with tempfile.TemporaryDirectory(dir=place.parent) as work:
        if subprocess.run(["apt-get", "download", "-q", "prometheus"], cwd=work, check=False).returncode != 0:
            raise DownloadFailed("promtool: run `apt-get update` as root")
        [archive] = Path(work).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, "tree"], cwd=work, check=True)
        os.rename(Path(work, "tree", "usr", "bin", "promtool"), place)
