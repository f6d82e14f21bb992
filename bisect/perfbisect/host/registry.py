"""Makes a host from an entry of hosts.toml: chooses the kind of connection, and checks the right to use the root
folder.

The scheme of a host's address determines the kind of connection. To add a kind of connection, write a module with a
function ``connect``, and add a line to CONNECTIONS.

perfbisect may remove everything below a root folder without asking the user, so the folder must belong to perfbisect. A
root folder contains a marker: the file ``.perfbisect``, whose only line says what the folder is and which version of
perfbisect has written the marker. A missing or empty folder becomes a root folder and gets a marker. perfbisect refuses
a folder that has contents but no marker, until the user adopts the folder. If the marker does not belong to this user,
perfbisect also refuses a folder of another user (except the superuser) and a folder to which all users may write,
because other users may have put links to files of this user into such a folder. perfbisect always refuses ``/``, a
folder that is or contains the home folder, a git repository, a folder in a git directory, and a folder inside another
root folder. If a root folder is a symbolic link, these rules apply to the target of the link.
"""

import shlex
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from pathlib import PurePosixPath

from perfbisect import __version__
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.host import leases, local, ssh, through
from perfbisect.host.leases import LeasedHost
from perfbisect.host.protocol import Host, last_line
from perfbisect.recipes.inventory import HostEntry, leased_host_with_address

MARKER = ".perfbisect"
FOLDERS = ("git", "recipes", "scripts", "work", "builds", "datasets", "visit", "jobs", "logs", "ccache", "tmp")
REMOVED = ("builds", "datasets", "jobs", "logs", "tmp", "visit", "work")  # removed by hunts and `bisect gc`
_PRIVATE = "jobs logs scripts"  # folders with commands, which may contain passwords
_PASSING = (f"{MARKER}.??????", "reflink.??????")  # temporary files that a killed process may have left
_LEFT_OUT = " ".join(f"! -name {shlex.quote(pattern)}" for pattern in ("lost+found", *_PASSING))
# If ~/.cache/perfbisect is a root, it also has these folders, which perfbisect never removes as parts of the root.
_IN_CACHE = ("archives", "demo", "repositories", "submodules", "temporary")
_SHOWN = 4  # most names that a message shows

_REFUSED = 3  # exit status of _CLAIM if it refuses the root; it then prints _TAG with the reason, and details
_TAG = "perfbisect root: "


