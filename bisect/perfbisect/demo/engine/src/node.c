#include "node.h"

#include <string.h>

void node_init(struct node *node, uint32_t level, uint32_t value_size)
{
    node->level = (uint16_t)level;
    node->count = 0;
    node->next = 0;
    node->prev = 0;
    node->value_size = value_size;
}

uint32_t node_lower_bound(struct node *node, uint64_t key)
{
    const uint64_t *keys = node_keys(node);
    uint32_t low = 0;
    uint32_t high = node->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (keys[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

uint32_t node_child_slot(struct node *node, uint64_t key)
{
    const uint64_t *keys = node_keys(node);
    uint32_t first = 1;
    uint32_t end = node->count;
    while (first < end) {
        uint32_t middle = (first + end) / 2;
        if (keys[middle] <= key)
            first = middle + 1;
        else
            end = middle;
    }
    return first - 1;
}

uint32_t node_child(struct node *node, uint32_t slot)
{
    uint32_t page;
    memcpy(&page, node_value(node, slot), sizeof page);
    return page;
}

void node_insert(struct node *node, uint32_t slot, uint64_t key, const void *value)
{
    uint64_t *keys = node_keys(node);
    uint32_t after = node->count - slot;
    memmove(keys + slot + 1, keys + slot, after * sizeof *keys);
    keys[slot] = key;
    if (node->value_size) {
        memmove(node_value(node, slot + 1), node_value(node, slot), after * node->value_size);
        memcpy(node_value(node, slot), value, node->value_size);
    }
    node->count++;
}

void node_remove(struct node *node, uint32_t slot)
{
    uint64_t *keys = node_keys(node);
    uint32_t after = node->count - slot - 1u;
    memmove(keys + slot, keys + slot + 1, after * sizeof *keys);
    if (node->value_size)
        memmove(node_value(node, slot), node_value(node, slot + 1), after * node->value_size);
    node->count--;
}

void node_split(struct node *node, uint32_t slot, struct node *right)
{
    uint32_t moved = node->count - slot;
    memcpy(node_keys(right), node_keys(node) + slot, moved * sizeof(uint64_t));
    if (node->value_size)
        memcpy(node_value(right, 0), node_value(node, slot), moved * node->value_size);
    right->count = (uint16_t)moved;
    node->count = (uint16_t)slot;
}
