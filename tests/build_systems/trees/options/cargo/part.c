int part(void) { return C + 0 * sizeof(uint16_t); }
