// init_token.cpp: making and reading tokens, and asking a run for its status. The native library
// defines the format of a token; docs/reference/STATUS.md has the schema of the status.
#include "common.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <optional>
#include <string>

namespace pccl_binding {

namespace {

// Overwrites a secret on the stack, where a core file would have it.
void clear(void *bytes, size_t count) {
  volatile uint8_t *to = static_cast<uint8_t *>(bytes);
  for (size_t index = 0; index < count; index++) to[index] = 0;
}

nb::str token_create(const std::string &address, std::optional<nb::bytes> run_id) {
  char token[PCCL_TOKEN_BYTES_MAX];
  const uint8_t *id = run_id ? reinterpret_cast<const uint8_t *>(run_id->c_str()) : nullptr;
  check(pccl_token_create(address.c_str(), id, token, sizeof token));
  nb::str made(token);
  clear(token, sizeof token);
  return made;
}

nb::tuple token_parse(const char *token) {
  pccl_token_info_t info = PCCL_TOKEN_INFO_INIT;
  check(pccl_token_parse(token, &info));
  nb::str address(info.address);
  nb::bytes run_id(reinterpret_cast<const char *>(info.run_id), sizeof info.run_id);
  clear(&info, sizeof info);
  return nb::make_tuple(address, run_id);
}

std::string run_status(const char *token, uint64_t timeout_ns,
                       const std::optional<nb::bytes> &dial_back) {
  pccl_peer_id_t peer = {};
  if (dial_back && dial_back->size() != sizeof peer.bytes)
    throw nb::value_error("a peer id has 16 bytes");
  if (dial_back) std::memcpy(peer.bytes, dial_back->c_str(), sizeof peer.bytes);
  // Room for the longest answer, because a second request would get another answer.
  size_t length = 0;
  std::string json(PCCL_RUN_STATUS_BYTES_MAX, '\0');
  pccl_status_t status;
  {
    Unlocked unlocked;
    status = dial_back ? pccl_run_dial_back(token, &peer, timeout_ns, json.data(),
                                            json.size(), &length)
                       : pccl_run_status(token, timeout_ns, json.data(), json.size(),
                                         &length);
  }
  check(status);
  json.resize(length);
  json.shrink_to_fit();
  return json;
}

}  // namespace

void init_token(nb::module_ &module) {
  module.def("token_create", &token_create, nb::arg("address"), nb::arg("run_id").none(),
             nb::sig("def token_create(address: str, run_id: bytes | None) -> str"),
             "run_id is 16 bytes, or None for random ones; the caller has checked the length.");
  module.def("token_parse", &token_parse, nb::arg("token"),
             nb::sig("def token_parse(token: str) -> tuple[str, bytes]"), "(address, run_id)");
  module.def("run_status", &run_status, nb::arg("token"), nb::arg("timeout_ns"),
             nb::arg("dial_back").none(),
             nb::sig("def run_status(token: str, timeout_ns: int, dial_back: bytes | None) -> str"),
             "JSON of docs/reference/STATUS.md. dial_back: members dial this peer, of 16 bytes.");
}

}  // namespace pccl_binding
