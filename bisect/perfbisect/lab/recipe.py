"""The files beside a recipe, brought to a host: what ``{recipe}`` stands for there."""

import base64
import hashlib
import io
import tarfile
from pathlib import PurePosixPath

from perfbisect.host.protocol import Host
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.lineage import recipe_files

_PLACE = """\
[ ! -d "$1" ] || exit 0
mkdir -p "${1%/*}" && part=$(mktemp -d "$1.XXXXXX") && base64 -d | tar -x -f - -C "$part" && chmod 755 "$part" &&
{ mv -T "$part" "$1" 2>/dev/null || { rm -rf "$part"; [ -d "$1" ]; }; }
"""


def archive(builder: Builder) -> bytes:
    """A tar archive of the recipe's files and those that it inherits, the same for the same contents."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, path in sorted(recipe_files(builder).items()):
            content = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def place(host: Host, builder: Builder) -> PurePosixPath:
    """The folder on the host with the recipe's files; its path is as long for every recipe."""
    packed = archive(builder)
    folder = host.root / "recipes" / hashlib.sha256(packed).hexdigest()[:32]
    host.run(["sh", "-c", _PLACE, "place", str(folder)], stdin=base64.b64encode(packed).decode())
    return folder
