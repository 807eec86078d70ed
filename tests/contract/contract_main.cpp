// A rank of this program is the real one, with two things added: between registration and load each leader fills its
// tables with a pattern, and before a slot each rank sums up the whole mapping.
#include <cstring>
#include <nlohmann/json.hpp>

#include "harness/rank/rank_parts.h"
#include "tests/contract/content_sum.h"
#include "tests/rank_program.h"

namespace eb::contract {
namespace {

class Summed : public rank::SlotRunner {
 public:
  Summed(std::unique_ptr<rank::SlotRunner> real, const rank::TableStorage& storage)
      : real_(std::move(real)), storage_(storage) {}

  rank::SlotResult run(const control::RunSlot& slot, const plan::Scenario& arm) override {
    const Mapping& mapping = storage_.mapping();
    const auto bytes = static_cast<std::size_t>(storage_.places().bytes);
    const std::string content = content_sum(std::span(mapping.data(), mapping ? bytes : 0));
    rank::SlotResult result = real_->run(slot, arm);
    auto facts = nlohmann::json::parse(result.facts_json);
    facts["mapping_content"] = content;
    result.facts_json = facts.dump();
    return result;
  }

 private:
  std::unique_ptr<rank::SlotRunner> real_;
  const rank::TableStorage& storage_;
};

rank::RankParts parts_with_sums() {
  rank::RankParts parts = rank::real_parts();
  parts.make_runner = [make = parts.make_runner](const rank::RankContext& context, backend::Backend& backend,
                                                 const rank::TableStorage& storage,
                                                 const rank::RowReference& reference) {
    return std::make_unique<Summed>(make(context, backend, storage, reference), storage);
  };
  parts.take_snapshot = [take = parts.take_snapshot](const rank::RankContext& context,
                                                     const rank::TableStorage& storage, const std::string& label) {
    const Mapping& mapping = storage.mapping();
    // A value that no loaded byte area has: rows are random, and what lies between them is 0.
    if (label == "after_register" && storage.leader()) std::memset(mapping.data(), 0xA5, mapping.size());
    return take(context, storage, label);
  };
  return parts;
}

}  // namespace
}  // namespace eb::contract

int main(int argc, char** argv) { return eb::test_or_rank_main(argc, argv, eb::contract::parts_with_sums); }
