// inspect: the domain alone, as JSON, to check against other code. Touches no table and no NUMA node.
#include "harness/cli/inspect.h"

#include <map>
#include <memory>

#include "harness/cli/cli.h"

namespace eb::cli {

namespace {

using inspect::Layout;
using inspect::Options;

void add_model(CLI::App& app, Options& o) {
  app.add_option("--model", o.model, "Preset, or a JSON file with the keys that a scenario has under \"model\"")
      ->capture_default_str();
  app.add_option("--table-scale", o.table_scale, "Scales the start of the prime search");
  app.add_option("--layer", o.layer, "This backbone layer only");
}

void add_ranks(CLI::App& app, Options& o) {
  app.add_option("--tp", o.tp, "Ranks of a replica")->capture_default_str();
  app.add_option("--dp", o.dp, "Replicas")->capture_default_str();
  app.add_option("--host-of-rank", o.host_of_rank, "Host of each rank, as 0,0,1,1 (default: one host)")->delimiter(',');
}

void add_tokens(CLI::App& app, Options& o) {
  app.add_option("--tokens", o.tokens,
                 "Raw token ids: a JSON list (-1 = dead) or binary little-endian uint32; - = stdin")
      ->required();
  app.add_option("--token-map", o.token_map, "identity, or a file: JSON list or binary little-endian uint32")
      ->capture_default_str();
  app.add_option("--chunks", o.chunks, "Hash in pieces of so many tokens, as 7,1,64; the last size repeats")
      ->delimiter(',');
}

CLI::Option* add_shards_option(CLI::App& app, Options& o, const char* text) {
  return app.add_option("--shards", o.shards, text);
}

void add_table_mode(CLI::App& app, Options& o) {
  const std::map<std::string, engram::TableMode> modes = {{"shared", engram::TableMode::shared},
                                                          {"private", engram::TableMode::private_},
                                                          {"dp_sharded", engram::TableMode::dp_sharded}};
  app.add_option("--table-mode", o.table_mode, "shared, private or dp_sharded (default: shared)")
      ->transform(CLI::CheckedTransformer(modes).description(""))
      ->type_name("MODE");
}

void add_ledger_options(CLI::App& app, Options& o) {
  const std::map<std::string, Layout> layouts = {{"split", Layout::split}, {"interleaved", Layout::interleaved}};
  app.add_option("--layout", o.layout, "split or interleaved (default: split)")
      ->transform(CLI::CheckedTransformer(layouts).description(""))
      ->type_name("LAYOUT");
  app.add_option("--max-tokens", o.max_tokens, "Tokens of the largest step of a replica")->capture_default_str();
  app.add_option("--copies", o.copies, "NUMA nodes with a reader, for each shard, as 2,1 (default: one copy)")
      ->delimiter(',');
  app.add_flag("--power-of-two", o.power_of_two, "Pinned allocations round up to a power of two");
}

}  // namespace

void add_inspect(CLI::App& app, const Globals&, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("inspect", "Show the domain as JSON: geometry, shards, groups, ids, rows, bytes");
  command->require_subcommand(1);
  const auto add = [&](const char* name, const char* text, int (*run)(const Options&)) -> CLI::App& {
    CLI::App* sub = command->add_subcommand(name, text);
    sub->callback([&action, options, run] { action = [options, run] { return run(*options); }; });
    return *sub;
  };
  Options& o = *options;
  CLI::App& layout = add("layout", "Rows, primes, offsets, multipliers and bytes of each layer", inspect::show_layout);
  add_model(layout, o);
  CLI::App& shards = add("shards", "Columns and rows of each shard", inspect::show_shards);
  add_model(shards, o);
  add_ranks(shards, o);
  add_table_mode(shards, o);
  CLI::Option* number = add_shards_option(shards, o, "So many shards, instead of those of --tp, --dp and --table-mode");
  for (const char* other : {"--tp", "--dp", "--host-of-rank", "--table-mode"})
    number->excludes(shards.get_option(other));
  CLI::App& groups = add("groups", "Replicas that may share one copy of the tables", inspect::show_groups);
  add_ranks(groups, o);
  CLI::App& hash = add("hash", "Row ids of tokens: ids[token][layer][column]", inspect::show_hash);
  add_model(hash, o);
  add_tokens(hash, o);
  CLI::App& lookup = add("lookup", "Rows of tokens as BF16 bit patterns, with their SHA-256", inspect::show_lookup);
  add_model(lookup, o);
  add_tokens(lookup, o);
  add_shards_option(lookup, o, "Shards of the hash columns (default: 1)");
  lookup.add_option("--shard", o.shard, "The shard that looks up");
  lookup.add_option("--seed", o.seed, "Seed of the synthetic content")->capture_default_str();
  lookup.add_option("--checkpoint", o.checkpoint, "Folder of safetensors files, instead of synthetic content");
  CLI::App& ledger = add("ledger", "Bytes that the tables and the staging of a host need", inspect::show_ledger);
  add_model(ledger, o);
  add_ranks(ledger, o);
  add_table_mode(ledger, o);
  add_ledger_options(ledger, o);
  add("stats", "Statistics of JSON requests on standard input, for tests", inspect::show_stats).group("");
}

}  // namespace eb::cli
