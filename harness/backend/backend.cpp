#include "harness/backend/backend.h"

#include "harness/base/error.h"

namespace eb::backend {

std::unique_ptr<Registration> Backend::register_numa(NumaMemory& /*memory*/) {
  fail(Exit::failure, "storage.backing cuda-host-numa: device.backend {} cannot read such memory", device().backend);
}

Observed Backend::end_observation() {
  Observed seen;
  seen.no_spans = fmt::format("device.backend {} keeps no record of single kernels", device().backend);
  return seen;
}

// The fake's scripts and the error texts use these names: they are part of the scenario format.
const char* name(OpKind kind) noexcept {
  switch (kind) {
    case OpKind::hash:
      return "hash";
    case OpKind::id_exchange:
      return "id_exchange";
    case OpKind::sort:
      return "sort";
    case OpKind::lookup:
      return "lookup";
    case OpKind::row_exchange:
      return "row_exchange";
    case OpKind::row_select:
      return "row_select";
    case OpKind::gather:
      return "gather";
    case OpKind::gather_select:
      return "gather_select";
    case OpKind::wkv:
      return "wkv";
    case OpKind::wkv_gather:
      return "wkv_gather";
    case OpKind::wkv_select:
      return "wkv_select";
    case OpKind::gate:
      return "gate";
    case OpKind::backbone:
      return "backbone";
    case OpKind::expert_exchange:
      return "expert_exchange";
    case OpKind::control_gather:
      return "control_gather";
    case OpKind::inject:
      return "inject";
    case OpKind::gather_rows:
      return "gather_rows";
    case OpKind::copy:
      return "copy";
    case OpKind::fill:
      return "fill";
  }
  return "unknown";
}

}  // namespace eb::backend
