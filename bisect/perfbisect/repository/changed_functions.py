"""Finds the functions that a commit changes, from the lines of source code that its diff removes or adds.

The function that contains a removed line is searched for in the files of the parent; the function that contains an
added line, in the files of the commit. A function whose text differs only in comments and white space between parent
and commit counts as unchanged. If no profile contains a changed function, the function may be inlined into its callers.
Therefore the whole tree of the commit is searched for callers, which are functions whose bodies contain the name of the
changed function. If no profile contains a caller, the tree is also searched for the callers of this caller.

The changed files are read from git by the hashes of their contents, because a path may contain any characters. Symbolic
links are ignored.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePosixPath

from perfbisect.core.domain.facts import ChangeFacts
from perfbisect.core.explain.profiles import scope_and_name
from perfbisect.repository.commits import OPTIONS
from perfbisect.repository.ctags import LANGUAGES, Definition, functions_in_files, is_source, universal_ctags
from perfbisect.repository.git import Repository, git
from perfbisect.repository.objects import file_texts, object_headers, within_limits

FILES = 300  # most source files of a change that are read
LARGEST = 16 << 20  # bytes of a source file, on average before and after: SQLite's amalgamation has 9 MB
TOGETHER = 128 << 20
FUNCTIONS = 1000  # most functions that are named
NAMED_FILES = 20  # most files of any kind that are named
Lines = tuple[tuple[str, str, str], ...]
LINES, LONGEST = 3, 100  # most lines outside of functions that are quoted, and most characters of a line
BESIDE = re.compile(r"(?i)(?:^|/)(?:docs?|[\w-]*tests?)/|\.(?:md|rst|txt)$|changelog")
SEARCHED = 60  # most files in which callers are searched, at each step
STEPS = 3  # most steps from a changed function to callers, callers of callers, …
NAMES = 40  # most functions whose callers are searched, at each step
MACRO = re.compile(r"[A-Z_0-9]+")  # looks like a function but is none: TEST_F(Page, Insert) { … }

HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@ ?(.*)$", re.MULTILINE)
COMMENT = re.compile(r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|//[^\n]*|/\*(?:.*?\*/|.*)""", re.DOTALL)

