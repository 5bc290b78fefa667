/* average: every process contributes an array of numbers; all end with the same averages.
 *
 * Usage: `pccl run -n 2 -- ./average 3`, which starts a coordinator and two processes.
 *
 * Shows the least that a C program needs: connect, the safe point, one all_reduce, the outcome.
 * include/pccl.h is the contract of each call; README.md beside this file has the build command.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "pccl.h"

enum { COUNT = 1000 };

/* Prints the sentence that a failed call has left in pccl_last_error(), and exits. */
static void check(pccl_status_t status, const char *what) {
  if (status == PCCL_OK) return;
  fprintf(stderr, "average: %s: %s: %s\n", what, pccl_status_name(status), pccl_last_error());
  exit(1);
}

static uint32_t number_in(const char *variable, uint32_t otherwise) {
  const char *text = getenv(variable);
  return text ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}

int main(int argc, char **argv) {
  const char *token = getenv("PCCL_TOKEN");
  if (argc != 2) {
    fprintf(stderr, "usage: pccl run -n 2 -- ./average VALUE\n");
    return 2;
  }
  if (token == NULL) {
    fprintf(stderr, "average: no token: start it with `pccl run -n 2 -- ./average 3`, or set "
                    "PCCL_TOKEN\n");
    return 2;
  }

  /* Join the run. The first epoch begins when initial_world_size peers have joined. */
  pccl_comm_options_t options = PCCL_COMM_OPTIONS_INIT;
  options.bind = getenv("PCCL_BIND"); /* NULL: chosen */
  options.initial_world_size = number_in("PCCL_INITIAL_WORLD_SIZE", 2);
  pccl_comm_t *comm = NULL;
  check(pccl_comm_create(token, &options, &comm), "connect");

  /* The safe point: newcomers enter here, and this peer learns its rank. */
  pccl_admission_t admission = PCCL_ADMISSION_INIT;
  check(pccl_comm_admit(comm, 0, &admission), "admit");

  /* Rank r contributes VALUE + r at every position. In place: an error leaves it unchanged. */
  float numbers[COUNT];
  for (int i = 0; i < COUNT; i++) numbers[i] = strtof(argv[1], NULL) + (float)admission.rank;
  pccl_collective_options_t reduce = PCCL_COLLECTIVE_OPTIONS_INIT;
  reduce.op = PCCL_AVG;
  pccl_work_t *work = NULL;
  check(pccl_all_reduce(comm, numbers, numbers, COUNT, PCCL_F32, &reduce, &work), "all_reduce");

  /* Print the contributors, and the digest of the result, which is the same on every peer. */
  pccl_outcome_t outcome = PCCL_OUTCOME_INIT;
  check(pccl_work_outcome(work, &outcome), "outcome");
  pccl_outcome_range_t range = PCCL_OUTCOME_RANGE_INIT;
  check(pccl_work_range(work, 0, &range, NULL, 0), "range");
  printf("rank %" PRIu32 " of %" PRIu32 ": average %g of %" PRIu32 " contributors, digest ",
         admission.rank, admission.world_size, numbers[COUNT - 1], range.contributor_count);
  for (int i = 0; i < 4; i++) printf("%02x", outcome.digest[i]);
  printf("\n");

  pccl_work_destroy(work);
  check(pccl_comm_close(comm), "close");
  pccl_comm_destroy(comm);
  return 0;
}
