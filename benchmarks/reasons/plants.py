"""Slowdowns of known reason, planted in the demo's engine: what is changed, and what must be said of it."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

Tree = dict[str, str]  # path → text

SPIN = "    for (volatile int spin = 0; spin < {count}; spin++) {{}}\n"

CHASE = """
#include <stdlib.h>

/* A ring through 64 MB, in an order that no prefetcher knows. */
#define PLACES (1u << 23)
static uint64_t *ring;

__attribute__((noinline)) static void walk_ring(void)
{
    static uint64_t at;
    if (!ring) {
        ring = malloc(PLACES * sizeof *ring);
        uint64_t place = 0;
        for (uint64_t i = 0; i < PLACES; i++) {
            uint64_t next = (place * 1664525u + 1013904223u) % PLACES;
            ring[place] = next;
            place = next;
        }
    }
    for (int i = 0; i < 6; i++)
        at = ring[at];
    __asm__ volatile("" : : "r"(at));
}
"""
LOCK = """
#include <pthread.h>

static pthread_mutex_t all_rows = PTHREAD_MUTEX_INITIALIZER;

/* What each thread did for itself is done by one at a time. */
__attribute__((noinline)) static void note_update(void)
{
    pthread_mutex_lock(&all_rows);
    for (volatile int spin = 0; spin < 2000; spin++) {}
    pthread_mutex_unlock(&all_rows);
}
"""
NOTE_ALONE = """
__attribute__((noinline)) static void note_update(void)
{
    for (volatile int spin = 0; spin < 2000; spin++) {}
}
"""
JOURNAL = """
#include <fcntl.h>
#include <unistd.h>

__attribute__((noinline)) static void write_journal(void)
{
    static int file = -1;
    static unsigned updates;
    if (file < 0)
        file = open("journal", O_CREAT | O_WRONLY, 0600);
    if (updates++ % 20 == 0 && (pwrite(file, &updates, sizeof updates, 0) < 0 || fdatasync(file) != 0))
        abort();
}
"""
MOVED = """
__attribute__((noinline)) static uint32_t first_not_below(const uint64_t *keys, uint32_t count, uint64_t key)
{
    uint32_t low = 0;
    uint32_t high = count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (keys[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
"""


@dataclass(frozen=True)
class Plant:
    """One slowdown. Its parent is the tree that ``before`` makes of the engine, itself the tree that ``change`` makes of that."""

    name: str
    cause: str  # of the first class: a value of Cause
    function: str  # that has the loss; "" where none has
    change: Callable[[Tree], Tree]
    workload: str = "update-index"
    options: tuple[str, ...] = ()
    before: Callable[[Tree], Tree] = dict


def replaced(path: str, *pairs: tuple[str, str]) -> Callable[[Tree], Tree]:
    """A change of one file: each first text, which is there once, becomes the second."""

    def change(tree: Tree) -> Tree:
        text = tree[path]
        for old, new in pairs:
            if text.count(old) != 1:
                raise ValueError(f"{path} has {text.count(old)} times: {old}")
            text = text.replace(old, new)
        return {**tree, path: text}

    return change


def spinning(path: str, function: str, count: int) -> Callable[[Tree], Tree]:
    """A change by which a function begins with a loop."""

    def change(tree: Tree) -> Tree:
        found = re.search(rf"^[^\n;]*\b{function}\([^;{{]*\)\n\{{\n", tree[path], re.MULTILINE)
        if found is None:
            raise ValueError(f"{path} does not define {function}")
        text = tree[path]
        return {**tree, path: text[: found.end()] + SPIN.format(count=count) + text[found.end() :]}

    return change


INCLUDE = '#include "table.h"\n'
UPDATE = "int demo_add_to_k(demo *db, uint32_t id, uint32_t by)\n{\n"
GET = "int demo_get(const demo *db, uint32_t id, demo_row *row)\n{\n"
SEARCH = """    const uint64_t *keys = node_keys(node);
    uint32_t low = 0;
    uint32_t high = node->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (keys[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
"""


def moved_and_slower(tree: Tree) -> Tree:
    """A search of its own function, as fast as before, and a loop elsewhere."""
    search = replaced(
        "src/node.c",
        ("uint32_t node_lower_bound(", MOVED.lstrip() + "\nuint32_t node_lower_bound("),
        (SEARCH, "    return first_not_below(node_keys(node), node->count, key);\n"),
    )
    return spinning("src/table.c", "table_add_to_k", 150)(search(tree))


PLANTS = (
    Plant("more code in a hot function", "instructions", "node_lower_bound", spinning("src/node.c", "node_lower_bound", 60)),
    Plant("the same, inlined", "instructions", "note_change", spinning("src/index.c", "note_change", 150)),
    Plant(
        "pointer chasing over 64 MB", "memory", "walk_ring",
        replaced("src/api.c", (INCLUDE, INCLUDE + CHASE), (GET, GET + "    walk_ring();\n")), workload="point-query",
    ),
    Plant(
        "a contended lock", "waiting", "note_update", replaced("src/api.c", (NOTE_ALONE, LOCK)), options=("--threads", "4"),
        before=replaced("src/api.c", (INCLUDE, INCLUDE + NOTE_ALONE), (UPDATE, UPDATE + "    note_update();\n")),
    ),
    Plant(
        "fdatasync", "waiting", "write_journal",
        replaced("src/api.c", (INCLUDE, INCLUDE + JOURNAL), (UPDATE, UPDATE + "    write_journal();\n")),
    ),
    Plant("cost moved, and more code elsewhere", "instructions", "table_add_to_k", moved_and_slower),
)  # fmt: skip

HOT = (
    ("src/node.c", "node_lower_bound", "update-index"),
    ("src/node.c", "node_child_slot", "point-query"),
    ("src/node.c", "node_insert", "update-index"),
    ("src/node.c", "node_remove", "update-index"),
    ("src/btree.c", "btree_leaf", "point-query"),
    ("src/btree.c", "btree_find", "update-nonindex"),
    ("src/btree.c", "btree_insert", "update-index"),
    ("src/btree.c", "btree_remove", "update-index"),
    ("src/table.c", "table_add_to_k", "update-index"),
    ("src/table.c", "table_set_c", "update-nonindex"),
    ("src/record.c", "record_unpack", "range"),
    ("src/api.c", "demo_get", "point-query"),
    ("src/cursor.c", "cursor_next", "range"),
    ("src/index.c", "index_add", "update-index"),
    ("src/index.c", "index_remove", "update-index"),
)
INLINED = (
    ("src/index.c", "note_change", "update-index"),
    ("src/btree.c", "descend", "update-index"),
    ("src/cursor.c", "skip_end_of_leaf", "range"),
)


def drawn(count: int, seed: int) -> list[Plant]:
    """Plants of more code in a function drawn at random; of each three, one in a function that is inlined."""
    random_numbers = random.Random(seed)
    plants = []
    for number in range(count):
        path, function, workload = random_numbers.choice(INLINED if number % 3 == 2 else HOT)
        spins = random_numbers.randint(80, 250)
        kind = "inlined" if number % 3 == 2 else "hot"
        plants.append(
            Plant(
                f"{number + 1}: {kind}, {spins} turns",
                "instructions",
                function,
                spinning(path, function, spins),
                workload,
            )
        )
    return plants
