"""Programs that a tree builds and does not install, as many a benchmark: they are taken from the build.

The folder of a build is emptied for the next one, and a program finds shared libraries in it by its RUNPATH. So a program
that is copied from it brings these libraries along, beside itself, and in each of these files the RUNPATH is changed
where it stands: ``$ORIGIN`` is no longer than the folder of the build, or the ``$ORIGIN/…``, that it replaces.
"""

from perfbisect.recipes.build_systems.plan import Argvs, Plan

# $0 {prefix}, then paths of programs below it. Runs in {build}.
SCRIPT = r"""
work=$(realpath ..) && prefix=$(realpath -m -- "$0") || exit
tab='	'
fail() { echo "error: $1"; exit 1; }
of_the_build() { # whether the path $1 is one of the tree, or of what was built of it
    case $1 in "$prefix" | "$prefix"/*) return 1;; "$work"/*) return 0;; *) return 1;; esac
}
built() { # paths of the executable files called $1 that are nearest to the top
    find . -path ./.stage -prune -o -type f -perm -u+x -printf '%f\t%d\t%p\n' |
        name=$1 awk -F '\t' '$1 == ENVIRON["name"] { print $2 "\t" $3 }' | sort -n |
        while IFS=$tab read -r depth path; do # a script of libtool runs the program of its name in .libs
            head -n 5 -- "$path" | grep -aq 'temporary wrapper script for' || printf '%s\t%s\n' "$depth" "$path"
        done | awk -F '\t' 'NR == 1 { top = $1 } $1 == top { print $2 }'
}
loaded() { # libraries that $1 loads: name, path; of those that are found by their path it is the name, too
    LC_ALL=C ldd "$1" 2>/dev/null | sed -n 's/^[[:space:]]*\(.*\/.*\) (0x[0-9a-f]*)$/\1/p' |
        sed -e 's/ => /\t/' -e t -e 's/.*/&\t&/'
}
move() { # let $1 look for libraries beside itself in place of the build
    runpath=$(readelf -dW -- "$1" 2>/dev/null | sed -n 's/.*(R\(UN\)\{0,1\}PATH).*\[\(.*\)\]$/\2/p')
    new=\$ORIGIN changed=
    set -f
    IFS=:
    for folder in $runpath; do
        case $folder in
            /*) if of_the_build "$(realpath -m -- "$folder")"; then changed=yes; else new=$new:$folder; fi;;
            *) changed=yes;; # relative to the file, or to where it is run
        esac
    done
    unset IFS
    set +f
    [ -n "$changed" ] || return 0
    section=$(readelf -SW -- "$1" | sed -n 's/^ *\[ *[0-9]*\] \.dynstr  *STRTAB  *[0-9a-f]*  *\([0-9a-f]*\) .*/\1/p')
    at=$(readelf -W -p .dynstr -- "$1" | sed -n 's/^ *\[ *\([0-9a-f]*\)\]  /\1\t/p' |
        text=$runpath awk -F '\t' '$2 == ENVIRON["text"] { print $1; exit }')
    [ -n "$section" ] && [ -n "$at" ] && [ "${#new}" -le "${#runpath}" ] ||
        fail "${1##*/} loads libraries of its build, and its RUNPATH cannot be changed: $runpath"
    { printf %s "$new"; head -c "$((${#runpath} - ${#new}))" /dev/zero; } |
        dd of="$1" bs=1 seek="$((0x$section + 0x$at))" conv=notrunc status=none || exit
}
copy() {
    mkdir -p -- "${2%/*}" && cp -pL -- "$1" "$2" && chmod u+w -- "$2" || exit
    move "$2"
}
for program do
    to=$0/$program
    [ ! -e "$to" ] || continue
    from=$(built "${program##*/}")
    [ -n "$from" ] || continue
    [ "$(printf '%s\n' "$from" | wc -l)" = 1 ] ||
        fail "$program is not installed, and several files of the build have its name: $(printf '%s\n' "$from" | paste -s -d ' ')"
    echo "perfbisect: $program is not installed, and copied from the build: $from"
    copy "$from" "$to"
    loaded "$from" | while IFS=$tab read -r name path; do
        of_the_build "$(realpath -- "$path")" || continue
        [ "$name" != "$path" ] || fail "$program loads a library of its build by its path: $path"
        [ -e "${to%/*}/$name" ] || copy "$path" "${to%/*}/$name"
    done || exit
    loaded "$to" | while IFS=$tab read -r name path; do
        ! of_the_build "$(realpath -- "$path")" || fail "$program still loads a library of its build: $path"
    done || exit
done
"""


def copying(plan: Plan) -> Argvs:
    """The command that brings programs of the recipe from the build to {prefix}, where the installation has not."""
    if plan.in_place or not plan.programs:
        return ()
    return (("sh", "-c", SCRIPT.replace("{", "{{").replace("}", "}}"), "{prefix}", *plan.programs),)
