import os
import shutil
import time
from pathlib import Path

import msgspec
import pytest

from perfbisect.core.domain.facts import PHASES
from perfbisect.core.domain.settings import Patch
from perfbisect.errors import BuildFailed, EnvironmentFailure
from perfbisect.host import jobs
from perfbisect.lab.building import build_store
from perfbisect.lab.building.log_parser import PhaseStopwatch
from perfbisect.lab.building.pipeline import build_commit, build_key_of_commit
from perfbisect.recipes.builder import Build, Builder, Variant, When
from program import executable
from repos import Repo
from sharing import Yard
from waiting import finish, processes

pytestmark = [pytest.mark.tools, pytest.mark.own_ccache]


MAKEFILE = """\
OBJECTS = $(patsubst $(SOURCE)/%.c,%.o,$(wildcard $(SOURCE)/*.c))
libtiny.so: $(OBJECTS)
\t$(CC) $(CFLAGS) -shared -o $@ $^
%.o: $(SOURCE)/%.c
\t$(CC) $(CFLAGS) -fPIC -c -o $@ $<
install: libtiny.so
\tmkdir -p $(PREFIX)/lib && cp $^ $(PREFIX)/lib
"""
FILES = {
    "Makefile": MAKEFILE,
    "VERSION": "3.1.4\n",
    "one.c": "int one(void) { return 1; }\n",
    "two.c": "const char *two(void) { return __FILE__ __DATE__; }\n",
    "three.c": "int three(int x) { return x * 3; }\n",
    "test/big.c": "not C\n",
}
TWO, THREE = (FILES["one.c"].replace("1", digit) for digit in "23")
MAKE = ["make", "-f", "{source}/Makefile", "SOURCE={source}", "CC={cc}", "CFLAGS={cflags}", "PREFIX={prefix}"]
RECIPE = Builder(
    name="tiny",
    summary="a tiny library",
    driver="tiny",
    version=["cat", "{source}/VERSION"],
    ignore=["test/**"],
    variants={"o2nofp": Variant(cflags="-O2 -g0"), "debug": Variant(cflags="-O0 -g")},
    build=Build(compile=[MAKE], install=[[*MAKE, "install"]], artifacts=["lib/libtiny.so"], timeout=60.0),
)


@pytest.fixture
def place(tmp_path: Path, git: Repo) -> Yard:
    git.write(FILES)
    return Yard(tmp_path, git, RECIPE)


def changed(recipe: Build, **changes: object) -> Build:
    return msgspec.structs.replace(recipe, **changes)


def test_build_of_a_later_commit_compiles_only_changed_files(place: Yard) -> None:
    first = place.build({})
    steps, built = finish(build_commit(place.context(), place.git.commit({"one.c": TWO})))
    second = built.facts
    assert (first.cache_hits, first.cache_misses, first.ccache_hit_rate) == (0, 3, 0.0)
    assert (second.cache_hits, second.cache_misses) == (2, 1)
    assert first.binary != second.binary
    assert [step.stage for step in steps] == ["checkout", *["compile"] * 4, "install"]
    assert (steps[4].done, steps[4].total) == (3, 3)  # the total is the number of steps of the build before
    folder = Path(build_store.build_folder(place.host, second.key))
    assert (folder / "prefix/lib/libtiny.so").is_file()
    assert second.log == str(folder / "log")
    assert "[perfbisect] install: make" in Path(second.log).read_text()
    assert not (place.root / "work/tiny/source/test").exists()
    assert not list((place.root / "jobs").iterdir())


# Like ccache 4.13 and later, this script reads the first ccache.conf of the working folder and its parents.
NEWER = """\
#!/bin/sh
[ -n "$CCACHE_CONFIGPATH" ] || ! grep -q 'disable = true' ccache.conf ../source/ccache.conf 2>/dev/null ||
    export CCACHE_DISABLE=1
exec {ccache} "$@"
"""


