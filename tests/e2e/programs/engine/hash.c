#include "engine.h"

unsigned long row_hash(const unsigned char *row, int size)
{
	unsigned long hash = 14695981039346656037ul;
	for (int i = 0; i < size; i++)
		hash = (hash ^ row[i]) * 1099511628211ul;
	return hash;
}
