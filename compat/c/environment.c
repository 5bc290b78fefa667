/* environment.c: reads the variables of docs/reference/ENVIRONMENT.md as options of the library, as
 * functions of PCCL 1.0 have no arguments for these options. pccl_py reads the same variables. */
#include "compat.h"

#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <xlocale.h>
#endif

static const uint64_t second_ns = 1000000000;

static int is(const char *given, const char *word) { return strcmp(given, word) == 0; }

const char *text_of(const char *variable) {
  const char *given = getenv(variable);
  return given != NULL && given[0] != '\0' ? given : NULL;
}

/* Each of the functions read_ below reads one variable, and leaves *to as it is if the variable is
 * unset. They return 1 for an invalid value, and pccl_last_error() then names the variable. */

static int is_wrong(const char *variable, const char *wanted, const char *given) {
  refuse(pcclInvalidArgument, "%s must be %s, not \"%s\"", variable, wanted, given);
  return 1;
}

static int read_text(const char *variable, const char **to) {
  const char *given = text_of(variable);
  if (given != NULL) *to = given;
  return 0;
}

static int read_u64(const char *variable, uint64_t *to) {
  const char *given = text_of(variable);
  if (given == NULL) return 0;
  char *end = NULL;
  errno = 0;
  unsigned long long value = strtoull(given, &end, 10);
  if (!isdigit((unsigned char)given[0]) || *end != '\0' || errno != 0 || value == 0)
    return is_wrong(variable, "an integer from 1 on", given);
  *to = value;
  return 0;
}

static int read_u32(const char *variable, uint32_t *to) {
  uint64_t value = *to;
  if (read_u64(variable, &value)) return 1;
  if (value > UINT32_MAX) return is_wrong(variable, "an integer below 2^32", text_of(variable));
  *to = (uint32_t)value;
  return 0;
}

static int read_lanes(const char *variable, uint32_t *to) {
  const char *given = text_of(variable);
  return given != NULL && is(given, "auto") ? 0 : read_u32(variable, to);
}

/* Reads 1.5 even if the program's locale writes 1,5. Only PCCL_RECONNECT_TIMEOUT may be 0. */
static int read_seconds(const char *variable, uint64_t *to) {
  const char *given = text_of(variable);
  if (given == NULL) return 0;
  char *end = NULL;
  locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0), programs = uselocale(plain);
  double seconds = strtod(given, &end);
  uselocale(programs);
  if (plain != (locale_t)0) freelocale(plain);
  int may_be_zero = is(variable, "PCCL_RECONNECT_TIMEOUT") && end != given;
  if (*end != '\0' || !(seconds > 0 || (may_be_zero && seconds == 0)) || seconds > 1e9)
    return is_wrong(variable, "a number of seconds above 0", given);
  *to = (uint64_t)(seconds * 1e9);
  if (*to == 0) *to = 1; /* 0 ns would mean the default; 1 ns means none */
  return 0;
}

static int read_congestion(const char *variable, pccl_congestion_t *to) {
  const char *given = text_of(variable);
  if (given == NULL) return 0;
  if (is(given, "auto")) *to = PCCL_CONGESTION_AUTO;
  else if (is(given, "system")) *to = PCCL_CONGESTION_SYSTEM;
  else if (is(given, "bbr")) *to = PCCL_CONGESTION_BBR;
  else if (is(given, "cubic")) *to = PCCL_CONGESTION_CUBIC;
  else return is_wrong(variable, "auto, system, bbr or cubic", given);
  return 0;
}

static int read_probe(const char *variable, pccl_probe_t *to) {
  const char *given = text_of(variable);
  if (given == NULL) return 0;
  if (is(given, "auto")) *to = PCCL_PROBE_AUTO;
  else if (is(given, "off")) *to = PCCL_PROBE_OFF;
  else return is_wrong(variable, "auto or off", given);
  return 0;
}

static int read_plans(const char *variable, pccl_plans_t *to) {
  const char *given = text_of(variable);
  if (given == NULL) return 0;
  if (is(given, "auto")) *to = PCCL_PLANS_AUTO;
  else if (is(given, "fixed")) *to = PCCL_PLANS_FIXED;
  else return is_wrong(variable, "auto or fixed", given);
  return 0;
}

/* Parses the rates only to name the variable in an error; the library parses them again. */
static int read_rates(const char *variable, const char **to) {
  uint64_t rate = 0;
  const char *given = text_of(variable);
  if (given != NULL && pccl_rate_parse(given, variable, &rate) != PCCL_OK) return 1;
  return read_text(variable, to);
}

