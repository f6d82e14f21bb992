"""Stores the results of cmake's configure step, so that the next clean build of a session need not run the same checks.

A clean build that runs all checks of the configure step stores results of checks, such as ``HAVE_FSEEKO``, and the
facts about the compiler, in ``root/work/BUILDER/configured``. The next clean build starts with these results if it
would run the same checks: by the same commands, in the same session, on the same host, with the same
``CMakeLists.txt``, ``*.cmake`` and ``*.in``. A build that starts with these results must generate the same files, byte
for byte, as the build that stored the results. If the generated files differ, this build and all later builds run all
checks. Results that may depend on other files of the tree are not kept: the results of ``try_compile`` itself and, if
the ``CMakeLists.txt`` of the tree read files, the results of checks that compile a source text.

A build by commands of ``--build`` also uses these results, under three conditions: all commands are commands of build
systems; only the first command configures; and the first command is cmake, and makes a folder in the copy of the tree.
A build by commands of ``--build`` needs the same ``CMakeLists.txt``, ``*.cmake`` and ``*.in`` in the whole copy of the
tree.

The cache of autotools is not used. Many configure scripts do part of their work only in checks whose results are not
cached, and checks of configure scripts read headers of the tree.
"""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from perfbisect.lab.building import incremental
from perfbisect.lab.building.log_parser import CONFIGURE
from perfbisect.lab.building.plan import BuildContext, BuildPlan
from perfbisect.recipes.programs import AGAIN, SAID

MAX_KEPT = 16  # configure steps whose results are kept
# $0 is the path of the kept results, $1 the tree, $2 the folder of the build; then cmake's command. $2 may have a CMakeCache.txt
# already. Generated files are compared without lists of modules that were read. Checks leave files in temporary folders.
_CONFIGURE = rf"""
all=$0 tree=$1 folder=$2
shift 2
inputs() {{ find "$tree" -type f '(' -name CMakeLists.txt -o -name '*.cmake' -o -name '*.in' ')' -print0 | LC_ALL=C sort -z; }}
says() {{ inputs | xargs -0 -r grep -qsiE -e "$1"; }}
sums() {{
    (cd -- "$1" && find . '(' -iname '*tmp*' -o -path './CMakeFiles/[0-9]*' -o -path './CMakeFiles/Check*' ')' -prune -o -type f ! -name CMakeCache.txt \
        ! -path './.perfbisect*' ! -path './CMakeFiles/*.log' ! -path './CMakeFiles/*.yaml' ! -name Makefile.cmake ! -name build.ninja -print0 |
        xargs -0 -r sha256sum | LC_ALL=C sort)
}}
result() {{ # without the files of a tree that is built in place
    if [ "$folder" = . ]; then :; else sums "../source/${{folder##*/}}"; fi >"$all.tree" 2>/dev/null
    {{
        sums "$folder" | LC_ALL=C comm -23 - "$all.tree"
        sed -E '/RERUN_CMAKE|^build .*: phony$|_PDB = /d' "$folder/build.ninja" 2>/dev/null
    }} | sha256sum
}}
[ ! -e "$all.unlike" ] || exec "$@"
kept=$all-$(inputs | xargs -0 -r sha256sum | sha256sum | cut -c -32)
if [ -d "$kept" ]; then
    mkdir -p "$folder/CMakeFiles" && cp -R -- "$kept/found/." "$folder"
    "$@" && [ "$(result)" = "$(cat "$kept/result")" ] && touch -- "$kept" && exit
    echo '{SAID}{AGAIN}] ' && : >"$all.unlike"
    if [ "$folder" = . ]; then find . -mindepth 1 -delete; else rm -rf -- "$folder"; fi || exit
    [ ! -d "../source/${{folder##*/}}" ] || [ "$folder" = . ] || cp -a "../source/${{folder##*/}}" "$folder" || exit
    exec "$@"
fi
"$@" || exit
! says '(REQUIRED_(INCLUDES|FLAGS|DEFINITIONS)|EXTRA_INCLUDE_FILES|check_[a-z_]+ *\().*(SOURCE|LIST)_DIR' || exit 0
tests='|Test'
! says 'file *\( *(READ|STRINGS)' || tests=
new=$all.part
rm -rf "$new" && mkdir -p "$new/found/CMakeFiles" && awk -v kind="^//(Have$tests|CHECK_TYPE_SIZE:) " '
    /^\/\// {{ if (help == "") help = $0; next }}
    {{ name = $0; sub(/:.*/, "", name) }}
    NR == FNR && help ~ /^\/\/CHECK_TYPE_SIZE:/ {{ sized["HAVE_" name] }}
    NR > FNR && ((help ~ kind || name in sized) && /:INTERNAL=/ || /^CMAKE_[A-Za-z0-9_-]+:(FILEPATH|INTERNAL)=/) {{ print help; print }}
    {{ help = "" }}' "$folder/CMakeCache.txt" "$folder/CMakeCache.txt" >"$new/found/CMakeCache.txt" &&
    cp -R -- "$folder"/CMakeFiles/[0-9]* "$new/found/CMakeFiles" && result >"$new/result" && mv -T -- "$new" "$kept" &&
    cd -- "${{all%/*}}" && ls -t | tail -n +{MAX_KEPT + 1} | xargs -r rm -rf --
:
"""


