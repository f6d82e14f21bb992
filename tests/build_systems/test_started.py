"""A build needs only the started program, even if other parts of its tree fail; and the choice of that file."""

import os
import pwd
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from labs import lab_of, measure, runs, skipped, warnings, workload_of
from perfbisect.core.domain.events import BuildFinished, Commit, LabEvent
from perfbisect.core.domain.facts import BuildFacts
from perfbisect.core.domain.orders import PlannedRuns
from perfbisect.core.domain.settings import QuickCommand, Settings
from perfbisect.errors import BuildFailed, RangeEndFailed, UsageError
from perfbisect.lab.building.candidates import BuildRegistry, Candidates
from perfbisect.lab.building.plan import InstalledBuild
from perfbisect.lab.host_lab import HostLab
from perfbisect.recipes.builder import Build, Builder, Server, Variant
from perfbisect.recipes.requested import command_words, load_requested, program_and_files, requested_builder
from program import executable
from repos import Files, Repo, files_of
from sharing import Yard

pytestmark = pytest.mark.tools

# A program twice, once linked to a library of the build; and a source that does not compile.
TREES = {folder.name: files_of(folder) for folder in sorted((Path(__file__).parent / "trees" / "started").iterdir())}
SOURCES = TREES.pop("sources")
MAIN, MAKE, CMAKE = SOURCES["src/main.c"], TREES["make"]["Makefile"], TREES["cmake"]["CMakeLists.txt"]
SYSTEMS = [pytest.param(system, marks=[] if system == "make" else pytest.mark.slow) for system in TREES]
NEEDS = {"cmake": "ninja", "meson": "meson"}
RECIPE = Builder(
    name="tool", summary="a tool", driver="tool", build=Build(timeout=300.0), variants={"o2nofp": Variant(cflags="-O2")}
)
IN_PLACE = Build(in_place=True, timeout=300.0)
STATIC, SHARED, BENCH = "out-static/bench", "out-shared/bench", "bin/bench"


@pytest.fixture
def yard(tmp_path: Path, git: Repo) -> Yard:
    return Yard(tmp_path, git, RECIPE, jobs=2)


def commit(yard: Yard, files: Files) -> str:
    yard.git.write(files)
    for name in files:
        (yard.git.path / name).chmod(0o755 if name in ("configure", "tests/bench") else 0o644)
    return yard.git.commit()


def of_system(yard: Yard, system: str) -> str:
    if shutil.which(needed := NEEDS.get(system, "make")) is None:
        pytest.skip(f"{needed} is not installed")
    return commit(yard, SOURCES | TREES[system])


def quick(yard: Yard, run: str = "./bench", then: tuple[str, ...] = (), system: str = "make") -> Settings:
    return Settings("a", "b", str(yard.git.path), "", "", "here", quick=QuickCommand(run, (), then=then), system=system)


def built_below(system: str, path: str) -> str:
    """The path of a built file, relative to the folder of the tree."""
    return f"build/{path}" if system in ("cmake", "meson") else path


@pytest.mark.parametrize("system", SYSTEMS)
def test_only_the_started_program_is_built_if_the_system_can(yard: Yard, system: str) -> None:
    sha = of_system(yard, system)
    path, other = built_below(system, SHARED), built_below(system, STATIC)
    made = yard.build(sha, started=[path], build=IN_PLACE)
    assert (made.system, made.partial, made.programs) == (system, "", {})
    assert yard.output(made.key, path) == "2"
    assert not yard.installed(made.key, other).exists(), "only the started program was built"
    # A name without a folder is searched for. A program that loads no library of the build is preferred.
    named = yard.build(sha, started=["bench"], build=IN_PLACE)
    assert (named.programs, yard.output(named.key, "bench")) == ({"bench": (other, path)}, "1")
    assert bool(named.partial) is (system in ("make", "autotools")), "their targets are paths"
    chosen = yard.build(sha, started=["bench"], chosen=[SHARED], build=IN_PLACE)
    assert (chosen.programs, yard.output(chosen.key, "bench")) == ({"bench": (path,)}, "2")
    # If the started program does not compile, no other program of the tree replaces it.
    broken = commit(yard, {"src/part.c": "#error broken\n", "tests/bench": "#!/bin/sh\necho 3\n"})
    with pytest.raises(BuildFailed, match="does not compile"):
        yard.build(broken, started=[path], build=IN_PLACE)


