"""The compiler settings of every builder whose recipe does not override them.

The default keeps the frame pointer, so that sampling stacks is cheap, and has no flag that depends on the machine, so
that a regression found with it is one of the code.
"""

SHARED: dict[str, dict[str, str]] = {
    "o2nofp": {
        "summary": "optimised, with frame pointers",
        "cflags": "-O2 -fno-omit-frame-pointer",
    },
    # Whether a hot loop is fast may depend on where it begins. Clang takes no alignment of jumps, and says so in a warning.
    "o2nofp-aligned": {
        "summary": "as o2nofp, with functions, loops and jumps aligned",
        "cflags": "-O2 -fno-omit-frame-pointer -falign-functions=64 -falign-loops=64 -falign-jumps=32",
    },
    "lto": {
        "summary": "as o2nofp, optimised across files at link time",
        "cflags": "-O2 -fno-omit-frame-pointer -flto=auto",
        "ldflags": "-flto=auto",
    },
    "native": {
        "summary": "as o2nofp, for the CPU of the host that builds",
        "cflags": "-O2 -fno-omit-frame-pointer -march=native",
    },
    "pgo": {
        "summary": "as o2nofp, optimised with a profile of the measured workloads",
        "cflags": "-O2 -fno-omit-frame-pointer",
        "train": "*",
    },
    "relwithdebinfo": {
        "summary": "as o2nofp, with debug information and without assertions",
        "cflags": "-O2 -g -DNDEBUG -fno-omit-frame-pointer",
    },
}
