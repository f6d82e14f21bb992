#include <stdlib.h>

#include "cursor.h"
#include "demo.h"
#include "record.h"
#include "table.h"

struct demo {
    struct table table;
};

demo *demo_create(void)
{
    demo *db = malloc(sizeof *db);
    if (db && table_create(&db->table) != DEMO_OK) {
        free(db);
        return NULL;
    }
    return db;
}

demo *demo_open(const char *path, int *status)
{
    demo *db = malloc(sizeof *db);
    *status = db ? table_load(&db->table, path) : DEMO_NO_MEMORY;
    if (*status != DEMO_OK) {
        free(db);
        return NULL;
    }
    return db;
}

int demo_save(demo *db, const char *path)
{
    return table_save(&db->table, path);
}

void demo_close(demo *db)
{
    if (!db)
        return;
    table_close(&db->table);
    free(db);
}

int demo_insert(demo *db, const demo_row *row)
{
    return table_insert(&db->table, row);
}

int demo_delete(demo *db, uint32_t id)
{
    return table_delete(&db->table, id);
}

int demo_get(const demo *db, uint32_t id, demo_row *row)
{
    const struct record *record = btree_find(&db->table.rows, id);
    if (!record)
        return DEMO_MISSING;
    record_unpack(record, id, row);
    return DEMO_OK;
}

int demo_add_to_k(demo *db, uint32_t id, uint32_t by)
{
    return table_add_to_k(&db->table, id, by);
}

int demo_set_c(demo *db, uint32_t id, const char *text)
{
    return table_set_c(&db->table, id, text);
}

uint32_t demo_range(const demo *db, uint32_t first_id, uint32_t last_id, demo_row *rows, uint32_t limit)
{
    struct cursor cursor;
    uint32_t found = 0;
    cursor_seek(&cursor, &db->table.rows, first_id);
    for (; found < limit && cursor_valid(&cursor) && cursor_key(&cursor) <= last_id; cursor_next(&cursor))
        record_unpack(cursor_value(&cursor), (uint32_t)cursor_key(&cursor), &rows[found++]);
    return found;
}

uint32_t demo_range_by_k(const demo *db, uint32_t first_k, uint32_t last_k, demo_row *rows, uint32_t limit)
{
    struct cursor cursor;
    uint32_t found = 0;
    cursor_seek(&cursor, &db->table.by_k.tree, index_key(first_k, 0));
    for (; found < limit && cursor_valid(&cursor) && index_k(cursor_key(&cursor)) <= last_k; cursor_next(&cursor))
        demo_get(db, index_id(cursor_key(&cursor)), &rows[found++]);
    return found;
}

uint32_t demo_scan(const demo *db, char first)
{
    struct cursor cursor;
    uint32_t found = 0;
    for (cursor_seek(&cursor, &db->table.rows, 0); cursor_valid(&cursor); cursor_next(&cursor)) {
        const struct record *record = cursor_value(&cursor);
        found += record->c[0] == first;
    }
    return found;
}