@pytest.mark.parametrize("system", SYSTEMS)
def test_build_of_recipe_without_server_needs_only_its_programs(yard: Yard, system: str) -> None:
    sha = of_system(yard, system)
    made = yard.build(sha, programs=[BENCH])
    assert (made.programs, yard.output(made.key, BENCH)) == ({BENCH: (STATIC, SHARED)}, "1")
    assert "out of date" in made.partial or system == "cmake", "cmake has targets for the programs"
    shared = yard.build(sha, programs=[BENCH], chosen=[SHARED])
    assert yard.output(shared.key, BENCH) == "2"
    assert yard.installed(shared.key, "bin/libpart.so").exists()
    absent = rf"the build has no program x/{BENCH}, which --program chooses|does not compile"
    with pytest.raises(BuildFailed, match=absent):
        yard.build(sha, programs=[BENCH], chosen=[f"x/{BENCH}"])
    if system != "cmake":  # the targets of cmake are known
        with pytest.raises(BuildFailed, match=r"does not compile: .*out of date"):
            yard.build(sha, programs=[BENCH], server=Server(initialise=[], start=["x"], ready=["x"]))


@pytest.mark.slow
def test_cmake_without_ninja_builds_by_names_of_targets(yard: Yard) -> None:
    """The name of a target may differ from the name of its program."""
    options = Build(in_place=True, timeout=300.0, options=["-G", "Unix Makefiles"])
    for name, lists in (("bench", CMAKE), ("static", CMAKE.replace(" OUTPUT_NAME bench", ""))):
        program = f"build/out-static/{name}"
        made = yard.build(commit(yard, SOURCES | {"CMakeLists.txt": lists}), started=[program], build=options)
        assert (yard.output(made.key, program), "out of date" in made.partial) == ("1", name == "bench")


def test_started_script_needs_the_whole_tree_or_a_chosen_program(yard: Yard) -> None:
    sha = commit(yard, SOURCES | {"Makefile": MAKE, "run.sh": "./bench\n"})
    with pytest.raises(BuildFailed, match=r"does not compile: .*out of date"):
        yard.build(sha, started=["run.sh"], build=IN_PLACE)
    made = yard.build(sha, started=["run.sh", STATIC], chosen=[STATIC], build=IN_PLACE)
    assert yard.output(made.key, STATIC) == "1"


ORDER = "all: made.h\n\t$(MAKE) bench\nmade.h:\n\techo '#define PART 4' >$@\nbench: src/main.c src/part.c\n\t$(CC) -o $@ $^\n"


def test_make_target_that_needs_other_rules_is_built_by_target_all(yard: Yard) -> None:
    files = SOURCES | {"src/part.c": '#include "../made.h"\nint part(void) { return PART; }\n', "Makefile": ORDER}
    made = yard.build(commit(yard, files), started=["bench"], build=IN_PLACE)
    assert (yard.output(made.key, "bench"), made.partial) == ("4", "")
    own = commit(yard, {**SOURCES, "Makefile": f"all: CPPFLAGS = -DPART=7\n{MAKE}".replace("-DPART=1", "$(CPPFLAGS)")})
    assert yard.output(yard.build(own, started=[STATIC], build=IN_PLACE).key, STATIC) == "7"
    # A target that is an action, such as to run the benchmark, is no program.
    files = {"Makefile": f".PHONY: bench\n{MAKE}bench: all\n\ttouch ran\n"}
    made = yard.build(commit(yard, files | {"src/part.c": SOURCES["src/part.c"]}), started=["bench"], build=IN_PLACE)
    assert yard.output(made.key, "bench") == "1"
    assert not yard.installed(made.key, "ran").exists()


@pytest.mark.slow
def test_go_builds_only_the_started_program(yard: Yard) -> None:
    if shutil.which("go") is None:
        pytest.skip("go is not installed")
    tree = {"go.mod": "module example.org/tool\n\ngo 1.16\n"}
    for name, says in {"bench": 'println("1")', "broken": "absent()"}.items():
        tree[f"cmd/{name}/main.go"] = f"package main\n\nfunc main() {{ {says} }}\n"
    sha = commit(yard, tree)
    assert "undefined: absent" in yard.build(sha, programs=[BENCH]).partial
    with pytest.raises(BuildFailed, match="does not compile"):
        yard.build(sha, programs=["bin/broken"])
    made = yard.build(sha, started=["bench"], build=IN_PLACE)
    assert (made.system, made.programs) == ("go", {"bench": ("bin/bench",)})


