unsigned long page_insert(unsigned key);
unsigned long row_hash(const unsigned char *row, int size);
void fill(void);