# $1: the root as in hosts.toml, absolute or with ~. $2: the line of a marker. $3: "adopt" or "". Then tests of find
# that exclude further names. Prints the path of the root, and the contents of a folder that is adopted. The contents
# are listed before the last test for a marker, because another process that creates the same root at this moment writes
# its marker first. Other users may pass through the root, because a server may run as the user nobody. Other users must
# not read commands or their output, unless the root is shared (by its setgid bit, or with all users).
_CLAIM = f"""\
root=$1 line=$2 adopt=$3; shift 3
unset CDPATH
refuse() {{ printf '{_TAG}%s\\n' "$1"; shift; [ $# = 0 ] || printf '%s\\n' "$@"; exit {_REFUSED}; }}
home_of() {{ eval "printf '%s\\n' ~$1"; }}
own=$(home_of "$(id -un)")
HOME=${{HOME:-$own}}
case $root in
    '~' | '~/'*) root=$HOME${{root#'~'}};;
    '~'*)
        user=${{root%%/*}}; user=${{user#'~'}}
        case $user in *[!A-Za-z0-9._-]*) refuse user;; esac
        home=$(home_of "$user")
        case $home in /*) ;; *) refuse user;; esac
        root=$home${{root#"~$user"}};;
esac
[ -d "$root" ] || (umask o-w; mkdir -p -- "$root") || exit 1
cd -- "$root" || exit 1
shown=$(pwd) real=$(pwd -P)

[ "$real" != / ] || refuse top
for home in "$HOME" "$own"; do
    home=$(cd -- "$home" 2>/dev/null && pwd -P) || continue
    case $home/ in "$real/") refuse home;; "$real"/*) refuse above;; esac
done
bare() {{ [ -f "$1/HEAD" ] && [ -d "$1/objects" ] && [ -d "$1/refs" ]; }}
if [ -e .git ] || [ -L .git ] || bare .; then refuse repository; fi

marked() {{
    [ -f "$1/{MARKER}" ] && [ ! -L "$1/{MARKER}" ] && read -r first <"$1/{MARKER}" &&
        case $first in 'perfbisect '*) ;; *) false;; esac
}} 2>/dev/null
outer=$real
until [ -z "$outer" ]; do
    name=${{outer##*/}} outer=${{outer%/*}}
    ! bare "$outer" || refuse repository
    case $name in {"|".join(FOLDERS)}) ! marked "$outer" || refuse inside "$outer";; esac
done

names() {{
    find . -mindepth 1 -maxdepth 1 {_LEFT_OUT} "$@" -printf '%f\\0' | tr '\\n\\0' '?\\n' | LC_ALL=C sort
}}
mark() {{
    new=$(mktemp ./{MARKER}.XXXXXX) || return 1
    printf '%s\\n' "$line" | cat >"$new" && chmod 644 "$new" && mv -fT -- "$new" {MARKER} || {{ rm -f -- "$new"; return 1; }}
}}
safe() {{ [ -n "$(find . -maxdepth 0 '(' -uid 0 -o -uid "$(id -u)" ')' ! -perm -o=w)" ]; }}
known() {{ marked . && {{ [ -O {MARKER} ] || safe; }}; }}
present=
if ! known; then
    present=$(names "$@")
    if known; then present=
    elif [ -z "$adopt" ] && ! safe; then refuse shared
    elif [ -z "$present" ]; then mark || exit 1
    elif [ -z "$adopt" ]; then refuse foreign "$present"
    elif ! marked . && {{ [ -e {MARKER} ] || [ -L {MARKER} ]; }}; then refuse marker
    else mark || exit 1
    fi
fi
if [ -n "$(find . -maxdepth 0 -uid "$(id -u)" ! -perm /2002)" ]; then
    chmod go-rw .
    find {_PRIVATE} -maxdepth 0 -type d -exec chmod go-rwx {{}} +
    find builds -mindepth 2 -maxdepth 2 -type f -name log -exec chmod go-rwx {{}} +
fi 2>/dev/null
printf '%s\\n' "$shown"
[ -z "$present" ] || printf '%s\\n' "$present"
"""

_ADVICE = "Set `root` of this host in hosts.toml to a new or empty folder."
_REMOVES = ", but perfbisect removes files below a root folder"
_WRONG = {  # reason that _CLAIM prints → the rest of the error's sentence, and further advice
    "top": (f"is the top of the file system{_REMOVES}", ""),
    "home": (f"is your home folder{_REMOVES}", ""),
    "above": (f"contains your home folder{_REMOVES}", ""),
    "repository": (f"is a git repository, or inside a .git folder{_REMOVES}", ""),
    "marker": (f"has a file {MARKER} that perfbisect did not write{_REMOVES}", ""),
    "user": ("begins with the name of a user that does not exist on the host", ""),
    "inside": ("is inside another root folder, {about}, whose files perfbisect may remove", ""),
    "foreign": (
        "contains files that perfbisect did not write ({about}), and hunts and `bisect gc` could remove these files",
        " Or, if you do not need these files, allow perfbisect to use the folder: bisect doctor {host} --adopt",
    ),
    "shared": (
        "belongs to another user, or every user may write to it; through links in it, such a user could make perfbisect change your files",
        " Or, if you trust all users who can write to the folder: bisect doctor {host} --adopt",
    ),
}


Connect = Callable[[HostEntry, str], Host]
"""Makes the host of an entry, a dataclass, from the entry and its address without scheme.

The root is as the user wrote it, but absolute or with ``~``. Raises EnvironmentFailure if the host cannot be reached.
"""

CONNECTIONS: dict[str, Connect] = {"local": local.connect, "ssh": ssh.connect, "through": through.connect}


