/* ccoip.h of PCCL 1.0 defines the masters' port; here pccl.h beside this file defines it. */
#include "pccl.h"
