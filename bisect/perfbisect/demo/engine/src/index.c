#include "index.h"

#include <stddef.h>

#include "demo.h"

int index_create(struct index *index, struct pager *pager)
{
    return btree_create(&index->tree, pager, 0);
}

int index_add(struct index *index, uint32_t k, uint32_t id)
{
    uint64_t key = index_key(k, id);
    int status = btree_insert(&index->tree, key, NULL);
    if (status != DEMO_OK)
        return status;
    return DEMO_OK;
}

int index_remove(struct index *index, uint32_t k, uint32_t id)
{
    uint64_t key = index_key(k, id);
    int status = btree_remove(&index->tree, key);
    if (status != DEMO_OK)
        return status;
    return DEMO_OK;
}
