// The hash kernel against plain `%`, and against the domain's reference on whole sequences.
#include "kernels/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "harness/engram/geometry.h"
#include "harness/engram/hashing.h"
#include "kernels/cpu_variant.h"

namespace eb::kernels {
namespace {

using Random = std::mt19937_64;

std::int64_t below(Random& random, std::int64_t n) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
}

// The definition, in plain 64-bit arithmetic.
std::vector<std::int32_t> reference(const HashArgs& args) {
  std::vector<std::int32_t> ids;
  for (std::int64_t token = 0; token < args.tokens; ++token) {
    for (int l = 0; l < args.layer_count; ++l) {
      const HashLayer& layer = args.layers[l];
      for (int c = 0; c < args.columns; ++c) {
        std::int64_t rolling = 0;
        bool blocked = false;
        for (int shift = 0; shift < args.column_ngram[c]; ++shift) {
          const std::int32_t id = args.context[args.position[token] - shift];
          blocked = blocked || id < 0;
          rolling ^= (blocked ? args.pad_id : id) * layer.multipliers[shift];
        }
        ids.push_back(static_cast<std::int32_t>(rolling % layer.primes[c] + layer.offsets[c]));
      }
    }
  }
  return ids;
}

void check(HashArgs args) {
  const std::vector<std::int32_t> expected = reference(args);
  for (const CpuVariant variant : supported_variants()) {
    std::vector<std::int32_t> ids(expected.size(), -99);
    args.ids = ids.data();
    const std::int64_t middle = args.tokens / 3;
    hash_tokens(args, 0, middle, variant);
    for (std::size_t i = static_cast<std::size_t>(middle * args.layer_count * args.columns); i < ids.size(); ++i) {
      ASSERT_EQ(ids[i], -99) << "a token outside [first, last) was written";
    }
    hash_tokens(args, middle, args.tokens, variant);
    ASSERT_EQ(ids, expected) << name(variant);
  }
}

// Rolling values over all of 0..2^63-1, divisors from 2 to 2^31 - 1, and those next to a multiple of the divisor, where
// an inexact quotient shows.
TEST(Hash, RemaindersAreExact) {
  Random random(1);
  const std::int64_t limit = std::numeric_limits<std::int64_t>::max();
  for (int round = 0; round < 300; ++round) {
    HashLayer layer{};
    HashArgs args;
    args.columns = static_cast<int>(1 + below(random, kMaxColumns));
    const std::int64_t smallest = round % 3 == 0 ? 2 : round % 3 == 1 ? 4096 : 16'000'000;
    for (int c = 0; c < args.columns; ++c) {
      layer.primes[c] = smallest + below(random, round % 3 == 2 ? 2'000'000 : (std::int64_t{1} << 31) - 1 - smallest);
      if (round % 5 == 0) layer.primes[c] = smallest + below(random, 50);
      args.column_ngram[c] = static_cast<std::int32_t>(2 + c * 3 / args.columns);
    }
    // Shift 0 alone makes the value: id 1 times a chosen 63-bit number, pads of 0 behind it.
    std::vector<std::int32_t> context = {-1, -1, -1, 1};
    const std::vector<std::int32_t> position = {3};
    args.context = context.data();
    args.position = position.data();
    args.tokens = 1;
    args.layers = &layer;
    args.layer_count = 1;
    for (int value = 0; value < 40; ++value) {
      const std::int64_t prime = layer.primes[below(random, args.columns)];
      const std::int64_t multiple = limit / prime - below(random, std::min<std::int64_t>(limit / prime, 1'000'000));
      std::int64_t x = value % 4 == 0   ? below(random, limit)
                       : value % 4 == 1 ? multiple * prime
                       : value % 4 == 2 ? multiple * prime - 1
                                        : limit - below(random, 4);
      layer.multipliers[0] = x;
      check(args);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Hash, RandomBatchesMatchTheDefinition) {
  Random random(2);
  for (int round = 0; round < 100; ++round) {
    HashArgs args;
    args.columns = static_cast<int>(1 + below(random, kMaxColumns));
    args.layer_count = static_cast<int>(1 + below(random, 3));
    args.tokens = below(random, 30);
    const std::int64_t vocab = 2 + below(random, 200'000);
    args.pad_id = static_cast<std::int32_t>(below(random, vocab));
    std::vector<HashLayer> layers(static_cast<std::size_t>(args.layer_count));
    for (HashLayer& layer : layers) {
      for (std::int64_t& multiplier : layer.multipliers) {
        multiplier = below(random, std::numeric_limits<std::int64_t>::max() / vocab / 2) * 2 + 1;
      }
      for (int c = 0; c < args.columns; ++c) {
        layer.primes[c] = 2 + below(random, round % 2 == 0 ? 20'000'000 : 9'000);
        layer.offsets[c] = below(random, 1'000'000'000);
      }
    }
    for (int c = 0; c < args.columns; ++c) args.column_ngram[c] = static_cast<std::int32_t>(2 + below(random, 3));
    std::sort(args.column_ngram, args.column_ngram + args.columns);
    std::vector<std::int32_t> context(static_cast<std::size_t>(args.tokens + 40));
    for (std::int32_t& id : context) {
      id = random() % 5 == 0 ? -1 : static_cast<std::int32_t>(below(random, vocab));
    }
    std::vector<std::int32_t> position(static_cast<std::size_t>(args.tokens));
    for (std::int32_t& at : position) at = static_cast<std::int32_t>(kLookBack + below(random, args.tokens + 30));
    args.context = context.data();
    args.position = position.data();
    args.layers = layers.data();
    check(args);
    if (HasFatalFailure()) return;
  }
}

// Sequences of both presets through the kernel's batch form (look-back slots before the chunk) and through the domain.
TEST(Hash, AgreesWithTheDomain) {
  Random random(3);
  for (const char* preset : {"deepseek-v4.1-flash", "tiny"}) {
    const engram::Geometry geometry = engram::make_geometry(engram::preset(preset), 1.0);
    std::vector<HashLayer> layers;
    for (const engram::LayerGeometry& from : geometry.layers) {
      HashLayer& layer = layers.emplace_back();
      std::copy(from.multipliers.begin(), from.multipliers.end(), layer.multipliers);
      std::copy(from.head_rows.begin(), from.head_rows.end(), layer.primes);
      std::copy(from.head_offsets.begin(), from.head_offsets.end(), layer.offsets);
    }
    HashArgs args;
    args.layers = layers.data();
    args.layer_count = static_cast<int>(layers.size());
    args.columns = geometry.columns;
    for (int c = 0; c < args.columns; ++c) {
      args.column_ngram[c] = geometry.model.ngram_sizes[static_cast<std::size_t>(c / geometry.model.heads_per_ngram)];
    }
    args.pad_id = static_cast<std::int32_t>(below(random, geometry.model.compressed_vocab));
    std::vector<std::int32_t> history(5);
    std::vector<std::int32_t> tokens(200);
    for (auto* list : {&history, &tokens}) {
      for (std::int32_t& id : *list) {
        id = random() % 7 == 0 ? engram::kDeadToken
                               : static_cast<std::int32_t>(below(random, geometry.model.compressed_vocab));
      }
    }
    for (const bool with_history : {false, true}) {
      std::vector<std::int32_t> context = with_history
                                              ? std::vector<std::int32_t>(history.end() - kLookBack, history.end())
                                              : std::vector<std::int32_t>(kLookBack, -1);
      context.insert(context.end(), tokens.begin(), tokens.end());
      std::vector<std::int32_t> position(tokens.size());
      for (std::size_t t = 0; t < tokens.size(); ++t) position[t] = static_cast<std::int32_t>(t) + kLookBack;
      args.context = context.data();
      args.position = position.data();
      args.tokens = static_cast<std::int64_t>(tokens.size());
      const std::vector<std::int32_t> past = with_history ? history : std::vector<std::int32_t>{};
      const std::vector<std::int32_t> expected = engram::hash_ids(geometry, tokens, past, args.pad_id);
      for (const CpuVariant variant : supported_variants()) {
        std::vector<std::int32_t> ids(expected.size());
        args.ids = ids.data();
        hash_tokens(args, 0, args.tokens, variant);
        EXPECT_EQ(ids, expected) << preset << " " << name(variant);
      }
    }
  }
}

}  // namespace
}  // namespace eb::kernels
