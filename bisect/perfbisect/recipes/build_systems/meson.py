"""Meson, with the build type ``plain``: the compiler's options are the variant's alone."""

from perfbisect.recipes.build_systems.plan import STAGED, Commands, Plan

# Meson takes compilers of more than one word from a file only. $0 is the file, then the words of both compilers.
_NATIVE = """\
list() {{ for word do printf "'%s', " "$word"; done; }}
printf '[binaries]\\nc = [%s]\\ncpp = [%s]\\n' "$(list $1)" "$(list $2)" >"$0"
"""


def commands(plan: Plan) -> Commands:
    """How a tree with a meson.build is built."""
    folder = "{prefix}/build" if plan.in_place else "."
    setup = (
        "meson", "setup", folder, plan.source, "--native-file={build}/native.ini",
        "--prefix={prefix}", "--libdir=lib", "--buildtype=plain", "--wrap-mode=nodownload",
        "-Db_ndebug=true", "-Dwerror=false",
        "-Dc_args={cflags} -Wno-error", "-Dcpp_args={cflags} -Wno-error",
        "-Dc_link_args={ldflags}", "-Dcpp_link_args={ldflags}",
        *plan.options,
    )  # fmt: skip
    return Commands(
        configure=(*plan.copied, ("sh", "-c", _NATIVE, "{build}/native.ini", "{cc}", "{cxx}"), setup),
        compile=(("ninja", "-C", folder, "-j{jobs}", *plan.targets),),
        install=() if plan.in_place else (("sh", "-c", STAGED, "{prefix}", "meson", "install", "--no-rebuild"),),
    )
