"""Single programs of Debian's packages, unpacked into the cache: to install them would start services."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from choral.errors import DownloadFailed, MissingDependency
from choral.storage import cache_root, locked


def program(package: str, member: str) -> Path:
    """The program that lies at `member` in the package."""
    found = cache_root() / "test-programs" / Path(member).name
    with locked(cache_root() / f".test-{found.name}.lock"):
        if not found.exists():
            found.parent.mkdir(exist_ok=True)
            _unpack(package, member, found)
    return found


def _unpack(package: str, member: str, place: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise MissingDependency(f"{place.name}, which apt-get and dpkg-deb would bring")
    with tempfile.TemporaryDirectory(dir=place.parent) as work:
        command = ["apt-get", "download", "-q", package]
        if subprocess.run(command, cwd=work, capture_output=True, check=False).returncode != 0:
            raise DownloadFailed(f"{place.name} of Debian's {package}: run `apt-get update` as root")
        [archive] = Path(work).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, "tree"], cwd=work, check=True)
        os.rename(Path(work, "tree", member), place)
