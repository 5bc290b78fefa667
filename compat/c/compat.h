/* compat.h: declarations that the C files of this folder share. The C files implement
 * ../include/pccl.h, the header of PCCL 1.0, by functions of ../../include/pccl.h alone. The Python
 * package ../pccl implements PCCL 1.0 too; a run may have peers in C and peers in Python. */
#ifndef PCCL_COMPAT_H
#define PCCL_COMPAT_H

#include "../../include/pccl.h"
#include "../include/pccl.h"

/* The run id, 16 bytes, of every master without PCCL_COORDINATOR_RUN_ID: as the run id is fixed, a
 * peer needs only the master's address to join, as with PCCL 1.0. ../pccl has the same run id. */
#define RUN_ID "pccl 1.0 has one"

enum { ADDRESS_BYTES_MAX = 64, LABEL_BYTES_MAX = 512 };

/* Returns from the function that calls it unless the call succeeds. */
#define TRY(call)                                  \
  do {                                             \
    pcclResult_t tried = (call);                   \
    if (tried != pcclSuccess) return tried;        \
  } while (0)

/* ---- result.c */

/* Makes the sentence this thread's pccl_last_error(), and returns `result`. */
pcclResult_t refuse(pcclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
pcclResult_t is_null(const char *what);
pcclResult_t out_of_memory(void);
/* Translates a status, which leaves its sentence in pccl_last_error(). `lost` is the result for the
 * loss of peers and for a passed deadline. */
pcclResult_t result_of(pccl_status_t status, pcclResult_t lost);

/* ---- environment.c */

/* The text of an environment variable; NULL if the variable is unset or empty. */
const char *text_of(const char *variable);
/* Reads the options of a peer from the environment. `label` holds the label that they point to. */
pcclResult_t read_peer_options(pccl_comm_options_t *options, char label[LABEL_BYTES_MAX]);
/* Reads the options of a master, but not its address, from the environment. `run_id` holds the run
 * id that they point to. */
pcclResult_t read_master_options(pccl_coordinator_options_t *options, uint8_t run_id[16]);

/* ---- master.c */

/* Writes an address as text: "1.2.3.4:48148" or "[2001:db8::1]:48148". */
pcclResult_t write_address(const ccoip_socket_address_t *from, char text[ADDRESS_BYTES_MAX]);

#endif /* PCCL_COMPAT_H */