static int read_run_id(const char *variable, uint8_t to[16]) {
  const char *given = text_of(variable);
  if (given == NULL) return 0;
  if (strlen(given) != 32 || strspn(given, "0123456789abcdefABCDEF") != 32)
    return is_wrong(variable, "32 hexadecimal digits", given);
  for (int at = 0; at < 16; at++) sscanf(&given[2 * at], "%2hhx", &to[at]);
  return 0;
}

/* Writes a label: %h becomes the host, %p the process id, %% becomes %. A label that is too long is
 * cut here, and the library refuses it. */
static void fill_in(const char *pattern, char label[LABEL_BYTES_MAX]) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  size_t length = 0;
  for (const char *at = pattern; *at != '\0' && length < LABEL_BYTES_MAX - 1; at++) {
    char *to = label + length;
    size_t room = LABEL_BYTES_MAX - length;
    int is_place = 1;
    switch (at[0] == '%' ? at[1] : '\0') {
      case 'h': snprintf(to, room, "%s", host); break;
      case 'p': snprintf(to, room, "%ld", (long)getpid()); break;
      case '%': snprintf(to, room, "%%"); break;
      default: snprintf(to, room, "%c", at[0]), is_place = 0;
    }
    length += strlen(to);
    at += is_place;
  }
}

pcclResult_t read_peer_options(pccl_comm_options_t *to, char label[LABEL_BYTES_MAX]) {
  *to = (pccl_comm_options_t)PCCL_COMM_OPTIONS_INIT;
  to->ports = "48149-49148"; /* the ports on which peers of PCCL 1.0 listen */
  to->connect_ns = second_ns;
  /* In PCCL 1.0 calls wait for late peers without a limit, and fail when the master is gone. */
  to->deadline_ns = UINT64_MAX;
  to->reconnect_timeout_ns = 5 * second_ns;
  int wrong = read_text("PCCL_GROUP", &to->group) || read_text("PCCL_BIND", &to->bind) ||
              read_text("PCCL_ADVERTISE", &to->advertise) ||
              read_u32("PCCL_INITIAL_WORLD_SIZE", &to->initial_world_size) ||
              read_seconds("PCCL_DEADLINE", &to->deadline_ns) ||
              read_text("PCCL_PORTS", &to->ports) || read_text("PCCL_LABEL", &to->label) ||
              read_seconds("PCCL_RECONNECT_TIMEOUT", &to->reconnect_timeout_ns) ||
              read_congestion("PCCL_CONGESTION", &to->congestion) ||
              read_probe("PCCL_PROBE", &to->probe) ||
              read_rates("PCCL_SEND_RATE", &to->send_rates);
  if (to->label != NULL) {
    fill_in(to->label, label);
    to->label = label;
  }
  return wrong ? pcclInvalidArgument : pcclSuccess;
}

pcclResult_t read_master_options(pccl_coordinator_options_t *to, uint8_t run_id[16]) {
  *to = (pccl_coordinator_options_t)PCCL_COORDINATOR_OPTIONS_INIT;
  to->run_id = memcpy(run_id, RUN_ID, 16);
  int wrong = read_text("PCCL_COORDINATOR_ADVERTISE", &to->advertise) ||
              read_run_id("PCCL_COORDINATOR_RUN_ID", run_id) ||
              read_u32("PCCL_COORDINATOR_MIN_WORLD_SIZE", &to->min_world_size) ||
              read_u32("PCCL_COORDINATOR_INITIAL_WORLD_SIZE", &to->initial_world_size) ||
              read_lanes("PCCL_COORDINATOR_LANES_PER_LINK", &to->lanes_per_link) ||
              read_u32("PCCL_COORDINATOR_CHUNK_BYTES", &to->chunk_bytes) ||
              read_u64("PCCL_COORDINATOR_WINDOW_BYTES", &to->window_bytes) ||
              read_seconds("PCCL_COORDINATOR_HEARTBEAT", &to->heartbeat_ns) ||
              read_seconds("PCCL_COORDINATOR_SILENCE", &to->silence_ns) ||
              read_seconds("PCCL_COORDINATOR_PREPARE", &to->prepare_ns) ||
              read_text("PCCL_COORDINATOR_STATE", &to->state_dir) ||
              read_seconds("PCCL_COORDINATOR_STALL_WARNING", &to->stall_warning_ns) ||
              read_seconds("PCCL_COORDINATOR_STALL", &to->stall_ns) ||
              read_u64("PCCL_COORDINATOR_MEMORY", &to->memory_bytes) ||
              read_probe("PCCL_COORDINATOR_PROBE", &to->probe) ||
              read_plans("PCCL_COORDINATOR_PLANS", &to->plans);
  return wrong ? pcclInvalidArgument : pcclSuccess;
}
