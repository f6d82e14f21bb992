#include "cursor.h"

static void skip_end_of_leaf(struct cursor *cursor)
{
    if (cursor->slot == cursor->leaf->count && cursor->leaf->next) {
        cursor->leaf = btree_node(cursor->tree, cursor->leaf->next);
        cursor->slot = 0;
    }
}

void cursor_seek(struct cursor *cursor, const struct btree *tree, uint64_t key)
{
    cursor->tree = tree;
    cursor->leaf = btree_leaf(tree, key);
    cursor->slot = node_lower_bound(cursor->leaf, key);
    skip_end_of_leaf(cursor);
}

void cursor_next(struct cursor *cursor)
{
    cursor->slot++;
    skip_end_of_leaf(cursor);
}
