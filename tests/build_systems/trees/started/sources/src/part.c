int part(void) { return PART; }
