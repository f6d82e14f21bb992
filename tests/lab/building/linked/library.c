int part0(int x) { return x * 3 + 0; }
int part1(int x) { return x * 4 + 1; }
int part2(int x) { return x * 5 + 2; }
int part3(int x) { return x * 6 + 3; }
int part4(int x) { return x * 7 + 4; }
int part5(int x) { return x * 8 + 5; }
int part6(int x) { return x * 9 + 6; }
int part7(int x) { return x * 10 + 7; }
int part8(int x) { return x * 11 + 8; }
int part9(int x) { return x * 12 + 9; }
int part10(int x) { return x * 13 + 10; }
int part11(int x) { return x * 14 + 11; }
static int last(int x) { return x ^ 5; }
int whole(int x) { return last(x) + 1; }
