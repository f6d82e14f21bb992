#include <stdio.h>
int whole(int);
int part0(int);
int own0(int x) { return x - 0 * x; }
int part1(int);
int own1(int x) { return x - 1 * x; }
int part2(int);
int own2(int x) { return x - 2 * x; }
int part3(int);
int own3(int x) { return x - 3 * x; }
int part4(int);
int own4(int x) { return x - 4 * x; }
int part5(int);
int own5(int x) { return x - 5 * x; }
int part6(int);
int own6(int x) { return x - 6 * x; }
int part7(int);
int own7(int x) { return x - 7 * x; }
int part8(int);
int own8(int x) { return x - 8 * x; }
int part9(int);
int own9(int x) { return x - 9 * x; }
int part10(int);
int own10(int x) { return x - 10 * x; }
int part11(int);
int own11(int x) { return x - 11 * x; }
int main(void) {
    int sum = whole(7);
    sum += part0(sum) ^ own0(sum);
    sum += part1(sum) ^ own1(sum);
    sum += part2(sum) ^ own2(sum);
    sum += part3(sum) ^ own3(sum);
    sum += part4(sum) ^ own4(sum);
    sum += part5(sum) ^ own5(sum);
    sum += part6(sum) ^ own6(sum);
    sum += part7(sum) ^ own7(sum);
    sum += part8(sum) ^ own8(sum);
    sum += part9(sum) ^ own9(sum);
    sum += part10(sum) ^ own10(sum);
    sum += part11(sum) ^ own11(sum);
    printf("%d\n", sum);
    return 0;
}
