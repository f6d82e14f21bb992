"""That a finished build is as it was made: what is measured may change or delete files of its own build.

In the folder of a build, beside ``prefix``:

    files/paths   of everything that was installed
    files/seen    its size, inode, times and mode, which are compared before each visit. Of a folder only the mode: what
                  a program adds is no file of the build
    files/held    what it contains: digests, and the targets of links. Compared where ``seen`` differs; where that is all
                  that differs, it is noted anew

All entries end with a NUL and are compared as bytes. A layout has no ``files/held``: it is linked again. A program can
change the speed alone, so nothing else shows that its build is no longer what was built.
"""

from pathlib import PurePosixPath

from perfbisect.host.protocol import Host

LONG = 3600.0  # seconds: reading everything of a large system

# ``changed`` prints a few of the paths, one a line. A folder without a record, as of an earlier version, has not changed.
FUNCTIONS = r"""
seen() { # in folder $1, of the paths on standard input
    (cd -- "$1/prefix" && LC_ALL=C xargs -0 -r sh -c \
        'find "$@" -maxdepth 0 "(" -type d -printf "%y %m %p\0" -o -printf "%y %m %s %i %T@ %C@ %p\0" ")"' find) |
        LC_ALL=C sort -z
}
held() {
    (cd -- "$1/prefix" && LC_ALL=C xargs -0 -r sh -c \
        'find "$@" -maxdepth 0 -printf "%y %m %l %p\0" -type f -exec sha256sum -z -- {} +' find) | LC_ALL=C sort -z
}
note() { [ ! -e "$1/files/paths" ] || seen "$1" <"$1/files/paths" >"$1/files/seen"; }
list() { mkdir -p "$1/files" && (cd -- "$1/prefix" && find . -mindepth 1 -print0) >"$1/files/paths"; }
record() { list "$1" && held "$1" <"$1/files/paths" >"$1/files/held" && note "$1" && sync -- "$1"/files/*; }
changed() {
    [ -d "$1/prefix" ] || { echo 'all of them'; return; }
    [ -e "$1/files/seen" ] || return 0
    ! seen "$1" <"$1/files/paths" 2>/dev/null | cmp -s - "$1/files/seen" || return 0
    by=held; [ -e "$1/files/held" ] || by=seen
    "$by" "$1" <"$1/files/paths" 2>/dev/null | LC_ALL=C comm -z -13 - "$1/files/$by" | LC_ALL=C sed -z 's,^.* \(\./\),\1,' |
        tr '\n\0' ' \n' | LC_ALL=C sort -u | cut -b -100 |
        LC_ALL=C awk 'NR < 4; NR == 4 { print "…" } END { exit !NR }' || note "$1"
}
"""
_CHANGED = f'{FUNCTIONS}changed "$1"'
_RECORD_LAYOUTS = f'{FUNCTIONS}for each do list "$each" && note "$each" || exit; done'


def changes(host: Host, folder: PurePosixPath) -> str:
    """What of the build in that folder is not as it was made, a path a line; "" where all is."""
    return host.run(["sh", "-c", _CHANGED, "changed", str(folder)], timeout=LONG).stdout


def record_layouts(host: Host, folders: list[PurePosixPath]) -> None:
    """Record layouts. Each has files in common with those linked after it, whose times that changes: record all at once."""
    host.run(["sh", "-c", _RECORD_LAYOUTS, "record", *map(str, folders)], timeout=LONG)
