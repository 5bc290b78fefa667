/* embed: a program with its own event loop averages numbers with other peers, and works meanwhile.
 *
 * Usage: `pccl run -n 2 -- ./embed 3`, three rounds. While a round is under way, the program reads
 * stdin: `?` prints the round, and `q` leaves the run. Every 10 ms it does other work (a tick).
 *
 * Shows pccl_work_fd: one poll() waits for all of this, on one thread. Connecting and the safe
 * point block, so the program does both before the loop; another thread could do them as well.
 * README.md beside this file has the build command; docs/guides/C.md explains embedding.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "pccl.h"

enum { COUNT = 4 << 20, TICK_MS = 10 };

static float numbers[COUNT];

static void check(pccl_status_t status, const char *what) {
  if (status == PCCL_OK) return;
  fprintf(stderr, "embed: %s: %s: %s\n", what, pccl_status_name(status), pccl_last_error());
  exit(1);
}

/* Begins an all_reduce, in place, and sets `finished` to its descriptor. Returns at once. */
static pccl_work_t *begin(pccl_comm_t *comm, struct pollfd *finished) {
  pccl_collective_options_t options = PCCL_COLLECTIVE_OPTIONS_INIT;
  options.op = PCCL_AVG;
  pccl_work_t *work = NULL;
  check(pccl_all_reduce_async(comm, numbers, numbers, COUNT, PCCL_F32, &options, &work), "begin");
  check(pccl_work_fd(work, &finished->fd), "descriptor");
  return work;
}

int main(int argc, char **argv) {
  const char *token = getenv("PCCL_TOKEN"), *peers = getenv("PCCL_INITIAL_WORLD_SIZE");
  if (argc != 2) {
    fprintf(stderr, "usage: pccl run -n 2 -- ./embed ROUNDS\n");
    return 2;
  }
  if (token == NULL) {
    fprintf(stderr, "embed: no token: start it with `pccl run -n 2 -- ./embed 3`, or set "
                    "PCCL_TOKEN\n");
    return 2;
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  pccl_comm_options_t options = PCCL_COMM_OPTIONS_INIT;
  options.bind = getenv("PCCL_BIND"); /* NULL: chosen */
  options.initial_world_size = peers ? (uint32_t)strtoul(peers, NULL, 10) : 2;
  pccl_comm_t *comm = NULL;
  check(pccl_comm_create(token, &options, &comm), "connect");
  pccl_admission_t admission = PCCL_ADMISSION_INIT;
  check(pccl_comm_admit(comm, 0, &admission), "admit");
  for (int i = 0; i < COUNT; i++) numbers[i] = (float)admission.rank;

  int rounds = atoi(argv[1]), round = 1, ticks = 0;
  struct pollfd waiting[] = {{STDIN_FILENO, POLLIN, 0}, {-1, POLLIN, 0}};
  pccl_work_t *work = rounds > 0 ? begin(comm, &waiting[1]) : NULL;
  while (work != NULL) {
    int ready = poll(waiting, 2, TICK_MS);
    if (ready < 0 && errno != EINTR) {
      perror("embed: poll");
      return 1;
    }
    if (ready <= 0) {
      ticks += 1; /* a real program does its other work here */
      continue;
    }
    if (waiting[0].revents != 0) {
      char key;
      if (read(STDIN_FILENO, &key, 1) != 1) waiting[0].fd = -1; /* stdin has ended */
      else if (key == '?') printf("round %d of %d is under way\n", round, rounds);
      else if (key == 'q') break;
    }
    if (waiting[1].revents != 0) {
      pccl_status_t status = pccl_work_wait(work, 0); /* does not block: the work is finished */
      if (status == PCCL_ABORTED) { /* a deadline passed: on all peers, `numbers` are unchanged */
        printf("round %d again: %s\n", round, pccl_last_error());
      } else {
        check(status, "all_reduce");
        printf("round %d: average %g, %d ticks meanwhile\n", round++, numbers[0], ticks);
      }
      ticks = 0;
      pccl_work_destroy(work); /* also closes the descriptor */
      work = round <= rounds ? begin(comm, &waiting[1]) : NULL;
    }
  }
  pccl_work_destroy(work); /* other peers finish a round under way without this peer */
  check(pccl_comm_close(comm), "close");
  pccl_comm_destroy(comm);
  return 0;
}
