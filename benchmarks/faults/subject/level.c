#include "level.h"

double level(void) { return LEVEL; }
int number(void) { return NUMBER; }