def connect(entry: HostEntry) -> Host:
    """The host of ``entry``, with an open connection, after a check that perfbisect may use its root folder; see
    ``_claim_root``.

    An entry with the key ``through`` needs no address. The address ``local`` means this machine. Any other address that
    has no scheme is an ssh destination. Raises EnvironmentFailure if the host cannot be reached, if its root folder
    cannot be created or does not belong to perfbisect, or if this process does not hold the lease of the host.
    """
    return connect_and_adopt_root(entry, allow_foreign=False)[0]


def connect_and_adopt_root(entry: HostEntry, *, allow_foreign: bool = True) -> tuple[Host, tuple[str, ...]]:
    """Connect to the host as ``connect`` does. If ``allow_foreign`` is true, a root folder that does not belong to
    perfbisect is adopted. Returns the host, and the names of the contents of an adopted folder.
    """
    machine = leases.leased_machine(entry.name) if entry.leased else None
    entry = leased_host_with_address(entry, machine.connection_placeholders) if machine else entry
    scheme, separator, destination = entry.address.partition("://")
    if entry.through:
        scheme, destination = "through", ""
    elif not separator:
        scheme, destination = ("local", "") if entry.address == "local" else ("ssh", entry.address)
    if scheme not in CONNECTIONS:
        raise UsageError(
            f"Host {entry.name} has the address {entry.address!r}, but perfbisect has no connection of the kind {scheme!r}.",
            f"Correct `hosts.{entry.name}.address` in hosts.toml. Kinds of connections: {', '.join(CONNECTIONS)}.",
        )
    host = CONNECTIONS[scheme](entry, destination)
    try:
        path, adopted = _claim_root(host, entry, adopt=allow_foreign)
    except BaseException:
        host.close_connection()
        raise
    assert is_dataclass(host)
    host = replace(host, root=path)
    return (LeasedHost(host, machine) if machine else host), adopted


def _claim_root(host: Host, entry: HostEntry, *, adopt: bool) -> tuple[PurePosixPath, tuple[str, ...]]:
    """Create or check the root folder of a connected host, and return its path on the host.

    ``host.root`` is the path as the user wrote it: an absolute path, or a path that begins with ``~``. A folder that
    does not belong to perfbisect is refused, unless ``adopt`` is true. If the folder is adopted, the names of its
    contents are also returned. Raises EnvironmentFailure.
    """
    line = f"perfbisect {__version__} uses this folder as its root, and may remove all files below it at any time"
    further = _IN_CACHE if host.root.name == "perfbisect" else ()
    tests = [word for name in further for word in ("!", "-name", name)]
    result = host.script(_CLAIM, host.root, line, "adopt" if adopt else "", *tests, check=False)
    lines = result.stdout.splitlines()
    if result.status == _REFUSED:
        raise _root_refusal(entry, lines)
    if not result.ok:
        printed = last_line(result.stderr) or "the command printed nothing"
        text = f"the root folder {entry.root} of host {entry.name} cannot be created: {printed}"
        raise EnvironmentFailure(text, "Set another `root` for this host in hosts.toml.")
    if not lines or not lines[0].startswith("/") or (len(lines) > 1 and not adopt):
        raise EnvironmentFailure(
            f"a start-up file of your shell on host {entry.name} prints {(lines or [''])[0]!r}, which mixes with the output"
            " of commands",
            "The file must print nothing in a non-interactive shell: in ~/.bashrc, put output after `[[ $- == *i* ]] || return`. "
            f"To check: `ssh {entry.address.removeprefix('ssh://')} true` should print nothing.",
        )
    return PurePosixPath(lines[0]), tuple(lines[1:])


def _root_refusal(entry: HostEntry, lines: list[str]) -> EnvironmentFailure:
    # A start-up file of the host's shell may have printed lines before the line with the tag.
    at = next(number for number, line in enumerate(lines) if line.startswith(_TAG))
    about = lines[at + 1 :]
    others = f" and {len(about) - _SHOWN:,} more" if len(about) > _SHOWN else ""
    problem, advice = _WRONG[lines[at].removeprefix(_TAG)]
    problem = problem.replace("{about}", ", ".join(about[:_SHOWN]) + others)
    text = f"perfbisect's root folder {entry.root} on host {entry.name} {problem}"
    return EnvironmentFailure(text, _ADVICE + advice.replace("{host}", entry.name))
