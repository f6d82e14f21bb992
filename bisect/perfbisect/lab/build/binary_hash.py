"""When two builds are the same: a hash of what the loader maps from their artifacts.

Debug information, symbol tables, the build id and what else is never loaded may differ while the code is equal; an
ELF file is therefore hashed by its image in memory, together with the sizes of its segments. Anything else, such as
a static library or a script, is hashed as a whole.
"""

import hashlib
from collections.abc import Sequence
from pathlib import PurePosixPath

from perfbisect.host import jobs
from perfbisect.host.protocol import Host

# The 17th byte of an ELF header, in either byte order, is its type: 2 a program, 3 a shared library. In an
# object file (1) the image alone would miss the relocations. $1 is the folder of temporary files, then paths.
_HASH = """\
mkdir -p "$1" && image=$(mktemp -p "$1") && trap 'rm -f "$image"' EXIT || exit 1
shift
for file do
    if [ ! -f "$file" ]; then echo absent; continue; fi
    magic=$(od -An -v -tx1 -N18 -- "$file" | tr -d ' \\n')
    case $magic in
        7f454c46*0[23]00 | 7f454c46*000[23])
            objcopy -O binary -R .note.gnu.build-id -- "$file" "$image" || exit 1
            { readelf -lW -- "$file" | grep -E '^ +(LOAD|TLS) '; cat "$image"; } | sha256sum;;
        *) sha256sum <"$file";;
    esac
done
"""


# Prints the shared libraries below $1, which is absent where nothing was installed.
_LIBRARIES = """[ -d "$1" ] || exit 0; cd -- "$1" && find . -type f '(' -name '*.so' -o -name '*.so.*' ')' -print0 | LC_ALL=C sort -z"""


def libraries(host: Host, prefix: PurePosixPath) -> list[str]:
    """The paths of all shared libraries below ``prefix``: a program may load any of them."""
    found = host.run(["sh", "-c", _LIBRARIES, "libraries", str(prefix)], timeout=600).stdout
    return found.split("\0")[:-1]


def measured(host: Host, prefix: PurePosixPath, artifacts: Sequence[str], *, with_libraries: bool) -> list[str]:
    """The paths below ``prefix`` of what is measured, by default these artifacts alone.

    None where that is unknown, as with a library whose name is not UTF-8: commands cannot be given such a name.
    """
    found = libraries(host, prefix) if artifacts and with_libraries else []
    return [] if any("\N{REPLACEMENT CHARACTER}" in each for each in found) else [*artifacts, *found]


def hash_artifacts(host: Host, prefix: PurePosixPath, artifacts: Sequence[str]) -> str:
    """One hash of all artifacts, given by their paths below ``prefix``.

    Raises FileNotFoundError with the path of the first that is missing.
    """
    paths = [str(prefix / artifact) for artifact in artifacts]
    answers = host.run(["sh", "-c", _HASH, "hash", str(jobs.scratch(host)), *paths], timeout=600).stdout.splitlines()
    digest = hashlib.sha256()
    for artifact, answer in zip(artifacts, answers, strict=True):
        if answer == "absent":
            raise FileNotFoundError(artifact)
        digest.update(f"{artifact}\0{answer.split()[0]}\n".encode())
    return digest.hexdigest()
