"""Programs extracted from Debian packages into the cache, because installing the packages would start services."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from choral.errors import DownloadFailed, MissingDependency
from choral.storage import cache_root, locked


def program(package: str, member: str) -> Path:
    """The path of the extracted program; `member` is its path inside the package."""
    path = cache_root() / "test-programs" / Path(member).name
    with locked(cache_root() / f".test-{path.name}.lock"):
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            _unpack(package, member, path)
    return path


def _unpack(package: str, member: str, target: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise MissingDependency(f"{target.name}, which needs apt-get and dpkg-deb")
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        command = ["apt-get", "download", "-q", package]
        if subprocess.run(command, cwd=work, capture_output=True, check=False).returncode != 0:
            raise DownloadFailed(f"{target.name} of Debian's {package}: run `apt-get update` as root")
        [archive] = Path(work).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, "tree"], cwd=work, check=True)
        os.rename(Path(work, "tree", member), target)
