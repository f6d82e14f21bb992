#ifndef CURSOR_H
#define CURSOR_H

#include <stdbool.h>
#include <stdint.h>

#include "btree.h"

/* A place in a tree; any change of the tree makes it invalid. */
struct cursor {
    const struct btree *tree;
    struct node *leaf;
    uint32_t slot;
};

/* At the first entry whose key is not smaller than `key`. */
void cursor_seek(struct cursor *cursor, const struct btree *tree, uint64_t key);
void cursor_next(struct cursor *cursor);

static inline bool cursor_valid(const struct cursor *cursor)
{
    return cursor->slot < cursor->leaf->count;
}

static inline uint64_t cursor_key(const struct cursor *cursor)
{
    return node_keys(cursor->leaf)[cursor->slot];
}

static inline void *cursor_value(const struct cursor *cursor)
{
    return node_value(cursor->leaf, cursor->slot);
}

#endif
