#include "table.h"

#include <string.h>

#include "record.h"

int table_create(struct table *table)
{
    memset(table, 0, sizeof *table);
    int status = pager_create(&table->pager);
    if (status == DEMO_OK)
        status = btree_create(&table->rows, &table->pager, sizeof(struct record));
    if (status == DEMO_OK)
        status = index_create(&table->by_k, &table->pager);
    if (status != DEMO_OK)
        pager_close(&table->pager);
    return status;
}

int table_load(struct table *table, const char *path)
{
    memset(table, 0, sizeof *table);
    int status = pager_load(&table->pager, path);
    if (status != DEMO_OK)
        return status;
    const struct header *header = pager_header(&table->pager);
    table->rows = (struct btree){&table->pager, header->rows_root, sizeof(struct record)};
    table->by_k.tree = (struct btree){&table->pager, header->index_root, 0};
    table->row_count = header->row_count;
    return DEMO_OK;
}

int table_save(struct table *table, const char *path)
{
    struct header *header = pager_header(&table->pager);
    header->rows_root = table->rows.root;
    header->index_root = table->by_k.tree.root;
    header->row_count = table->row_count;
    return pager_save(&table->pager, path);
}

void table_close(struct table *table)
{
    pager_close(&table->pager);
}

int table_insert(struct table *table, const demo_row *row)
{
    struct record record;
    record_pack(&record, row);
    int status = btree_insert(&table->rows, row->id, &record);
    if (status != DEMO_OK)
        return status;
    status = index_add(&table->by_k, row->k, row->id);
    if (status != DEMO_OK) {
        btree_remove(&table->rows, row->id);
        return status;
    }
    table->row_count++;
    return DEMO_OK;
}

int table_delete(struct table *table, uint32_t id)
{
    const struct record *record = btree_find(&table->rows, id);
    if (!record)
        return DEMO_MISSING;
    int status = index_remove(&table->by_k, record->k, id);
    if (status != DEMO_OK)
        return status;
    table->row_count--;
    return btree_remove(&table->rows, id);
}

int table_add_to_k(struct table *table, uint32_t id, uint32_t by)
{
    struct record *record = btree_find(&table->rows, id);
    if (!record)
        return DEMO_MISSING;
    if (!by)
        return DEMO_OK;
    uint32_t k = record->k + by;
    int status = index_add(&table->by_k, k, id);
    if (status != DEMO_OK)
        return status;
    status = index_remove(&table->by_k, record->k, id);
    record->k = k;
    return status;
}

int table_set_c(struct table *table, uint32_t id, const char *text)
{
    struct record *record = btree_find(&table->rows, id);
    if (!record)
        return DEMO_MISSING;
    memcpy(record->c, text, sizeof record->c);
    return DEMO_OK;
}
