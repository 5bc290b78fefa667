/* ccoip.h of PCCL 1.0: the port of its masters, which is in pccl.h beside it. */
#include "pccl.h"
