// nb_all.cpp: nanobind itself, compiled into the extension. It has no code of PCCL, which starts in
// module.cpp. The wrapper exists because nanobind 3.1.0 with libc++ and the limited API uses stdio
// functions without including their header.
#include <cstdio>

#include "nb_combined.cpp"
