#include "harness/rank/step/events.h"

namespace eb::rank {

const char* name(EventKind kind) noexcept {
  switch (kind) {
    case EventKind::step_start:
      return "step_start";
    case EventKind::ids_ready:
      return "ids_ready";
    case EventKind::id_exchange_start:
      return "id_exchange_start";
    case EventKind::id_exchange_done:
      return "id_exchange_done";
    case EventKind::release:
      return "release";
    case EventKind::lookup_start:
      return "lookup_start";
    case EventKind::lookup_done:
      return "lookup_done";
    case EventKind::consumer_arrival:
      return "consumer_arrival";
    case EventKind::consumer_resumed:
      return "consumer_resumed";
    case EventKind::row_exchange_start:
      return "row_exchange_start";
    case EventKind::row_exchange_done:
      return "row_exchange_done";
    case EventKind::gather_start:
      return "gather_start";
    case EventKind::gather_done:
      return "gather_done";
    case EventKind::wkv_start:
      return "wkv_start";
    case EventKind::wkv_done:
      return "wkv_done";
    case EventKind::wkv_gather_start:
      return "wkv_gather_start";
    case EventKind::wkv_gather_done:
      return "wkv_gather_done";
    case EventKind::gate_done:
      return "gate_done";
    case EventKind::backbone_start:
      return "backbone_start";
    case EventKind::backbone_done:
      return "backbone_done";
    case EventKind::expert_start:
      return "expert_start";
    case EventKind::expert_done:
      return "expert_done";
    case EventKind::step_done:
      return "step_done";
    case EventKind::control_start:
      return "control_start";
    case EventKind::control_done:
      return "control_done";
    case EventKind::launch_start:
      return "launch_start";
    case EventKind::launch_done:
      return "launch_done";
    case EventKind::bare_start:
      return "bare_start";
    case EventKind::bare_done:
      return "bare_done";
  }
  return "unknown";
}

}  // namespace eb::rank
