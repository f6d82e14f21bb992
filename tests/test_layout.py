"""Checks of the project's structure: allowed imports between packages, sizes of modules, and forbidden calls."""

import ast
import tomllib
from collections.abc import Collection, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("layout")  # modules are parsed once

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "bisect" / "perfbisect"

PACKAGES: dict[str, dict[str, list[str]]] = tomllib.loads(Path(__file__).with_name("layout.toml").read_text())
ALLOWED, LAB = PACKAGES["package"], PACKAGES["lab"]
MOST_MODULES = 10  # in the folder of core, lab or cli itself


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def statements(tree: ast.AST, *, types: bool) -> Iterator[ast.AST]:
    """All statements of a tree; statements under `if TYPE_CHECKING` only if ``types``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr) or (
            not types and isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        ):
            continue
        yield node
        yield from statements(node, types=types)


@cache
def imports(path: Path, *, types: bool = True) -> set[str]:
    """The modules of perfbisect that a module imports, dotted, without the package's own name."""
    found = set()
    for node in statements(parsed(path), types=types):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            head, _, rest = name.partition(".")
            if head == "perfbisect" and rest != "__version__":
                found.add(rest)
    return found - {""}


def within(module: str, package: str) -> bool:
    """Whether a dotted module is this package, or is in this package."""
    return module == package or module.startswith(f"{package}.")


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path.name != "__init__.py")


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def test_packages_import_only_allowed_packages() -> None:
    wrong = {}
    for path in modules():
        own = max((package for package in ALLOWED if within(dotted(path), package)), key=len)
        allowed = {own, "errors", "masking", *ALLOWED[own]}
        wrong[dotted(path)] = {module for module in imports(path) if not any(within(module, each) for each in allowed)}
    assert wrong
    assert not {path: found for path, found in wrong.items() if found}


def test_packages_of_lab_import_only_allowed_packages() -> None:
    wrong = {}
    for path in modules():
        package = dotted(path).split(".")[1] if within(dotted(path), "lab") else ""
        if package in LAB:  # modules in lab itself may import any package of lab
            inside = {module.split(".")[1] for module in imports(path) if within(module, "lab")}
            wrong[dotted(path)] = inside - {package, *LAB[package]}
    assert wrong
    assert not {path: found for path, found in wrong.items() if found}


def test_folders_have_few_modules_and_are_in_layout_toml() -> None:
    for folder in ("core", "lab", "cli"):
        assert len([path for path in (SOURCE / folder).glob("*.py") if path.name != "__init__.py"]) <= MOST_MODULES
    assert all(any(within(dotted(path), package) for package in ALLOWED) for path in modules())


def test_all_tests_are_collected(pytestconfig: pytest.Config) -> None:
    """pytest leaves out folders with certain names, without a warning."""
    tests = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(tests) > 100
    patterns = pytestconfig.getini("norecursedirs")
    assert not {path for path in tests if any(fnmatch(part, name) for part in path.parts for name in patterns)}


def test_bisect_is_never_a_package() -> None:
    """A package named bisect would shadow the standard library's module."""
    assert not (ROOT / "bisect" / "__init__.py").exists()
    assert not (ROOT / "builders" / "__init__.py").exists()


def test_modules_have_at_most_400_lines() -> None:
    assert [path for path in SOURCE.rglob("*.py") if len(path.read_text().splitlines()) > 400] == []


def module_of(name: str, known: Collection[str]) -> str:
    """The module that an imported name is, or is defined in; "" for none."""
    parent = name.rpartition(".")[0]
    return name if name in known else parent if parent in known else ""


def graph() -> dict[str, set[str]]:
    """Module → the modules that it imports, also within functions, but not under `if TYPE_CHECKING`."""
    paths = {dotted(path): path for path in modules()}
    return {
        each: {module_of(name, paths) for name in imports(path, types=False)} - {"", each}
        for each, path in paths.items()
    }


LATE = {("repository.git", "repository.library")}  # imported when used, because GitPython takes 0.1 s


def test_imports_have_no_cycle() -> None:
    todo = {each: {other for other in found if (each, other) not in LATE} for each, found in graph().items()}
    while free := {module for module, needed in todo.items() if not needed & todo.keys()}:
        todo = {module: needed for module, needed in todo.items() if module not in free}
    assert not todo, "each of these modules is in a cycle, or imports one that is"


BY_NAME = ("cli.commands.", "cli.main")  # commands are loaded by their names, and cli.main by the entry point


def test_every_module_is_imported_by_another() -> None:
    found = graph()
    unused = found.keys() - set().union(*found.values())
    assert {each for each in unused if not each.startswith(BY_NAME)} == set()


def test_no_module_only_reexports_names() -> None:
    """Each module has a definition of its own, or a value that is not an imported name."""
    forwards = set()
    for path in modules():
        own = [
            node for node in parsed(path).body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Call | ast.With | ast.For)
            or (
                isinstance(node, ast.Assign | ast.AnnAssign)
                and not isinstance(node.value, ast.Name | ast.Attribute | None)
                and ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target) != "__all__"
            )
        ]  # fmt: skip
        if not own:
            forwards.add(dotted(path))
    assert forwards == set()


PRINTS = {  # calls that would print without ui.stream, which escapes control characters
    "print", "click.echo", "click.secho", "click.style", "click.prompt", "click.confirm", "Console", "rich.print",
    "sys.stdout.write", "sys.stderr.write", "sys.__stdout__", "sys.__stderr__", "sys.stdout.buffer", "sys.stderr.buffer",
    "os.write", "warnings.warn", "traceback.print_exc", "traceback.print_exception", "put_raw",
}  # fmt: skip
MAY_PRINT = {"ui.stream", "ui.live"}
PIPES = {name: {"os.write"} for name in ("host.local", "host.through")}  # to a process that it has started


def printed_by(path: Path) -> set[str]:
    """The names in a module that would print to a terminal."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call):
            found.add(ast.unparse(node.func))
        elif isinstance(node, ast.Attribute):
            found.add(ast.unparse(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert "\x1b" not in node.value, f"{path}: control sequences are written by ui.stream and by rich"
    found -= PIPES.get(dotted(path), set())
    return {name for name in found if name in PRINTS or name.rpartition(".")[2] in {"Console", "put_raw", "raw"}}


def test_only_ui_stream_and_ui_live_print() -> None:
    assert {dotted(path) for path in modules()} >= MAY_PRINT
    prints = {dotted(path): printed_by(path) for path in modules() if dotted(path) not in MAY_PRINT}
    assert not {path: found for path, found in prints.items() if found}
