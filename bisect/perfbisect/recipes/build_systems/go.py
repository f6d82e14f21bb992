"""Go: all commands of the module, with the modules that are vendored or in the host's cache."""

from perfbisect.recipes.build_systems.plan import Commands, Plan


def commands(plan: Plan) -> Commands:
    """How a tree with a go.mod is built; ``targets`` are packages such as ``./cmd/server``."""
    where = "{prefix}/bin/"
    build = (
        "env",
        "-C",
        plan.source,
        "go",
        "build",
        "-trimpath",
        "-o",
        where,
        *plan.options,
        *(plan.targets or ("./...",)),
    )
    return Commands(
        configure=(*plan.copied, ("mkdir", "-p", where)),
        compile=(build,),
        install=(),
        env={
            "GOPROXY": "off", "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false -p={jobs}",
            "CC": "{cc}", "CXX": "{cxx}", "CGO_CFLAGS": "{cflags}", "CGO_CXXFLAGS": "{cflags}", "CGO_LDFLAGS": "{ldflags}",
        },
    )  # fmt: skip
