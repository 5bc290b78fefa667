/* ccoip_inet.h of PCCL 1.0 defines addresses; here pccl.h beside this file defines them. */
#include "pccl.h"