BY_HUNKS = "so the changed functions are taken from the hunk headers of git diff"
NO_CTAGS = f"Universal Ctags is not installed, {BY_HUNKS}, which are approximate. To install it: apt-get install universal-ctags"
FAILED = f"Universal Ctags failed, {BY_HUNKS}, which are approximate."


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A source file that differs between parent and commit, with the hashes of its contents in both; the hash is "" if
    the file does not exist."""

    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class HunkLines:
    """The numbers of the first and the last line of a hunk, in the parent and in the commit. If the hunk has no lines
    in one of them, the last number is lower than the first number."""

    before: tuple[int, int]
    after: tuple[int, int]
    scope: str  # name of the function that git prints beside a hunk


def changed_functions(repo: Repository, parent: str, commit: str, profiled: Collection[str] = ()) -> ChangeFacts:
    """The functions and lines that a commit changes; ``profiled`` are the names of the functions in profiles.

    If ``profiled`` is empty, callers are not searched for. Raises EnvironmentFailure if the repository lacks a commit.
    """
    files, paths, notes = changed_sources(repo, parent, commit)
    old_texts = file_texts(repo, {file.path: file.before for file in files if file.before})
    new_texts = file_texts(repo, {file.path: file.after for file in files if file.after})
    hunks = {file.path: hunks_of(repo, file, old_texts, new_texts) for file in files}
    old = functions_in_files(old_texts, {path: [hunk.before for hunk in rows] for path, rows in hunks.items()})
    new = functions_in_files(new_texts, {path: [hunk.after for hunk in rows] for path, rows in hunks.items()})
    if old is None or new is None:
        notes.append(FAILED if universal_ctags() else NO_CTAGS)
        headers = (function_in_hunk_header(hunk.scope) for in_file in hunks.values() for hunk in in_file)
        names = list(dict.fromkeys(filter(None, headers)))
        callers: Mapping[str, tuple[str, ...]] = {}
    else:
        names = [*functions_with_changed_text(hunks, (old_texts, old), (new_texts, new))]
        macros = {row.name for side in (old, new) for rows in side.values() for row in rows if row.macro}
        search = CallerSearch(repo, commit, profiled, {file.path for file in files})
        names += functions_named_by_macros(search, [name for name in names if MACRO.fullmatch(name)], files)
        callers, left_out = search.callers(names, macros) if profiled else ({}, 0)
        if left_out:
            notes.append(
                f"{left_out:,} changed functions are in no profile, and their callers were not searched: it is unknown into which"
                " functions they are inlined."
            )
    if len(names) > FUNCTIONS:
        notes.append(f"The commit changes {len(names):,} functions. Only {FUNCTIONS:,} of them are examined.")
    return ChangeFacts(
        commit,
        parent,
        tuple(names[:FUNCTIONS]),
        callers,
        len(files),
        old is None or new is None,
        " ".join(notes),
        paths,
        replaced_lines(repo, parent, commit, [path for path in paths if not (names and is_source(path))], bool(names)),
    )


def functions_named_by_macros(search: "CallerSearch", macros: Iterable[str], files: Iterable[ChangedFile]) -> list[str]:
    """The names of functions whose bodies are in ``files``, but that have a macro in place of the name there. Another
    source file includes one of ``files``, and defines one of ``macros`` as the name of the function.
    """
    included = re.compile(rf"#\s*include.*(?:{'|'.join(re.escape(PurePosixPath(file.path).name) for file in files)})")
    texts_of = {name: search.sources_containing([name]).values() for name in macros}
    around = {name: filter(included.search, texts) for name, texts in texts_of.items()}
    define = r"(?m)^[ \t]*#[ \t]*define[ \t]+{}[ \t]+([A-Za-z_]\w*)\s*$"
    matches = (re.findall(define.format(name), text) for name, texts in around.items() for text in texts)
    return [*chain.from_iterable(matches)]


def replaced_lines(
    repo: Repository, parent: str, commit: str, paths: Iterable[str], skip_files_with_other_changes: bool
) -> Lines:
    """The replaced lines of a small change, as (path, old line, new line). The result is empty if the lines are too
    many or too long. If a file has other changes than replaced lines, and ``skip_files_with_other_changes`` is true,
    the file is left out. If ``skip_files_with_other_changes`` is false, the result is empty.
    """
    pairs: list[tuple[str, str, str]] = []
    for path in (path for path in paths if not BESIDE.search(path)):
        printed = git(repo, "diff", "-U0", *OPTIONS, "--no-renames", parent, commit, "--", f":(literal,top){path}")
        _, *hunks = re.split(r"^@@ .*\n", printed, flags=re.MULTILINE)
        sides = [[[row[1:] for row in hunk.splitlines() if row.startswith(sign)] for sign in "-+"] for hunk in hunks]
        hash_comments = not is_source(path)
        code_hunks = [(old, new) for old, new in sides if not differs_in_comments_only(old, new, hash_comments)]
        if all(len(old) == len(new) for old, new in code_hunks):
            rows = [row for hunk in code_hunks for row in zip(*hunk, strict=True)]
            pairs += [(path, old.strip(), new.strip()) for old, new in rows]
        elif not skip_files_with_other_changes:
            return ()
    short = all(len(text) <= LONGEST for pair in pairs for text in pair[1:])
    return tuple(pairs) if short and len(pairs) <= LINES else ()


def differs_in_comments_only(old: Sequence[str], new: Sequence[str], hash_comments: bool) -> bool:
    """Whether two texts differ only in white space and in comments. Comments are C comments, or, if ``hash_comments``
    is true, comments that begin with "#"."""
    hashed = hash_comments and all(row.lstrip().startswith("#") for row in chain(old, new))
    return hashed or stripped_code("\n".join(old)) == stripped_code("\n".join(new))


def changed_sources(repo: Repository, parent: str, commit: str) -> tuple[list[ChangedFile], tuple[str, ...], list[str]]:
    """Three lists: the source files that differ between two commits; at most NAMED_FILES paths of any files that
    differ; and sentences about differing source files that were left out.
    """
    raw = iter(git(repo, "diff-tree", "-r", "-z", "--raw", "--no-abbrev", "-M", *OPTIONS, parent, commit).split("\0"))
    files, paths, notes, modules = [], list[str](), [], False
    for head in filter(None, raw):
        *modes, old, new, status = head.removeprefix(":").split(" ")
        path = next(raw) if status[0] not in "RC" else (next(raw), next(raw))[1]
        modules |= "160000" in modes
        paths.append(path)
        if is_source(path):
            contents = zip(modes, (old, new), strict=True)
            sides = (blob if mode.startswith("100") and blob.strip("0") else "" for mode, blob in contents)
            files.append(ChangedFile(path, *sides))
    files = [file for file in files if file.before != file.after]
    blobs = [blob for file in files for blob in (file.before, file.after) if blob]
    sizes = {"": 0, **dict(zip(blobs, object_sizes(repo, blobs), strict=True))}
    total_size = {file: sizes[file.before] + sizes[file.after] for file in files}
    by_size = dict(sorted(total_size.items(), key=lambda item: item[1]))
    chosen = within_limits(by_size, 2 * LARGEST, TOGETHER, FILES)
    if len(chosen) < len(files):
        why = "not read, because there are too many" if len(chosen) == FILES else "not read, because they are too large"
        notes.append(f"{len(files) - len(chosen)} of {len(files)} source files of the commit are {why}.")
    if modules:
        notes.append("The commit changes submodules. Their functions are not examined.")
    # Documents and tests are named only if nothing else differs.
    paths = [path for path in paths if not BESIDE.search(path)] or paths
    paths.sort(key=lambda path: (not is_source(path), path))
    return sorted(chosen, key=lambda file: file.path), tuple(paths[:NAMED_FILES]), notes


def object_sizes(repo: Repository, hashes: Sequence[str]) -> list[int]:
    """The sizes, in bytes, of the git objects with these ``hashes``; 0 for a missing object."""
    return [header[2] if header else 0 for header in object_headers(repo, hashes)]


def hunks_of(repo: Repository, file: ChangedFile, old: Mapping[str, str], new: Mapping[str, str]) -> list[HunkLines]:
    """The hunks of a file. If a file exists only in the parent or only in the commit, the whole file is one hunk."""
    if not (file.before and file.after):
        (text,) = [side[file.path] for side in (old, new) if file.path in side] or [""]
        every, none = (1, text.count("\n") + 1), (1, 0)
        return [HunkLines(every, none, "") if file.before else HunkLines(none, every, "")]
    if file.path not in old or file.path not in new:
        return []
    printed = git(repo, "diff", "-U0", *OPTIONS, "--no-indent-heuristic", file.before, file.after)
    hunks = list[HunkLines]()
    for *numbers, scope in HUNK.findall(printed):
        first, count, first_after, count_after = (int(number or 1) for number in numbers)
        hunks.append(HunkLines((first, first + count - 1), (first_after, first_after + count_after - 1), scope))
    return hunks


def function_in_hunk_header(scope: str) -> str:
    """The function that git names in the header of a hunk; "" if the header has no function."""
    if "(" not in scope:
        return ""
    class_, name = scope_and_name(scope)
    return f"{class_}::{name}" if class_ and name else name


def functions_with_changed_text(
    hunks: Mapping[str, Sequence[HunkLines]], *sides: tuple[Mapping[str, str], Mapping[str, Sequence[Definition]]]
) -> Iterator[str]:
    """The functions that overlap a hunk and whose code differs. ``sides`` has two entries, for the parent and for the
    commit: the texts of the files, and the functions in these files.
    """
    touched: dict[str, None] = {}
    bodies: list[dict[str, Counter[str]]] = []
    for number, (text, functions) in enumerate(sides):
        bodies_of: dict[str, Counter[str]] = defaultdict(Counter)
        for path, definitions in functions.items():
            both = ((hunk.before, hunk.after)[number] for hunk in hunks[path])
            ranges = [(first, last) for first, last in both if first <= last]
            rows = text[path].split("\n")
            for function in definitions:
                bodies_of[function.name][stripped_code("\n".join(rows[function.first - 1 : function.last]))] += 1
                beside = function.name == "main" and BESIDE.search(path)  # another program's main, as in a test
                if not beside and any(first <= function.last and function.first <= last for first, last in ranges):
                    touched[function.name] = None
        bodies.append(bodies_of)
    return (name for name in touched if bodies[0].get(name) != bodies[1].get(name))


def without_comments(text: str) -> str:
    """A source text without its C comments."""
    return COMMENT.sub(lambda match: match[1] or " ", text)


def stripped_code(text: str) -> str:
    """A source text without comments and white space."""
    return "".join(without_comments(text).split())


@dataclass(frozen=True, slots=True)
class CallerSearch:
    """Searches the tree of a commit for the callers of functions."""

    repo: Repository
    commit: str
    profiled: Collection[str]  # functions that a profile contains; their callers are not searched
    first: Collection[str]  # paths that are searched before others

    def callers(self, functions: Sequence[str], macros: Collection[str]) -> tuple[dict[str, tuple[str, ...]], int]:
        """Two values. The first maps each of ``functions``, and each caller that no profile contains, to its callers.

        The second is the number of functions whose callers were not searched for, because there are too many functions.
        """
        profiled_names = {scope_and_name(name)[1] for name in self.profiled}
        callers_of: dict[str, tuple[str, ...]] = {}
        dropped: set[str] = set()
        waiting = [name for name in functions if scope_and_name(name)[1] not in profiled_names]
        for _ in range(STEPS):
            unknown = [name for name in dict.fromkeys(waiting) if name not in callers_of and scope_and_name(name)[1]]
            searched = unknown[:NAMES]
            dropped.update(unknown[NAMES:])
            if not searched:
                break
            above = self.direct_callers(searched, macros)
            callers_of |= {name: tuple(above.get(name, ())) for name in searched}
            callers = [name for name in chain(*above.values()) if not MACRO.fullmatch(scope_and_name(name)[1])]
            waiting = [name for name in callers if scope_and_name(name)[1] not in profiled_names]
        return {name: names for name, names in callers_of.items() if names}, len(dropped - callers_of.keys())

    def direct_callers(self, functions: Sequence[str], macros: Collection[str]) -> dict[str, list[str]]:
        """Maps each of ``functions`` to the functions whose bodies contain its name."""
        full_names: dict[str, list[str]] = defaultdict(list)
        for name in functions:
            full_names[scope_and_name(name)[1]].append(name)
        contents = self.sources_containing(full_names)
        word = re.compile(rf"(?<![\w$])({'|'.join(map(re.escape, full_names))})(?![\w$])\s*(\()?")
        arrow = re.compile(r"(?:->|\.)\s*$")  # found before a member, which in C is not the function of this name
        callers: dict[str, dict[str, None]] = defaultdict(dict)
        for path, functions_there in (functions_in_files(contents) or {}).items():
            rows = contents[path].split("\n")
            for function in functions_there:
                text = without_comments("\n".join(rows[function.first - 1 : function.last]))
                for use in word.finditer(text):
                    if path.endswith(".c") and arrow.search(text, max(0, use.start() - 4), use.start()):
                        continue
                    for name in full_names[use[1]]:
                        if (use[2] or name in macros) and scope_and_name(function.name)[1] != use[1]:
                            callers[name][function.name] = None
        return {name: [*names] for name, names in callers.items()}

    def sources_containing(self, words: Iterable[str]) -> dict[str, str]:
        """Maps the path of each source file that contains any of ``words`` to the text of the file."""
        patterns_of_words = [option for word in words for option in ("-e", word)]
        plain = ("-l", "-z", "-I", "-F", "-w", "--full-name", "--no-recurse-submodules")
        patterns = [f":(top,icase,glob)**/*{extension}" for extension in LANGUAGES]
        printed = git(self.repo, "grep", *plain, *patterns_of_words, self.commit, "--", *patterns, allowed=(0, 1))
        paths = [path for entry in printed.split("\0") if (path := entry.removeprefix(f"{self.commit}:"))]
        paths = sorted((path for path in paths if "\n" not in path), key=lambda path: (path not in self.first, path))
        named = {path: f"{self.commit}:{path}" for path in paths[:SEARCHED]}
        sizes = dict(zip(named, object_sizes(self.repo, [*named.values()]), strict=True))
        return file_texts(self.repo, {path: named[path] for path in within_limits(sizes, LARGEST, TOGETHER, SEARCHED)})
