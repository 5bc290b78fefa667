/* compat.h: what the files of this folder share. They do what ../include/pccl.h, the header of
 * PCCL 1.0, promises, by functions of ../../include/pccl.h alone: any program in C could do it. The
 * Python package beside this folder does the same, and both may be in one run. */
#ifndef PCCL_COMPAT_H
#define PCCL_COMPAT_H

#include "../../include/pccl.h"
#include "../include/pccl.h"

/* The run id of every master that has no other one: who knows the address of a master can join, as
 * with PCCL 1.0. It has 16 bytes, and is that of the Python package as well. */
#define RUN_ID "pccl 1.0 has one"

enum { ADDRESS_BYTES_MAX = 64, LABEL_BYTES_MAX = 512 };

/* Returns from the function that calls it unless the call succeeds. */
#define TRY(call)                                  \
  do {                                             \
    pcclResult_t tried = (call);                   \
    if (tried != pcclSuccess) return tried;        \
  } while (0)

/* ---- result.c */

/* Keeps the sentence for pccl_last_error(), and returns the result. */
pcclResult_t refuse(pcclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
pcclResult_t is_null(const char *what);
pcclResult_t out_of_memory(void);
/* The result of a status, which has its sentence. `lost` stands for the loss of peers and for a
 * deadline. */
pcclResult_t result_of(pccl_status_t status, pcclResult_t lost);

/* ---- environment.c */

/* The text of a variable; NULL if it is unset or empty. */
const char *text_of(const char *variable);
/* The options of a peer. `label` holds the label that they point to. */
pcclResult_t read_peer_options(pccl_comm_options_t *options, char label[LABEL_BYTES_MAX]);
/* The options of a master, without its address. */
pcclResult_t read_master_options(pccl_coordinator_options_t *options, uint8_t run_id[16]);

/* ---- master.c */

/* "1.2.3.4:48148" or "[2001:db8::1]:48148" */
pcclResult_t write_address(const ccoip_socket_address_t *from, char text[ADDRESS_BYTES_MAX]);

#endif /* PCCL_COMPAT_H */
