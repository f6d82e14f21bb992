#ifndef TABLE_H
#define TABLE_H

#include <stdint.h>

#include "btree.h"
#include "demo.h"
#include "index.h"
#include "pager.h"

/* Rows by id, and the index on k that follows each of their changes. */
struct table {
    struct pager pager;
    struct btree rows;
    struct index by_k;
    uint32_t row_count;
};

int table_create(struct table *table);
int table_load(struct table *table, const char *path);
int table_save(struct table *table, const char *path);
void table_close(struct table *table);

int table_insert(struct table *table, const demo_row *row);
int table_delete(struct table *table, uint32_t id);
int table_add_to_k(struct table *table, uint32_t id, uint32_t by);
int table_set_c(struct table *table, uint32_t id, const char *text);

#endif
