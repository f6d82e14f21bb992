#ifndef BTREE_H
#define BTREE_H

#include <stdint.h>

#include "node.h"
#include "pager.h"

#define BTREE_MAX_HEIGHT 12

/* An ordered map from 64-bit keys to values of one size, which may be 0. */
struct btree {
    struct pager *pager;
    uint32_t root;
    uint32_t value_size;
};

int btree_create(struct btree *tree, struct pager *pager, uint32_t value_size);

static inline struct node *btree_node(const struct btree *tree, uint32_t page)
{
    return pager_page(tree->pager, page);
}

/* The leaf in which `key` is or would be. */
struct node *btree_leaf(const struct btree *tree, uint64_t key);

/* The value of `key`, NULL where there is none; valid until the tree changes. */
void *btree_find(const struct btree *tree, uint64_t key);

int btree_insert(struct btree *tree, uint64_t key, const void *value);
int btree_remove(struct btree *tree, uint64_t key);

#endif
