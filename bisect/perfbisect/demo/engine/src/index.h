#ifndef INDEX_H
#define INDEX_H

#include <stdint.h>

#include "btree.h"

/* The secondary index: every (k, id) of the table, ordered by k, then id. */
struct index {
    struct btree tree;
    uint64_t changes; /* since the table was opened */
    uint64_t last_key;
};

static inline uint64_t index_key(uint32_t k, uint32_t id)
{
    return (uint64_t)k << 32 | id;
}

static inline uint32_t index_k(uint64_t key)
{
    return (uint32_t)(key >> 32);
}

static inline uint32_t index_id(uint64_t key)
{
    return (uint32_t)key;
}

int index_create(struct index *index, struct pager *pager);
int index_add(struct index *index, uint32_t k, uint32_t id);
int index_remove(struct index *index, uint32_t k, uint32_t id);

#endif
