"""Copies small files of this machine to a host: the files of a recipe, and the scripts of a workload."""

import base64
import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from perfbisect.host.protocol import Host
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import recipe_files

Files = Mapping[str, Path]  # name below the folder on the host → local file

_PLACE = """\
[ ! -d "$1" ] || exit 0
(case $1 in */scripts/*) umask 077;; esac; mkdir -p "${1%/*}") && part=$(mktemp -d "$1.XXXXXX") && base64 -d | tar -x -f - -C "$part" && chmod 755 "$part" &&
find "$part" -type f -exec sync -- {} + &&
{ mv -T "$part" "$1" 2>/dev/null || { rm -rf "$part"; [ -d "$1" ]; }; }
"""


def archive_files(files: Files) -> bytes:
    """A tar archive of the files. Archives of files with equal names and contents are equal byte by byte."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, path in sorted(files.items()):
            content = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def place_files(host: Host, folder: str, files: Files) -> PurePosixPath:
    """Copy the files to ``ROOT/FOLDER/HASH`` on the host, and return this path. Its length is the same for all files,
    because the length of a path can affect the speed."""
    packed = archive_files(files)
    target = host.root / folder / hashlib.sha256(packed).hexdigest()[:32]
    host.run(["sh", "-c", _PLACE, "place", str(target)], stdin=base64.b64encode(packed).decode())
    return target


def recipe_archive(builder: Builder) -> bytes:
    """A tar archive of the recipe's files and of the files that the recipe inherits. Archives of equal files are equal
    byte by byte."""
    return archive_files(recipe_files(builder))


def place_recipe(host: Host, builder: Builder) -> PurePosixPath:
    """Copy the recipe's files to the host, unless the host already has these files. Returns the folder of the files on
    the host."""
    return place_files(host, "recipes", recipe_files(builder))
