"""A Makefile alone, in a copy of the tree.

Makefiles have no common way to set the compiler's options: some append to CFLAGS, some ignore it. So the compiler is
a script that puts the variant's options last, where they count. An installation is tried if the Makefile has one;
otherwise the whole folder is the result.
"""

from perfbisect.recipes.build_systems.plan import STAGED, Commands, Plan

# $0 the folder of the compilers' scripts.
_COMPILERS = """\
mkdir -p "$0" || exit
set -- {cflags}; flags=$*
set -- {ldflags}; linking=$*
script() {{
    printf '#!/bin/sh\\ncase " $* " in *" -c "* | *" -E "* | *" -S "*) exec %s "$@" %s;; esac\\nexec %s "$@" %s %s\\n' \\
        "$2" "$flags" "$2" "$flags" "$linking" >"$1" && chmod +x "$1"
}}
script "$0/cc" {cc} && script "$0/cxx" {cxx}
"""
# $0 {prefix}, then make and its variables.
_INSTALL = f"""\
if make -s -n install "$@" >/dev/null 2>&1; then
    set -- make install "$@"
    {STAGED}
else
    mkdir -p "$0" && cp -a . "$0"
fi
"""


def commands(plan: Plan) -> Commands:
    """How a tree with a Makefile is built."""
    folder = "{prefix}" if plan.in_place else "{build}"
    there = ("env", "-C", "{prefix}") if plan.in_place else ()
    compilers = folder + "/.perfbisect"
    variables = (f"CC={compilers}/cc", f"CXX={compilers}/cxx", "PREFIX={prefix}", *plan.options)
    return Commands(
        configure=(
            ("cp", "-a", "{source}/.", folder),
            ("sh", "-c", _COMPILERS, compilers),
        ),
        compile=((*there, "make", "-j{jobs}", *variables, *plan.targets),),
        install=() if plan.in_place else (("sh", "-c", _INSTALL, "{prefix}", *variables),),
    )
