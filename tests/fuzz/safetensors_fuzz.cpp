// Fuzzes the header parser of safetensors files. The input is the file. Whatever comes in: an Error, or tensors that
// lie one behind the other inside the file and cover its data whole.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string_view>

#include "harness/base/error.h"
#include "harness/rank/tables/safetensors.h"

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "safetensors_fuzz: %s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  try {
    const auto tensors = eb::rank::parse_safetensors(file, size, "fuzz");
    std::uint64_t header = 0;
    for (int i = 7; i >= 0; --i) header = header << 8 | data[i];
    std::uint64_t end = 8 + header;
    std::set<std::string> names;
    for (const auto& tensor : tensors) {
      require(tensor.begin == end, "a hole or an overlap was accepted");
      require(tensor.end >= tensor.begin && tensor.end <= size, "a tensor outside the file was accepted");
      require(names.insert(tensor.name).second, "a name twice was accepted");
      end = tensor.end;
      if (const std::uint64_t element = eb::rank::element_bytes(tensor.dtype); element > 0) {
        unsigned __int128 bytes = element;
        bool zero = false;
        for (const std::uint64_t count : tensor.shape) zero = zero || count == 0;
        for (const std::uint64_t count : tensor.shape) {
          if (!zero && bytes < (static_cast<unsigned __int128>(1) << 64)) bytes *= count;
        }
        require((zero ? 0 : bytes) == tensor.bytes(), "a shape that does not fit its bytes was accepted");
      }
    }
    require(end == size, "bytes behind the last tensor were accepted");
  } catch (const eb::Error& error) {
    require(std::string_view(error.what()).find("fuzz") == 0, "an error without the file's name");
  }
  return 0;
}
