
static int less(int a, int b)
{
	return a < b;
}

static int slot_of(const int *keys, int used, int key)
{
	int i = 0;
	while (i < used && less(keys[i], key))
		i++;
	return i;
}

int page_insert(int *keys, int used, int key)
{
	return slot_of(keys, used, key) + 1;
}

int page_size(void)
{
	return 4096;
}