def commands_with_configure_results(context: BuildContext, plan: BuildPlan) -> Sequence[tuple[str, list[str]]]:
    """The commands of a clean build; if it is safe, the configure step uses results of earlier checks, and stores its
    own results.
    """
    how_hash = incremental.build_method_hash(context, plan)
    if plan.system not in ("cmake", "") or not (how_hash and context.session):
        return plan.commands
    results = str(context.work / "configured" / f"{context.session}-{how_hash}")
    if not plan.system:
        copying, (stage, first), *further = plan.commands
        at, folder = cmake_index_and_folder(first, str(context.work / "prefix"))
        if not folder or any(
            "cmake" in map(_name, argv) and not {"--build", "--install"} & {*argv} for _, argv in further
        ):
            return plan.commands
        return (copying, (stage, [*first[:at], "sh", "-c", _CONFIGURE, results, ".", folder, *first[at:]]), *further)
    return tuple((stage, _kept(results, argv) if stage == CONFIGURE else argv) for stage, argv in plan.commands)


def _kept(results: str, argv: list[str]) -> list[str]:
    if "-S" not in argv:  # not cmake: a command that copies the tree, or reads the log
        return argv
    tree, folder = (argv[argv.index(option) + 1] for option in ("-S", "-B"))
    return ["sh", "-c", _CONFIGURE, results, tree, folder, *argv]


_BELOW = r"[\w+-][\w.+-]*"  # the name of a file or a folder, never "..", nor a path


def cmake_index_and_folder(argv: Sequence[str], prefix: str) -> tuple[int, str]:
    """The index of the program in a command of ``--build``, and the folder that the command makes. The folder is "" if
    the program is not cmake, or if the command may configure another tree than the copy in ``prefix``, or may write
    into an existing folder.
    """
    at = next((index for index, word in enumerate(argv) if index > 2 and not re.match(r"\w+=", word)), len(argv))
    folder, source, words = "", ".", iter(argv[at + 1 :])
    if at == len(argv) or _name(argv[at]) != "cmake":
        return at, ""
    for word in words:
        option = re.fullmatch(r"-([SHBDGW])(.*)", word, re.DOTALL)
        value = (option[2] or next(words, "")) if option else word
        if not option and word.startswith("-"):
            return at, ""
        if not option or option[1] in "SHB":
            path = str(PurePosixPath(value.removeprefix(f"{prefix}/")))
            if option and option[1] == "B":
                folder = path
            else:
                source = "." if path == prefix else path
    within = source == "." or re.fullmatch(rf"{_BELOW}(/{_BELOW})*", source)
    return at, folder if within and re.fullmatch(_BELOW, folder) else ""


def _name(program: str) -> str:
    return PurePosixPath(program).name
