#include "engine.h"

enum { KEYS = 4096, ROW = 96 };
static unsigned keys[KEYS];
static unsigned char row[ROW], packed[ROW];

void fill(void)
{
	for (int i = 0; i < KEYS; i++)
		keys[i] = 3 * i;
	for (int i = 0; i < ROW; i++)
		row[i] = i;
}

static int less(unsigned key, unsigned other)
{
	return key < other;
}

__attribute__((noinline)) int slot_of(unsigned key)
{
	int low = 0, high = KEYS;
	while (low < high) {
		int middle = (low + high) / 2;
		if (less(keys[middle], key))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

__attribute__((noinline)) static unsigned write_row(unsigned key)
{
	unsigned sum = key;
	for (int i = 0; i < ROW; i++) {
		sum = sum * 33 + row[i];
		packed[i] = sum >> 7;
	}
	return sum + packed[key % ROW];
}

unsigned long page_insert(unsigned key)
{
	return slot_of(key * 2654435761u % (3 * KEYS)) + write_row(key) + row_hash(packed, ROW);
}
