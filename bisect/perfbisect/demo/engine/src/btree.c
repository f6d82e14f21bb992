#include "btree.h"

#include <stddef.h>

#include "demo.h"

/* From the root to a leaf: the page of each level and the slot taken there. */
struct path {
    uint32_t depth;
    uint32_t page[BTREE_MAX_HEIGHT];
    uint32_t slot[BTREE_MAX_HEIGHT];
};

int btree_create(struct btree *tree, struct pager *pager, uint32_t value_size)
{
    if (!pager_reserve(pager, 1))
        return DEMO_NO_MEMORY;
    tree->pager = pager;
    tree->value_size = value_size;
    tree->root = pager_allocate(pager);
    node_init(btree_node(tree, tree->root), 0, value_size);
    return DEMO_OK;
}

struct node *btree_leaf(const struct btree *tree, uint64_t key)
{
    struct node *node = btree_node(tree, tree->root);
    while (node->level)
        node = btree_node(tree, node_child(node, node_child_slot(node, key)));
    return node;
}

void *btree_find(const struct btree *tree, uint64_t key)
{
    struct node *leaf = btree_leaf(tree, key);
    uint32_t slot = node_lower_bound(leaf, key);
    if (slot == leaf->count || node_keys(leaf)[slot] != key)
        return NULL;
    return node_value(leaf, slot);
}

/* Fills `path`; true where the leaf has `key`. */
static bool descend(const struct btree *tree, uint64_t key, struct path *path)
{
    uint32_t page = tree->root;
    struct node *node = btree_node(tree, page);
    uint32_t depth = 0;
    while (node->level) {
        uint32_t slot = node_child_slot(node, key);
        path->page[depth] = page;
        path->slot[depth++] = slot;
        page = node_child(node, slot);
        node = btree_node(tree, page);
    }
    path->page[depth] = page;
    path->slot[depth] = node_lower_bound(node, key);
    path->depth = depth;
    return path->slot[depth] < node->count && node_keys(node)[path->slot[depth]] == key;
}

static uint32_t split(struct btree *tree, uint32_t page, uint32_t slot)
{
    struct node *node = btree_node(tree, page);
    uint32_t right_page = pager_allocate(tree->pager);
    struct node *right = btree_node(tree, right_page);
    node_init(right, node->level, node->value_size);
    /* Rows that arrive in ascending order leave full pages behind. */
    bool ascending = slot == node->count && !node->next;
    node_split(node, ascending ? node->count : node->count / 2u, right);
    right->next = node->next;
    right->prev = page;
    if (node->next)
        btree_node(tree, node->next)->prev = right_page;
    node->next = right_page;
    return right_page;
}

static void grow(struct btree *tree, uint32_t left, uint64_t key, uint32_t right)
{
    uint32_t page = pager_allocate(tree->pager);
    struct node *root = btree_node(tree, page);
    node_init(root, btree_node(tree, left)->level + 1u, sizeof(uint32_t));
    node_insert(root, 0, 0, &left);
    node_insert(root, 1, key, &right);
    tree->root = page;
}

int btree_insert(struct btree *tree, uint64_t key, const void *value)
{
    struct path path;
    if (descend(tree, key, &path))
        return DEMO_EXISTS;
    if (!pager_reserve(tree->pager, path.depth + 2))
        return DEMO_NO_MEMORY;
    uint32_t depth = path.depth;
    uint32_t right;
    for (;;) {
        uint32_t slot = path.slot[depth];
        struct node *node = btree_node(tree, path.page[depth]);
        if (node->count < node_capacity(node)) {
            node_insert(node, slot, key, value);
            return DEMO_OK;
        }
        uint32_t new_page = split(tree, path.page[depth], slot);
        struct node *upper = btree_node(tree, new_page);
        if (slot > node->count || !upper->count)
            node_insert(upper, slot - node->count, key, value);
        else
            node_insert(node, slot, key, value);
        key = node_keys(upper)[0];
        right = new_page;
        value = &right;
        if (!depth)
            break;
        path.slot[--depth]++;
    }
    grow(tree, path.page[0], key, right);
    return DEMO_OK;
}

static void unlink_node(struct btree *tree, struct node *node)
{
    if (node->prev)
        btree_node(tree, node->prev)->next = node->next;
    if (node->next)
        btree_node(tree, node->next)->prev = node->prev;
}

static void shrink(struct btree *tree)
{
    struct node *root = btree_node(tree, tree->root);
    while (root->level && root->count == 1) {
        uint32_t child = node_child(root, 0);
        pager_release(tree->pager, tree->root);
        tree->root = child;
        root = btree_node(tree, child);
    }
}

int btree_remove(struct btree *tree, uint64_t key)
{
    struct path path;
    if (!descend(tree, key, &path))
        return DEMO_MISSING;
    uint32_t depth = path.depth;
    struct node *node = btree_node(tree, path.page[depth]);
    node_remove(node, path.slot[depth]);
    while (!node->count && depth) {
        unlink_node(tree, node);
        pager_release(tree->pager, path.page[depth--]);
        node = btree_node(tree, path.page[depth]);
        node_remove(node, path.slot[depth]);
    }
    shrink(tree);
    return DEMO_OK;
}