def test_source_tree_and_environment_do_not_configure_ccache(place: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = executable(place.folder / "bin" / "ccache", NEWER.format(ccache=shutil.which("ccache")))
    monkeypatch.setenv("PATH", str(newer.parent), prepend=":")
    monkeypatch.setenv("CCACHE_DISABLE", "1")
    monkeypatch.setenv("CCACHE_SLOPPINESS", "pch_defines,time_macros")
    builds = [place.build(files) for files in ({"ccache.conf": "disable = true\n"}, {"one.c": TWO})]
    assert [(each.cache_hits, each.cache_misses) for each in builds] == [(0, 3), (2, 1)]


def test_equal_trees_are_one_build_and_equal_code_is_one_binary(place: Yard) -> None:
    first, ignored, comment = (
        place.build(files) for files in ({}, {"test/big.c": "changed"}, {"one.c": f"{FILES['one.c']}// said clearly\n"})
    )
    assert (ignored.reused, ignored.key, ignored.binary) == (True, first.key, first.binary)
    assert ignored.ccache_hit_rate is None
    assert (comment.reused, comment.key != first.key, comment.binary) == (False, True, first.binary)


def change(name: str, old: str, new: str, version: str = "") -> Patch:
    return Patch(name, f"--- a/one.c\n+++ b/one.c\n@@ -1 +1 @@\n-{old}+{new}".encode(), version=version)


def test_patched_commit_shares_the_build_of_an_equal_tree(place: Yard) -> None:
    """Patches for certain versions are applied last. A reused build also records the patches that apply."""
    fix, late = change("fix", FILES["one.c"], TWO), change("late", TWO, THREE, version=">=3")
    old, fixed = place.git.commit(), place.build({"one.c": TWO})
    for sha, patches, applied in (
        (old, (fix,), {"fix": True}),
        (fixed.commit, (fix,), {"fix": False}),
        (fixed.commit, (), {}),
    ):
        context = place.context("", *patches)
        assert build_key_of_commit(context, sha) == fixed.key != build_key_of_commit(place.context(), old)
        facts = place.obtain("here", None, sha, context)[0].facts
        assert (facts.reused, facts.commit, facts.patches) == (True, sha, applied)
    for reused in (False, True):
        facts = place.obtain("here", None, old, place.context("", late, fix))[0].facts
        assert (facts.reused, facts.patches) == (reused, {"late": True, "fix": True})
        assert facts.binary != fixed.binary


def test_build_records_the_seconds_of_its_phases(place: Yard) -> None:
    """The job prints hundredths of a second."""
    slow, sha = ["sleep", "0.05"], place.git.commit()
    recipe = changed(RECIPE.build, configure=[slow], install=[*RECIPE.build.install, slow])
    began = time.monotonic()
    context = place.context("", change("late", FILES["one.c"], TWO, version=">=3"), build=recipe)
    made, again = (place.obtain("here", None, sha, context)[0].facts for _ in range(2))
    assert set(made.phases) == {*PHASES} - {"train", "relink"}
    assert sum(made.phases.values()) == made.seconds < time.monotonic() - began
    assert (again.reused, again.phases) == (True, {})


def test_seconds_of_a_phase_exclude_nested_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", iter([0.0, 3.0, 5.0, 9.0, 10.0, 10.5]).__next__)
    clock = PhaseStopwatch()
    with clock.measure_phase("checkout"), clock.measure_phase("patch"):
        pass
    with clock.measure_phase("checkout"):
        clock.add({"compile": 0.25})
    assert clock.phases(11.0) == {"checkout": 7.25, "patch": 2.0, "compile": 0.25, "other": 1.5}
    assert clock.phases(1.0) == clock.seconds  # no phase "other" if the job took longer than the wait


def test_build_failure_quotes_the_first_compiler_error(place: Yard) -> None:
    sha = place.git.commit({"one.c": "int one(void) { return 1 }\n"})
    with pytest.raises(BuildFailed, match=rf"^{sha[:10]} does not compile: one\.c:1:25: error: expected") as caught:
        place.build(sha)
    assert caught.value.stage == "compile"
    assert "error: expected" in Path(caught.value.log).read_text()
    assert not (place.root / "builds").exists()


MISSING = (
    "echo 'CMake Error at x:1 (message):'; echo ' Could NOT find OpenSSL (missing: OPENSSL_CRYPTO_LIBRARY)'; exit 1"
)


def test_build_failure_names_the_failed_stage(place: Yard) -> None:
    sha = place.git.commit()
    changes: list[tuple[dict[str, object], str, type[Exception]]] = [
        ({"configure": [["sh", "-c", MISSING]]}, r"configure: OpenSSL is missing \(OPENSSL_CRYPTO_LIBRARY\)", BuildFailed),
        ({"compile": [["false"]]}, "compile: ", BuildFailed),
        ({"install": [["sh", "-c", "echo no such luck; exit 3"]]}, "install: ", BuildFailed),
        *(({"artifacts": [absent]}, f"install: the build did not install {absent}$", BuildFailed) for absent in ("lib/x y", "lib")),
        ({"configure": [["sleep", "60"]], "timeout": 0.2}, r"configure: the build did not end within 0\.2 s", BuildFailed),
        ({"configure": [["sh", "-c", "cat {source}/VERSION >/dev/full"]]}, "the disk of host here is full", EnvironmentFailure),
    ]  # fmt: skip
    for change, sentence, kind in changes:
        with pytest.raises(kind, match=sentence) as caught:
            place.build(sha, debian="libtiny-dev", build=changed(RECIPE.build, **change))
        if isinstance(caught.value, BuildFailed):
            assert str(caught.value).startswith(f"{sha[:10]} does not {caught.value.stage}: ")
            assert caught.value.stage == sentence.partition(":")[0]
            assert caught.value.advice.endswith(f"See {caught.value.log}.")
            assert ("apt-get build-dep libtiny-dev" in caught.value.advice) == (caught.value.stage == "configure")


def test_missing_programs_are_reported_before_the_build_starts(place: Yard) -> None:
    with pytest.raises(EnvironmentFailure, match="no-such-a, no-such-b are not installed") as caught:
        place.context(build=changed(RECIPE.build, needs=["no-such-a", "make", "no-such-b"]))
    assert "apt-get install no-such-a no-such-b" in caught.value.advice


def test_abandoned_build_leaves_no_process_running(place: Yard) -> None:
    """The tree has file names that a shell or a program could misread."""
    mark = str(2_000_000 + os.getpid())
    sha = place.git.commit({"odd '$(touch here)`id` \"é;.txt": "x", "-rf": "x"})
    building = build_commit(place.context(build=changed(RECIPE.build, configure=[["sleep", mark]])), sha)
    assert [next(building).stage, next(building).stage] == ["checkout", "configure"]
    building.close()
    assert jobs.running_jobs(place.host) == ()
    assert not processes(mark)
    assert place.build(sha).cache_misses == 3
    assert Path(place.root, "work/tiny/source/-rf").is_file()


def test_build_sees_no_earlier_build_and_no_repository(place: Yard) -> None:
    """The build folders are empty, and the date of the build is fixed."""
    look = ["sh", "-c", "ls -A . {prefix}; git rev-parse HEAD || echo no repository; date -d @$SOURCE_DATE_EPOCH +%Y"]
    sha = place.git.commit()
    place.build(sha)
    log = Path(place.build(sha, build=changed(RECIPE.build, configure=[look])).log).read_text()
    assert "no repository\n1980\n" in log
    assert "\none.o" not in log.partition("[perfbisect] compile")[0]


def test_build_key_includes_conditions_and_used_recipe_files(place: Yard) -> None:
    """Conditions use the version in the tree. A file of the recipe is part of the key if the build uses it."""
    show = ["sh", "-c", 'echo "version {version} $(cat {recipe}/extra*) for {commit} $ODD"']
    change: dict[str, object] = {"build": {"configure": [show]}}
    block = When(version=">=3", file="test/big.c", compiler="gcc>=4", change=change)
    environment = changed(RECIPE.build, env={"ODD": "a; 'b' $(id)"})
    sha, builds = place.git.commit(), []
    for flag in ("-DEXTRA=1", "-DEXTRA=2"):
        Path(place.recipe.folder, "extra flags").write_text(flag)
        builds.append(place.build(sha, when=[block], build=environment))
        assert f"version 3.1.4 {flag} for {sha} a; 'b' $(id)\n" in Path(builds[-1].log).read_text()
    other = place.build(sha, when=[When(version=">=4", change=change)])
    assert len({each.key for each in (*builds, other)}) == 3


def test_conditions_change_the_variant_and_apply_to_a_reused_build(place: Yard) -> None:
    """A condition may need an ignored file. Without the file, the same code is another build."""
    flags = When(compiler="gcc", change={"variants": {"o2nofp": {"cflags": "-O2 -DBY_CONDITION"}}})
    moved = When(version=">=3", change={"library": "lib/other.so"})
    by_file = When(file="test/big.c", change={"build": {"env": {"BIG": "1"}}})
    when, sha = [flags, moved, by_file], place.git.commit()
    first = place.obtain("here", None, sha, when=when)[0]
    assert "-DBY_CONDITION" in Path(first.facts.log).read_text()
    second = place.obtain("here", None, sha, when=when, library="lib/unused.so", server=None)[0]
    assert second.facts.reused
    assert {(each.version, each.builder.library) for each in (first, second)} == {("3.1.4", "lib/other.so")}
    third = place.build({"test/big.c": None}, when=when)
    assert (third.key != first.facts.key, third.binary) == (True, first.facts.binary)
