"""The compiler settings of every builder whose recipe does not override them.

The default keeps the frame pointer, so that sampling stacks is cheap, and has no flag that depends on the machine, so
that a regression found with it is one of the code.
"""

SHARED: dict[str, dict[str, str]] = {
    "o2nofp": {
        "summary": "optimised, with frame pointers",
        "cflags": "-O2 -fno-omit-frame-pointer",
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
    "relwithdebinfo": {
        "summary": "as o2nofp, with debug information and without assertions",
        "cflags": "-O2 -g -DNDEBUG -fno-omit-frame-pointer",
    },
}
