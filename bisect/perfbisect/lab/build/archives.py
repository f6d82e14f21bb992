"""What unpacks an archive on a host, whoever made it: functions of a shell, for the scripts that use them."""

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
