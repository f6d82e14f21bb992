"""Cargo: a release build with the crates that are vendored or in the host's cache."""

from perfbisect.recipes.build_systems.plan import Commands, Plan

_INSTALL = """\
mkdir -p "$0/bin" "$0/lib" && cd release || exit
find . -maxdepth 1 -type f -perm -u+x ! -name '*.so' -exec cp -- {{}} "$0/bin" \\; &&
find . -maxdepth 1 -type f -name '*.so' -exec cp -- {{}} "$0/lib" \\;
"""


def commands(plan: Plan) -> Commands:
    """How a tree with a Cargo.toml is built; ``targets`` are options such as ``--bin=NAME``."""
    target = "{prefix}/target" if plan.in_place else "{build}"
    build = (
        "cargo", "build", "--release", "--offline", f"--manifest-path={plan.source}/Cargo.toml", f"--target-dir={target}",
        "--jobs={jobs}", *plan.options, *plan.targets,
    )  # fmt: skip
    locked = ("--locked",) if "Cargo.lock" in plan.paths else ()
    return Commands(
        configure=plan.copied,
        compile=((*build, *locked),),
        install=() if plan.in_place else (("sh", "-c", _INSTALL, "{prefix}"),),
        env={"CC": "{cc}", "CXX": "{cxx}", "CFLAGS": "{cflags}", "CXXFLAGS": "{cflags}", "CARGO_NET_OFFLINE": "true"},
    )
