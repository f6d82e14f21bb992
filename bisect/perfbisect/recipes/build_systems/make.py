"""A Makefile alone, in a copy of the tree.

Makefiles have no common way to set the compiler's options: some append to CFLAGS, some ignore it. So the compiler is
a script that puts the variant's options last, where they count, and makes no errors of warnings, of which newer
compilers have more. An installation is tried if the Makefile has one;
otherwise the whole folder is the result.
"""

from perfbisect.recipes.build_systems.plan import STAGED, Commands, Plan

# $0 the folder of the compilers' scripts. Values are quoted for a shell, and the scripts get them as they are.
_SCRIPT = """\
cat >"$0/{name}" <<'.' || exit
#!/bin/sh
case " $* " in *" -c "* | *" -E "* | *" -S "*) exec ccache {compiler} "$@" {{cflags}} -Wno-error;; esac
exec ccache {compiler} "$@" {{cflags}} -Wno-error {{ldflags}}
.
"""
_COMPILERS = "\n".join((
    'mkdir -p "$0" || exit',
    _SCRIPT.format(name="cc", compiler="{compiler}"),
    _SCRIPT.format(name="cxx", compiler="{cxx_compiler}"),
    'chmod +x "$0/cc" "$0/cxx"',
))  # fmt: skip
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
    variables = (f"CC={compilers}/cc", f"CXX={compilers}/cxx", "PREFIX={prefix}", "prefix={prefix}", *plan.options)
    return Commands(
        configure=(
            ("cp", "-a", "{source}/.", folder),
            ("sh", "-c", _COMPILERS, compilers),
        ),
        compile=((*there, "make", "-j{jobs}", *variables, *plan.targets),),
        install=() if plan.in_place else (("sh", "-c", _INSTALL, "{prefix}", *variables),),
    )
