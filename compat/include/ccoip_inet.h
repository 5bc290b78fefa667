/* ccoip_inet.h of PCCL 1.0: its addresses, which are in pccl.h beside it. */
#include "pccl.h"
