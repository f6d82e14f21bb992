#include <stdio.h>
int part(void);
int main(void) { printf("%d\n", part()); return 0; }
