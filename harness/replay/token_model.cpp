#include "harness/replay/token_model.h"

#include <algorithm>

#include "harness/base/error.h"
#include "harness/engram/content.h"
#include "harness/replay/zipf_ngram.h"

namespace eb::replay {

namespace {

using engram::splitmix64;

std::uint64_t stream_base(std::uint64_t seed, std::uint64_t stream) noexcept {
  return splitmix64(splitmix64(seed) ^ splitmix64(stream + 1));
}

// A 64-bit draw as a number in [0, bound): the high half of the product, no division.
std::uint64_t scale_to(std::uint64_t draw, std::uint64_t bound) noexcept {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(draw) * bound) >> 64);
}

class UniformModel : public TokenModel {
 public:
  explicit UniformModel(std::int64_t vocabulary) : vocabulary_(static_cast<std::uint64_t>(vocabulary)) {}
  void fill(std::uint64_t seed, std::uint64_t stream, std::int64_t first, std::span<std::int32_t> out) const override {
    const std::uint64_t base = stream_base(seed, stream) + static_cast<std::uint64_t>(first);
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<std::int32_t>(scale_to(splitmix64(base + i), vocabulary_));
    }
  }

 private:
  std::uint64_t vocabulary_;
};

class ConstantModel : public TokenModel {
 public:
  explicit ConstantModel(std::int32_t token) : token_(token) {}
  void fill(std::uint64_t, std::uint64_t, std::int64_t, std::span<std::int32_t> out) const override {
    std::ranges::fill(out, token_);
  }

 private:
  std::int32_t token_;
};

class FileModel : public TokenModel {
 public:
  explicit FileModel(std::vector<std::int32_t> tokens) : tokens_(std::move(tokens)) {}
  void fill(std::uint64_t seed, std::uint64_t stream, std::int64_t first, std::span<std::int32_t> out) const override {
    const auto size = static_cast<std::uint64_t>(tokens_.size());
    std::uint64_t place = (scale_to(stream_base(seed, stream), size) + static_cast<std::uint64_t>(first)) % size;
    for (std::size_t done = 0; done < out.size();) {
      const std::size_t piece = std::min<std::size_t>(out.size() - done, size - place);
      std::copy_n(tokens_.begin() + static_cast<std::ptrdiff_t>(place), piece,
                  out.begin() + static_cast<std::ptrdiff_t>(done));
      done += piece;
      place = 0;  // the file wraps
    }
  }

 private:
  std::vector<std::int32_t> tokens_;
};

std::shared_ptr<const TokenModel> make_constant(const plan::TokenSpec& spec, const engram::Model& model) {
  const std::int32_t raw = spec.constant;
  if (raw < 0 || raw >= model.raw_vocab) {
    fail(Exit::usage, "workload.tokens.constant: token id {} is out of the vocabulary (0..{})", raw,
         model.raw_vocab - 1);
  }
  return std::make_shared<ConstantModel>(read_token_map(spec.map, model).compress(std::span(&raw, 1)).front());
}

std::shared_ptr<const TokenModel> make_file(const plan::TokenSpec& spec, const engram::Model& model) {
  if (spec.file.empty()) fail(Exit::usage, "workload.tokens.kind file needs workload.tokens.file");
  const auto raw = read_token_file(spec.file);
  const auto map = read_token_map(spec.map, model);
  try {
    return std::make_shared<FileModel>(map.compress(raw));
  } catch (const Error& error) {
    fail(error.exit(), "token file {}: {}", spec.file, error.what());
  }
}

}  // namespace

std::shared_ptr<const TokenModel> make_token_model(const plan::TokenSpec& spec, const engram::Model& model) {
  switch (spec.kind) {
    case plan::TokenKind::uniform:
      return std::make_shared<UniformModel>(model.compressed_vocab);
    case plan::TokenKind::zipf_ngram: {
      ZipfNgramParameters parameters;
      if (spec.zipf_exponent > 0) parameters.exponent = spec.zipf_exponent;
      if (spec.repeat_probability > 0) parameters.repeat = spec.repeat_probability;
      return std::make_shared<ZipfNgramModel>(parameters, model.compressed_vocab);
    }
    case plan::TokenKind::constant:
      return make_constant(spec, model);
    case plan::TokenKind::file:
      return make_file(spec, model);
  }
  fail(Exit::usage, "unknown token model {}", static_cast<int>(spec.kind));
}

}  // namespace eb::replay
