"""Paths that cannot change the speed.

Ignored paths are left out of the checkout, so a build must not need them: what a build file names stays, and so does a
folder that holds code or a build file.
"""

import re
from pathlib import PurePosixPath

from perfbisect.recipes.proposal.tree import PLAIN, SOURCES, Tree, is_build_file

# Of folders at the top.
_FOLDERS = (
    "doc", "docs", "documentation", "Documentation", "man", "manual", "po", "locale", "locales", "translations",
    "website", "www", "site", "screenshots", "assets", "LICENSES", ".github", ".gitlab", ".circleci", ".vscode", ".idea",
)  # fmt: skip
_FILES = (
    ".gitlab-ci.yml", ".travis.yml", ".cirrus.yml", ".appveyor.yml", "appveyor.yml", "azure-pipelines.yml",
    ".pre-commit-config.yaml", ".editorconfig", ".clang-format", ".clang-tidy", ".gitignore", ".mailmap", "CODEOWNERS",
)  # fmt: skip
_PROSE = (".md", ".rst")


def ignored(good: Tree, bad: Tree) -> list[str]:
    """The patterns of paths that neither end needs, as a recipe's ``ignore`` has them."""
    of_good = _of(good)
    return [pattern for pattern in _of(bad) if pattern in of_good or not _has(good, pattern)]


def _has(tree: Tree, pattern: str) -> bool:
    folder, suffix = pattern.removesuffix("**"), pattern.removeprefix("**/*")
    if folder != pattern:
        return any(path.startswith(folder) for path in tree.paths)
    return any(path.endswith(suffix) for path in tree.paths) if suffix != pattern else pattern in tree.paths


def _of(tree: Tree) -> list[str]:
    generated = {"configure"} if {"configure.ac", "configure.in"} & tree.paths else set()
    read = (text for path, text in tree.texts.items() if path not in generated and is_build_file(path))
    named = "\n".join((*read, tree.embedding))
    folders = {path.partition("/")[0] for path in tree.paths if "/" in path}
    found = [f"{name}/**" for name in _FOLDERS if name in folders and _is_free(tree, name, named)]
    for suffix in _PROSE:
        prose = [path for path in tree.paths if path.endswith(suffix)]
        needed = {path for path in prose if _mentions(named, PurePosixPath(path).name)}
        if suffix == ".md" and "configure.ac" in tree.paths:  # automake may require one
            needed |= {"README.md"} & set(prose)
        if prose and not needed:
            found.append(f"**/*{suffix}")
        else:
            found += sorted(path for path in prose if "/" not in path and path not in needed and PLAIN.fullmatch(path))
    return found + [name for name in _FILES if name in tree.paths and not _mentions(named, name)]


def _is_free(tree: Tree, folder: str, named: str) -> bool:
    """Whether a folder holds neither code nor a build file, and no build file names what is in it."""
    inside = [PurePosixPath(path) for path in tree.paths if path.startswith(f"{folder}/")]
    if any(path.suffix in SOURCES or is_build_file(str(path)) for path in inside) and not folder.startswith("."):
        return False
    return not re.search(rf"(?<![\w.-]){re.escape(folder)}(?![\w.-])(?!\s*=)", named)


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text) is not None