@pytest.mark.slow
def test_cargo_builds_only_the_started_program(yard: Yard) -> None:
    rustup = Path(pwd.getpwuid(os.getuid()).pw_dir) / ".rustup"
    if shutil.which("cargo") is None or not rustup.exists():
        pytest.skip("cargo is not installed")
    tree = {"Cargo.toml": '[package]\nname = "tool"\nversion = "1.0.0"\nedition = "2021"\n'}
    for name, says in {"bench": 'println!("3");', "broken": "absent()"}.items():
        tree[f"src/bin/{name}.rs"] = f"fn main() {{ {says} }}\n"
    sha = commit(yard, tree)
    for in_place, asked, program in ((False, "programs", BENCH), (True, "started", "target/release/bench")):
        build = Build(timeout=300.0, env={"RUSTUP_HOME": str(rustup)}, in_place=in_place)
        made = yard.build(sha, build=build, **{asked: [program]})
        assert (made.partial, yard.output(made.key, program)) == ("", "3")


COMMANDS = {
    "{prefix}/build/bench --n={events}": "build/bench",
    "env A=b/c taskset -c 0 build/bench": "build/bench",
    "sh -c 'cd x; ./bench | tail -1'": "bench",
    "sh -c 'seq 9 | sed s/.*/x/ | out/bench; rm -f data/[a-z]?'": "out/bench",
    "../bench": "",
    "make bench": "",
}


def test_started_program_is_read_from_the_command() -> None:
    for command, program in COMMANDS.items():
        split = command_words(command)
        assert program_and_files(split, ()) == [program] * bool(program), command
        assert program_and_files(split, ["x/bench", "x/other"])[-1] == "x/other"


def test_chosen_program_that_is_not_run_is_refused(tmp_path: Path) -> None:
    settings = Settings("a", "b", str(tmp_path), "", "", "here", quick=QuickCommand("./bench", ()), system="make")
    assert requested_builder(settings).started == ["bench"]
    others = [replace(settings, quick=QuickCommand(run, ())) for run in ("./bench", "./bench 2", "./other")]
    names = [requested_builder(each).name for each in (*others, replace(settings, programs=("x/bench",)))]
    assert (names[0] == names[1], len(set(names))) == (True, 3), "the build depends on the program"
    executable(tmp_path / "kv" / "builder.toml", 'summary = "kv"\ndriver = "kv"\nprograms = ["bin/kv"]\n')
    wrong = Settings("a", "b", "", "kv", "", "here", builders_path=str(tmp_path), programs=("out/other",))
    with pytest.raises(
        UsageError, match="--program out/other has no effect: the recipe of kv does not run a program of that"
    ):
        requested_builder(wrong)


