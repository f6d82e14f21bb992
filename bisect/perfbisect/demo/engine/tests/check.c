/* A short walk through the interface: make check */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "demo.h"

#define ROWS 2000u

static void expect(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "check: %s\n", what);
        exit(1);
    }
}

static demo_row row_of(uint32_t id)
{
    demo_row row = {.id = id, .k = id * 7919u % ROWS};
    memset(row.c, 'c', sizeof row.c);
    memset(row.pad, 'p', sizeof row.pad);
    return row;
}

static void fill(demo *db)
{
    for (uint32_t id = 1; id <= ROWS; id++) {
        demo_row row = row_of(id);
        expect(demo_insert(db, &row) == DEMO_OK, "insert");
        expect(demo_insert(db, &row) == DEMO_EXISTS, "no id twice");
    }
}

static void check_updates(demo *db)
{
    demo_row before, after;
    for (uint32_t id = 1; id <= ROWS; id += 3) {
        expect(demo_get(db, id, &before) == DEMO_OK, "get");
        expect(demo_add_to_k(db, id, 5) == DEMO_OK, "update");
        expect(demo_get(db, id, &after) == DEMO_OK && after.k == before.k + 5, "k is updated");
    }
}

int main(void)
{
    static demo_row rows[ROWS];
    demo *db = demo_create();
    expect(db != NULL, "create");
    fill(db);
    check_updates(db);
    expect(demo_range_by_k(db, 0, UINT32_MAX, rows, ROWS) == ROWS, "the index has every row");
    for (uint32_t i = 1; i < ROWS; i++)
        expect(rows[i - 1].k <= rows[i].k, "the index is ordered");
    expect(demo_scan(db, 'c') == ROWS, "scan");
    demo_close(db);
    puts("check: all is well");
    return 0;
}
