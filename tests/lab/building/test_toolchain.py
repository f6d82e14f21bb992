"""ccache with a remote store that two hosts share, native code of different processors, and settings of ccache."""

import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from perfbisect.core.domain.facts import remote_share_of_hits
from perfbisect.host.local import LocalHost
from perfbisect.lab.building.toolchain import (
    EVENTS,
    NATIVE,
    Toolchain,
    cache_environment,
    cache_namespace,
    cache_statistics,
    processor_hash,
    share_cache,
    toolchain,
)
from perfbisect.recipes.builder import Build, Builder, Variant
from perfbisect.wording.quantities import cache_share_text
from program import executable
from sharing import Yard, key_of_build, object_server, tiny

pytestmark = [
    pytest.mark.own_ccache,
    pytest.mark.tools,
    pytest.mark.skipif(not shutil.which("ccache"), reason="no ccache"),
]


@pytest.fixture
def store() -> Iterator[str]:
    with object_server() as server:
        yield server.address


def compiled(host: LocalHost, compiler: str = "gcc", namespace: str = "") -> tuple[int, int]:
    """Hits and misses of one compilation."""
    work = host.root / "work"
    environment = cache_environment(host.root, work, "1G", namespace)
    script = 'mkdir -p "$1" && cd "$1" && echo "int f(void) { return 1; }" >f.c && rm -f ccache.log && '
    script += f"ccache {compiler} -c f.c && {EVENTS}"
    return cache_statistics(host.run(["sh", "-c", script, "compile", str(work)], env=environment).stdout)[:2]


def test_second_host_gets_objects_from_the_remote_store(store: str, tmp_path: Path, yard: Yard) -> None:
    """Other settings in ccache.conf are kept."""
    sha, settings = yard.git.commit(tiny(7)), tmp_path / "one" / "ccache" / "ccache.conf"
    settings.parent.mkdir(parents=True)
    settings.write_text("compression_level = 3\n")
    found = [yard.obtain(name, None, sha, remote=store)[0].facts for name in ("one", "two")]
    assert [(each.cache_hits, each.cache_misses, each.remote_hits) for each in found] == [(0, 2, 0), (2, 0, 2)]
    assert [cache_share_text(each.ccache_hit_rate, remote_share_of_hits([each])) for each in found] == [
        "0 % of compilations from ccache",
        "100 % of compilations from ccache, 100 % of these from its remote store",
    ]
    assert settings.stat().st_mode & 0o077 == 0, "an address may contain a password"
    assert "secret" in settings.read_text()
    assert "secret" not in str(cache_environment(yard.host.root, yard.host.root / "work", "1G"))
    assert store in settings.read_text()
    yard.context(on="one", remote="none")
    assert settings.read_text() == "compression_level = 3\n"


# A compiler whose file is the same on all machines, but whose native code depends on the processor of the machine.
COMPILER = """\
#!/bin/sh
for word do
    shift
    case $word in -march=native|-mcpu=native) word=-march=$(cat "${0%/*}/processor");; esac
    set -- "$@" "$word"
done
exec gcc "$@"
"""


def test_native_code_of_another_processor_is_a_cache_miss(store: str, tmp_path: Path) -> None:
    compiler, found = executable(tmp_path / "bin" / "gcc", COMPILER), []
    for name, processor in (("one", "haswell"), ("two", "znver3"), ("three", "haswell")):
        host = LocalHost(name, PurePosixPath(tmp_path / name))
        compiler.with_name("processor").write_text(processor)
        share_cache(host, store)
        namespace = cache_namespace(host, toolchain(host, Variant(cc=str(compiler))).processor)
        found.append(compiled(host, f"{compiler} -march=native", namespace))
    assert found == [(0, 1), (0, 1), (1, 0)]


def test_key_of_a_native_build_depends_on_the_processor() -> None:
    plain, native = Variant(cflags="-O2"), Variant(cflags="-O2 -march=native")
    in_the_recipe = Build(configure=[["cmake", "-DCMAKE_C_FLAGS=-mtune=native"]])
    for how, variant, keys in ((Build(), plain, 1), (Build(), native, 2), (in_the_recipe, plain, 2)):
        builder = Builder(summary="x", driver="x", build=how)
        tools = [Toolchain("gcc", "12", "", processor) for processor in ("haswell", "znver3")]
        assert len({key_of_build(builder, variant, each) for each in tools}) == keys


GCC = """\
COLLECT_GCC_OPTIONS='-march=native' '-E'
 /usr/lib/gcc/x86_64-linux-gnu/12/cc1 -E -quiet - "-march=alderlake" -mavx2 -mno-avx512f --param "l2-cache-size=2048"
"""
CLANG = """\
 "/usr/lib/llvm-14/bin/clang" "-cc1" "-E" "-target-cpu" "znver3" "-target-feature" "+avx2" "-fdebug-compilation-dir=/x"
"""


@pytest.mark.parametrize(
    ("printed", "other", "same"),
    [
        (GCC, GCC.replace("size=2048", "size=512"), True),  # another core of the same processor
        (GCC, GCC.replace("-mno-avx512f", "-mavx512f"), False),
        (GCC, GCC.replace("alderlake", "skylake"), False),
        (CLANG, CLANG.replace("=/x", "=/y"), True),
        (CLANG, CLANG.replace("+avx2", "-avx2"), False),
        (CLANG, CLANG.replace("znver3", "znver4"), False),
    ],
)
def test_hash_of_a_processor_depends_on_the_compiler_options(printed: str, other: str, *, same: bool) -> None:
    assert processor_hash(printed)
    assert (processor_hash(printed) == processor_hash(other)) is same


def test_options_for_native_code_are_recognised() -> None:
    assert processor_hash("gcc: error: unrecognized command-line option '-march=native'\n") == "", "no such option"
    for options in ("-O2 -march=native", '["-DX=-O2 -mtune=native"]', "-mcpu=native", "-C target-cpu=native"):
        assert NATIVE.search(options)
    assert not NATIVE.search("-march=x86-64-v3 --enable-native")


# The header has only a macro, so that a change of the macro is invisible after preprocessing.
PRECOMPILED = """\
mkdir -p "$1" && cd "$1" && rm -f ccache.log
printf '#ifndef P\\n#define P\\n#define X %s\\n#endif\\n' "$2" >p.h
printf '#include "p.h"\\nint f(void) { return X; }\\nint main(void) { return f(); }\\n' >m.c
ccache gcc -x c-header -o p.h.gch -c p.h && ccache gcc -include p.h -c m.c && gcc -o m m.o || exit
./m; echo "$?"
"""


def test_changed_macro_of_a_precompiled_header_changes_the_code(tmp_path: Path) -> None:
    host = LocalHost("one", PurePosixPath(tmp_path))
    environment = cache_environment(host.root, host.root / "work", "1G")
    for value in ("1", "2"):
        argv = ["sh", "-c", PRECOMPILED, "precompiled", str(host.root / "work"), value]
        assert host.run(argv, env=environment).stdout.strip() == value