@pytest.mark.slow
def test_failure_of_a_program_that_starts_another_advises_the_option(yard: Yard) -> None:
    main = '#include <stdlib.h>\nint main(void) { return system("./part") != 0; }\n'
    rules = "all: bench part\n%: src/%.c\n\t$(CC) -o $@ $<\nbench: src/bench.c\n\t$(CC) -o $@ $<\n"
    sources = {"src/bench.c": main, "src/part.c": "int main(void) { return 0; }\n", "Makefile": rules}
    sha = commit(yard, sources)
    with pytest.raises(RangeEndFailed, match=r"fails in workload bench") as failure:
        measure(lab(yard, [sha, sha]), PlannedRuns(0, 1))
    assert "bench starts other programs, which were not built: add --program PATH for each" in failure.value.advice
    assert runs(measure(lab(yard, [sha, sha], "part"), PlannedRuns(0, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("run", ["./md2html big.md", "md2html big.md", "build/md2html/md2html ../big.md"])
def test_failure_to_start_names_the_path_of_the_built_program(yard: Yard, run: str) -> None:
    if shutil.which("ninja") is None:
        pytest.skip("ninja is not installed")
    main = '#include <stdio.h>\nint main(int n, char **v) { if (fopen(v[1], "r")) return 0; perror(v[1]); return 1; }\n'
    top = "cmake_minimum_required(VERSION 3.10)\nproject(tool C)\nadd_subdirectory(md2html)\n"
    files = {"CMakeLists.txt": top, "md2html/CMakeLists.txt": "add_executable(md2html a.c)\n", "md2html/a.c": main}
    sha, recipes = commit(yard, files), load_requested(quick(yard, run, system="cmake"))
    with pytest.raises(RangeEndFailed) as failure:
        measure(lab_of(yard.host, *recipes, yard.git.path, (sha, sha)), PlannedRuns(0, 1))
    made = " The build has build/md2html/md2html: use --run 'build/md2html/md2html big.md'" * ("../big.md" not in run)
    assert failure.value.advice.partition("/stdout.")[2] == made, failure.value


def test_failure_of_an_unbuilt_program_names_the_command_to_build_it(yard: Yard) -> None:
    rules = "vet:\n\ttrue\n.PHONY: bench\nbench:\n\tmkdir bin && cp src/part.c bin/bench\n"
    sha = commit(yard, SOURCES | {"Makefile": rules})
    with pytest.raises(RangeEndFailed) as failure:
        measure(lab(yard, [sha, sha]), PlannedRuns(0, 1))
    assert failure.value.advice.endswith(" To build the program: --build 'make bench'")


def lab(yard: Yard, commits: Sequence[str], *programs: str, is_range: bool = True) -> HostLab:
    recipe = requested_builder(replace(quick(yard), programs=programs))
    workload = workload_of(name="bench", driver="command", command=["./bench"])
    return lab_of(yard.host, recipe, workload, yard.git.path, tuple(commits), is_range=is_range)


def test_program_with_missing_libraries_is_not_chosen(yard: Yard) -> None:
    sha = commit(yard, {**SOURCES, "Makefile": MAKE.replace(" -Wl,-rpath,$(CURDIR)/out-shared", "")})
    assert yard.build(sha, started=["bench"], build=IN_PLACE).programs == {"bench": (STATIC, SHARED)}


@pytest.mark.slow
def test_session_warns_once_of_partial_builds_and_different_programs(yard: Yard) -> None:
    """A build that lacks the program of other builds runs another program, which may be slower for this reason."""
    whole = commit(yard, SOURCES | TREES["make"])
    fewer = [commit(yard, {"Makefile": MAKE.replace("-DPART=1", f"-DPART={n} -include src/broken.c")}) for n in (1, 3)]
    opened = lab(yard, [whole, *fewer], is_range=False)
    events = [event for candidate in range(3) for event in measure(opened, PlannedRuns(candidate, 1))]
    assert len(runs(events)) == 3
    said = warnings(events)
    several = "several files of the build have the name bench: out-static/bench is run, not out-shared/bench"
    another = f"{fewer[0][:10]} may run another program than other commits: bench is out-shared/bench in a build of which a part failed"
    patterns = (r"a part of \w{10} does not build: .*out of date", several, another)
    assert [len([text for text in said if re.match(pattern, text)]) for pattern in patterns] == [1, 1, 1], said


def test_programs_are_compared_within_one_build_system(yard: Yard) -> None:
    def made(system: str, path: str, partial: str = "") -> InstalledBuild:
        facts = BuildFacts("c", "k", path, 1.0, 0, 0, False, "", system, partial=partial, programs={"bench": (path,)})
        return InstalledBuild(facts, RECIPE, "")

    builds = BuildRegistry(Candidates(None, (), lambda sha: Commit(sha, 0, "", "")))
    builds.add(0, made("make", "out-static/bench", "out of date"), "here")
    assert builds.why_other_program_file(made("cmake", "build/bench")) == ""
    assert "and out-shared/bench elsewhere" in builds.why_other_program_file(made("make", "out-shared/bench"))


RACE = (
    "all: out/bench table use\nout/bench: src/main.c src/part.c\n\tmkdir -p out && $(CC) -DPART=1 -o $@ $^\n"
    "table: out/bench\n\tsleep 0.3; echo 200 >$@\nuse: out/bench\n\tcat table >$@\n"
)


@pytest.mark.slow
def test_build_that_fails_by_a_race_of_jobs_is_repeated_with_one_job(yard: Yard) -> None:
    sha = commit(yard, SOURCES | {"Makefile": RACE})
    assert yard.build(sha, started=["bench"], build=IN_PLACE).partial == ""


@pytest.mark.slow
def test_then_commands_run_after_the_build_system(yard: Yard, tmp_path: Path) -> None:
    """The commands run in the folder of the tree, with the variant's compilers, on a benchmark outside of the tree."""
    (tmp_path / "bench.c").write_text(MAIN)
    rules = "libpart.a: src/part.c\n\t$(CC) -DPART=5 -c -o part.o $<; ar rc $@ part.o\n"
    shas = (commit(yard, SOURCES | {"Makefile": rules}), commit(yard, {"x": ""}))

    def events(*then: str) -> list[LabEvent]:
        opened = lab_of(yard.host, *load_requested(quick(yard, then=then)), yard.git.path, shas, is_range=False)
        return [event for candidate in range(2) for event in measure(opened, PlannedRuns(candidate, 1))]

    made = events(f"{{cc}} {{cflags}} -c {tmp_path}/bench.c", "sh -c '$CC bench.o libpart.a -o bench'")
    first, second = (event.facts for event in made if isinstance(event, BuildFinished))
    assert len(runs(made)) == 2, "the builds do not count as equal"
    assert (yard.output(first.key, "bench"), second.cache_hits > 0) == ("5", True)
    assert "does not compile" in skipped(events("false")).reason
