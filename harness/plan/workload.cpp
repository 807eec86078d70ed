#include <algorithm>
#include <numeric>

#include "harness/plan/scenario.h"

namespace eb::plan {

namespace {
std::int64_t tokens_of(const Batch& batch) {
  return std::accumulate(batch.prefill.begin(), batch.prefill.end(), batch.decode);
}
}  // namespace

bool ActiveReaders::reads(int rank) const noexcept {
  if (!ranks.empty()) return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  return first == 0 || rank < first;
}

std::vector<Batch> WorkloadSpec::batches_of(int replica) const {
  std::vector<Batch> own;
  std::copy_if(batches.begin(), batches.end(), std::back_inserter(own),
               [&](const Batch& batch) { return batch.replica < 0 || batch.replica == replica; });
  return own;
}

std::int64_t WorkloadSpec::step_tokens(int replica, std::int64_t step) const {
  const std::vector<Batch> own = batches_of(replica);
  if (own.empty()) return 0;
  return tokens_of(own[static_cast<std::size_t>(step) % own.size()]);
}

std::int64_t WorkloadSpec::max_tokens(int dp) const {
  std::int64_t most = 0;
  for (const Batch& batch : batches) {
    if (batch.replica < dp) most = std::max(most, tokens_of(batch));
  }
  return most;
}

}  // namespace eb::plan
