"""That a finished build is as it was made: what is measured may change or delete files of its own build.

In the folder of a build, beside ``prefix``:

    files/paths   of everything that was installed
    files/seen    its size, inode, times and mode, which are compared before each visit. Of a folder only the mode: what
                  a program adds is no file of the build
    files/held    what it contains: digests, and the targets of links. Compared where ``seen`` differs; where that is all
                  that differs, it is noted anew

All entries end with a NUL and are compared as bytes. A program can change the speed alone, so nothing else shows that its
build is no longer what was built.

A layout shares files with its build and the other layouts of it. To link or remove one of these changes times of such files,
so ``seen`` of the build, and of layouts that are linked together, is noted anew then: otherwise everything would be read.
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
alike() { seen "$1" <"$1/files/paths" 2>/dev/null | cmp -s - "$1/files/seen"; }
record() {
    mkdir -p "$1/files" && (cd -- "$1/prefix" && find . -mindepth 1 -print0) >"$1/files/paths" &&
        held "$1" <"$1/files/paths" >"$1/files/held" && note "$1" && sync -- "$1"/files/*
}
record_layout() { # $1 of the build in folder $2, in which the paths in file $3 were linked again
    mkdir "$1/files" && cp -- "$2/files/paths" "$1/files" &&
        { held "$2" <"$3" | LC_ALL=C comm -z -13 - "$2/files/held"; held "$1" <"$3"; } | LC_ALL=C sort -z >"$1/files/held" &&
        note "$1"
}
changed() {
    [ -d "$1/prefix" ] || { echo 'all of them'; return; }
    [ -e "$1/files/seen" ] || return 0
    ! alike "$1" || return 0
    held "$1" <"$1/files/paths" 2>/dev/null | LC_ALL=C comm -z -13 - "$1/files/held" | LC_ALL=C sed -z 's,^.* \(\./\),\1,' |
        tr '\n\0' ' \n' | LC_ALL=C sort -u | cut -b -100 |
        LC_ALL=C awk 'NR < 4; NR == 4 { print "…" } END { exit !NR }' || note "$1"
}
"""
_CHANGED = f'{FUNCTIONS}changed "$1"'
_NOTE = f'{FUNCTIONS}for each do note "$each" || exit; done'


def changes(host: Host, folder: PurePosixPath) -> str:
    """What of the build in that folder is not as it was made, a path a line; "" where all is."""
    return host.run(["sh", "-c", _CHANGED, "changed", str(folder)], timeout=LONG).stdout


def note(host: Host, layouts: list[PurePosixPath]) -> None:
    """Note the times of layouts in these folders, once all are linked: each link changes those of the ones before."""
    host.run(["sh", "-c", _NOTE, "note", *map(str, layouts)], timeout=LONG)
