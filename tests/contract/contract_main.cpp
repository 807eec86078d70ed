// The program is also the rank process: the supervisor starts /proc/self/exe with the word "rank". The rank is the real
// one, with two things added: between registration and load each leader fills its tables with a pattern, and before a
// slot each rank takes the hash of the whole mapping.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "harness/base/sha256.h"
#include "harness/control/channel.h"
#include "harness/rank/rank_main.h"
#include "harness/rank/rank_parts.h"
#include "harness/supervise/reroll.h"

namespace eb {
namespace {

class Hashed : public rank::SlotRunner {
 public:
  Hashed(std::unique_ptr<rank::SlotRunner> real, const rank::TableStorage& storage)
      : real_(std::move(real)), storage_(storage) {}

  rank::SlotResult run(const control::RunSlot& slot, const plan::Scenario& arm) override {
    const Mapping& mapping = storage_.mapping();
    const auto bytes = static_cast<std::size_t>(storage_.places().bytes);
    const std::string hash = sha256_hex(std::as_bytes(std::span(mapping.data(), mapping ? bytes : 0)));
    rank::SlotResult result = real_->run(slot, arm);
    auto facts = nlohmann::json::parse(result.facts_json);
    facts["mapping_sha256"] = hash;
    result.facts_json = facts.dump();
    return result;
  }

 private:
  std::unique_ptr<rank::SlotRunner> real_;
  const rank::TableStorage& storage_;
};

int rank_process(int fd) {
  rank::RankParts parts = rank::real_parts();
  parts.make_runner = [make = parts.make_runner](const rank::RankContext& context, backend::Backend& backend,
                                                 const rank::TableStorage& storage,
                                                 const rank::RowReference& reference) {
    return std::make_unique<Hashed>(make(context, backend, storage, reference), storage);
  };
  parts.take_snapshot = [take = parts.take_snapshot](const rank::RankContext& context,
                                                     const rank::TableStorage& storage, const std::string& label) {
    const Mapping& mapping = storage.mapping();
    // A value that no loaded byte area has: rows are random, and what lies between them is 0.
    if (label == "after_register" && storage.leader()) std::memset(mapping.data(), 0xA5, mapping.size());
    return take(context, storage, label);
  };
  control::Channel channel{UniqueFd(fd)};
  return rank::run_rank(channel, parts);
}

}  // namespace
}  // namespace eb

int main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "rank") == 0) return eb::rank_process(std::atoi(argv[3]));
  ::testing::InitGoogleTest(&argc, argv);
  eb::supervise::install_signal_handlers();
  return RUN_ALL_TESTS();
}
