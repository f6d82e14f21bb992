/* What the tests of the lab measure: an operation of so much arithmetic. */
#include <stdint.h>
#include "rounds.h"

static volatile uint64_t total;

uint64_t operation(void) {
    uint64_t state = 1;
    for (uint64_t i = 0; i < ROUNDS; i++)
        state = state * 6364136223846793005ULL + i;
    total += state;
    return state;
}
