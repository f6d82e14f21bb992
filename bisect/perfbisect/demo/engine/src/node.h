#ifndef NODE_H
#define NODE_H

#include <stdbool.h>
#include <stdint.h>

#include "pager.h"

/*
 * A page of a tree: this head, the keys in ascending order, then their values in the same order.
 * In an inner node (level > 0) the value is the page number of a child, and no key below it is smaller than its own.
 * The first child is the exception: it takes all that is smaller than the second key, so its own is never looked at.
 */
struct node {
    uint64_t checksum;
    uint16_t level;
    uint16_t count;
    uint32_t next;
    uint32_t prev;
    uint32_t value_size;
};

static inline uint64_t *node_keys(struct node *node)
{
    return (uint64_t *)(node + 1);
}

static inline uint32_t node_capacity(const struct node *node)
{
    return (PAGE_SIZE - sizeof *node) / (sizeof(uint64_t) + node->value_size);
}

static inline void *node_value(struct node *node, uint32_t slot)
{
    return (unsigned char *)(node_keys(node) + node_capacity(node)) + slot * node->value_size;
}

void node_init(struct node *node, uint32_t level, uint32_t value_size);

/* The first slot whose key is not smaller than `key`; node->count where there is none. */
uint32_t node_lower_bound(struct node *node, uint64_t key);

/* The slot of an inner node below which `key` belongs. */
uint32_t node_child_slot(struct node *node, uint64_t key);
uint32_t node_child(struct node *node, uint32_t slot);

/* The node must have room. */
void node_insert(struct node *node, uint32_t slot, uint64_t key, const void *value);
void node_remove(struct node *node, uint32_t slot);

/* Moves the entries from `slot` on to the empty node `right`. */
void node_split(struct node *node, uint32_t slot, struct node *right);

#endif
