"""The compiler settings that every builder has unless its recipe gives its own.

The default keeps the frame pointer, so that stacks can be sampled cheaply, and leaves out what varies between
machines: a regression found with it is about the code.
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
        "summary": "as o2nofp, for exactly the CPU of the host that builds",
        "cflags": "-O2 -fno-omit-frame-pointer -march=native",
    },
    "relwithdebinfo": {
        "summary": "as o2nofp, with debug information and without assertions",
        "cflags": "-O2 -g -DNDEBUG -fno-omit-frame-pointer",
    },
}
