"""A bare repository that borrows the objects of another one, and has nothing else of it: no configuration, no hooks.

Whatever the other repository and its user have configured does not count for commands in this one.
"""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from perfbisect.repository.git import Repository, failure, sealed

# $1 the bare repository, $2 its object format, $3 a line for its alternates (empty: it borrows no objects)
BARE = """\
had=$(git config --file "$1/config" extensions.objectFormat)
[ "${had:-sha1}" = "$2" ] || rm -rf "$1" || exit
format=--object-format=$2; [ "$2" != sha1 ] || format=
[ -f "$1/HEAD" ] || { mkdir -p "${1%/*}" && git init -q --bare --template= $format "$1"; } || exit
if [ -n "$3" ]; then printf '%s\\n' "$3" | cat >"$1/objects/info/alternates"
else rm -f "$1/objects/info/alternates"; fi
"""


def alternates_line(objects: Path) -> str:
    """A folder of objects as a line of an alternates file, where a leading double quote or # has a meaning."""
    path = str(objects)
    if not re.search(r'^["#]|\n', path):
        return path
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def make_bare(path: Path, object_format: str, alternates: str = "") -> None:
    """Make a bare repository at ``path`` unless it exists. Raises EnvironmentFailure when it cannot be made."""
    made = subprocess.run(
        ["sh", "-c", BARE, "bare", str(path), object_format, alternates],
        cwd=path.parent,
        env=sealed(),
        check=False,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    if made.returncode:
        raise failure(f"{path} cannot be made", made.stderr)


@contextmanager
def borrowed(repo: Repository) -> Iterator[Path]:
    """A temporary bare repository with the objects of ``repo``. Raises EnvironmentFailure when it cannot be made."""
    with TemporaryDirectory(prefix="perfbisect-", dir=Path(gettempdir()).absolute()) as folder:
        bare = Path(folder, "objects.git")
        make_bare(bare, repo.object_format, alternates_line(repo.objects))
        yield bare
