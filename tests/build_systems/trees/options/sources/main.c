#include <stdio.h>
int part(void);
int other(void);
int main(void) { printf("%d %d %d %d\n", C, part(), other(), (int)sizeof(uint16_t)); return 0; }
