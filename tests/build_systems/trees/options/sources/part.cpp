extern "C" int part() { return CXX; }
