#include "index.h"

#include <stddef.h>

#include "demo.h"

int index_create(struct index *index, struct pager *pager)
{
    return btree_create(&index->tree, pager, 0);
}

/* What follows every change of an entry. */
static void note_change(struct index *index, uint64_t key)
{
    index->changes++;
    index->last_key = key;
}

int index_add(struct index *index, uint32_t k, uint32_t id)
{
    uint64_t key = index_key(k, id);
    int status = btree_insert(&index->tree, key, NULL);
    if (status == DEMO_OK)
        note_change(index, key);
    return status;
}

int index_remove(struct index *index, uint32_t k, uint32_t id)
{
    uint64_t key = index_key(k, id);
    int status = btree_remove(&index->tree, key);
    if (status == DEMO_OK)
        note_change(index, key);
    return status;
}
