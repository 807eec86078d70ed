// The pieces the key table is put together from. Internal to harness/plan.
#pragma once

#include <vector>

#include "harness/plan/key_builders.h"

namespace eb::plan {

void add_model_rows(std::vector<Key>& rows);    // name, question, seed, model, parallel, device
void add_storage_rows(std::vector<Key>& rows);  // storage, prefetch
void add_load_rows(std::vector<Key>& rows);     // workload, experiment, slo, fault

}  // namespace eb::plan
