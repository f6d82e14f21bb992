"""What packs and unpacks an archive on a host, whoever made it: scripts of a shell, and functions for them."""

from perfbisect.lab.build.build_store import FUNCTIONS

REFUSED = 3  # the status for an archive that would do harm

# tar itself leaves out names with .. and follows no link that leads out of the folder; where it makes an absolute name
# relative, it only warns. Set-user-ID bits and owners are dropped.
UNPACK = f"""\
unpack() {{ # standard input into the folder $1, by these options of tar
    into=$1; shift
    LC_ALL=C tar -x "$@" --no-same-owner --no-same-permissions -f - -C "$into" 2>said
    status=$?
    head -n 20 said | cut -c -500 >&2
    ! grep -q '^tar: Removing leading' said || return {REFUSED}
    rm said
    return $status
}}
"""
ODD = """\
odd() { # the first thing below the folder $1 that is neither a file nor a folder nor a link
    find "$1" ! -type f ! -type d ! -type l -printf '%P\\n' -quit
}
"""
LEAVING = """\
leaving() { # the first symbolic link below the folder $1 that leads out of it
    find "$1" -type l -exec sh -c 'top=$(realpath -- "$0") && for link do
        case $(realpath -m -- "$link") in "$top"/*) ;; *) printf "%s\\n" "$link"; exit;; esac; done' "$1" {} + | head -n 1
}
"""
LACKING = """\
lacking() { # libraries that programs below the folder $1 load, and that neither it nor the system has
    find "$1" -type f '(' -perm -u+x -o -name '*.so' -o -name '*.so.*' ')' -exec sh -c 'for file do ldd "$file"; done' sh {} + \\
        2>/dev/null | sed -n 's/^[[:space:]]*\\([^ ]*\\) => not found$/\\1/p' | sort -u | while IFS= read -r library; do
        [ -n "$(find "$1" -name "$library" -print -quit)" ] || printf '%s\\n' "$library"; done
}
"""


UNFIT = 5  # a status besides REFUSED

# Prints what a build depends on besides its key: it names no package, so hosts of one distribution share builds.
SURROUNDINGS = """\
uname -m
[ ! -r /etc/os-release ] || ( . /etc/os-release && printf '%s %s\\n' "$ID" "$VERSION_ID" )
getconf GNU_LIBC_VERSION 2>/dev/null || :
"""

# $1 the folder of a build, $2 the compressing command, $3 where its builder installs. Leaves $1.part/archive, and prints its
# size, its hash, whether the build contains the path $3, and the libraries that it lacks. The same folder gives the same
# archive.
PACK = f"""\
{ODD}{LEAVING}{LACKING}
cd -- "$1" && rm -rf "$1.part" && mkdir "$1.part" || exit
found=$(odd prefix)$(leaving prefix)
[ -z "$found" ] || {{ printf '%s\\n' "$found"; exit {REFUSED}; }}
[ ! -e links/plan ] || links=./links
LC_ALL=C tar -c --use-compress-program="$2" --sort=name --mtime=@315532800 --owner=0 --group=0 --numeric-owner --mode=ug-s \\
    --format=gnu -f "$1.part/archive" ./build.json ./log ./prefix $links || exit
stat -c %s "$1.part/archive" && sha256sum <"$1.part/archive" | cut -d ' ' -f 1 || exit
if grep -rlqF -e "$3" prefix 2>/dev/null || find prefix -type l -printf '%l\\n' | grep -qF -e "$3"; then echo rooted; else echo free; fi
lacking prefix
"""
RECEIVE = 'cat >"$1.part/archive"'
SEND = 'cat -- "$1.part/archive"'
CLEAN = 'rm -rf -- "$1.part"'

# $1 the folder of the build, $2 the archive's hash, $3 what uncompresses it, $4 the key, $5 the root folder where it was
# built, $6 the one here, then libraries that it may lack. Prints why it is not used.
UNPACK_BUILD = f"""\
{FUNCTIONS}{UNPACK}{ODD}{LEAVING}{LACKING}
place=$1 sum=$2 through=--use-compress-program=$3 key=$4 from=$5 root=$6
shift 6
cd -- "$place.part" 2>/dev/null || {{ [ -d "$place" ]; exit; }} # done already
printf '%s  archive\\n' "$sum" | sha256sum -c --status - 2>/dev/null || {{ echo 'it is not what its manifest has the hash of'; exit {REFUSED}; }}
refuse() {{ printf '%s\\n' "$1" | head -n 1 | cut -c -300; exit {REFUSED}; }}
LC_ALL=C tar -t "$through" --quoting-style=escape -f archive >names 2>said || refuse "it is no archive: $(head -n 1 said)"
LC_ALL=C tar -tv "$through" --quoting-style=escape -f archive >entries 2>said || refuse "it is no archive: $(head -n 1 said)"
name=$(grep -E -m 1 -e '^/' -e '(^|/)\\.\\.(/|$)' names) && refuse "it has a name that leads out of its folder: $name"
name=$(grep -vE -m 1 -e '^\\./(build\\.json|log|prefix/?|links/?)$' -e '^\\./(prefix|links)/' names) && refuse "it has what no build has: $name"
name=$(grep -E -m 1 -e '^[^-dlh]' entries) && refuse "it has a device, a FIFO or a socket: $name"
name=$(grep -E -m 1 -e '^(...|......)[sS]' entries) && refuse "it has a program that changes the user: $name"
rm -rf build && mkdir build || exit
unpack build "$through" <archive || {{ [ $? = {REFUSED} ] && refuse 'it has absolute names'; exit 1; }}
chmod -R u+rwX build || exit
name=$(odd build) && [ -z "$name" ] || refuse "it has a device, a FIFO or a socket: $name"
name=$(leaving build) && [ -z "$name" ] || refuse "it has a link that leads out of its folder: $name"
[ -d build/prefix ] && [ ! -L build/prefix ] && [ -f build/build.json ] && [ -f build/log ] || refuse 'it has no prefix, record or log'
grep -qF -e "\\"key\\":\\"$key\\"" build/build.json || refuse 'it is another build than its manifest says'
for library in $(lacking build/prefix); do
    for known do [ "$known" != "$library" ] || continue 2; done
    printf '%s\\n' "$library"; exit {UNFIT}
done
[ "$from" = "$root" ] || [ ! -d build/links ] || [ -e build/links/root ] || printf %s "$from" >build/links/root
find build -type f -exec sync -- {{}} + && record "$PWD/build" && rm -rf "$place" && mv -T -- build "$place" && rm -rf "$place.part"
"""
