"""The shape of the project, checked: what may import what, and what must never exist."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "bisect" / "perfbisect"

# Each part may import itself, errors, and these. See docs/architecture.md.
ALLOWED = {
    "core": set(),
    "errors": set(),
    "process": set(),
    "recipes": {"core"},
    "host": {"core", "recipes", "process"},
    "repository": {"core", "recipes"},
    "lab": {"core", "recipes", "host", "repository"},
    "store": {"core", "process"},
    "report": {"core", "store"},
    "ui": {"core"},
    "demo": {"core", "repository", "recipes"},
    "hunt": {"core", "recipes", "host", "repository", "lab", "store"},
    "simulate": {"core"},
    "cli": {"core", "recipes", "host", "repository", "lab", "store", "report", "ui", "demo", "hunt", "simulate"},
}


def imports(path: Path) -> set[str]:
    """The parts of perfbisect that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            head, _, rest = name.partition(".")
            if head == "perfbisect":
                found.add(rest.partition(".")[0])
    return found - {"__version__", ""}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_dependencies_point_inwards(path: Path) -> None:
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if part == "__init__":
        return
    assert imports(path) <= ALLOWED[part] | {part, "errors"}


def test_bisect_is_never_a_package() -> None:
    """A package named bisect would shadow the standard library's module."""
    assert not (ROOT / "bisect" / "__init__.py").exists()
    assert not (ROOT / "builders" / "__init__.py").exists()


def test_modules_have_one_job() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in SOURCE.rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 400
    }
    assert not long
