#include "collectors/table_pages.h"

#include <algorithm>

namespace eb::collectors {

namespace {

constexpr double kRounding = 0.005;  // of PSS, which smaps gives in KiB, and of pages on their way

std::int64_t sum_of(const std::map<int, std::int64_t>& node_bytes) {
  std::int64_t total = 0;
  for (const auto& [node, bytes] : node_bytes) total += bytes;
  return total;
}

// What one reader has of a part.
struct Share {
  std::map<int, std::int64_t> node_bytes;
  std::int64_t page_bytes = 0;
};

std::int64_t smaller_page(std::int64_t one, std::int64_t other) {
  return one == 0 || other == 0 ? std::max(one, other) : std::min(one, other);
}

struct Part {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::map<std::size_t, Share> shares;  // by reader
  std::optional<std::int64_t> pss_bytes = 0;
};

// Pieces that overlap, over all readers, put together.
std::vector<Part> parts_of(const std::vector<std::vector<LivePiece>>& readers) {
  std::vector<std::pair<std::size_t, const LivePiece*>> pieces;
  for (std::size_t i = 0; i < readers.size(); ++i) {
    for (const LivePiece& piece : readers[i]) pieces.emplace_back(i, &piece);
  }
  std::sort(pieces.begin(), pieces.end(),
            [](const auto& a, const auto& b) { return a.second->begin < b.second->begin; });
  std::vector<Part> parts;
  for (const auto& [reader, piece] : pieces) {
    if (parts.empty() || piece->begin >= parts.back().end) parts.push_back({piece->begin, piece->end, {}, 0});
    Part& part = parts.back();
    part.end = std::max(part.end, piece->end);
    Share& share = part.shares[reader];
    for (const auto& [node, bytes] : piece->node_bytes) share.node_bytes[node] += bytes;
    share.page_bytes = smaller_page(share.page_bytes, piece->page_bytes);
    if (!piece->pss_bytes) part.pss_bytes.reset();
    if (part.pss_bytes) *part.pss_bytes += *piece->pss_bytes;
  }
  return parts;
}

void add(TablePages& pages, const std::map<int, std::int64_t>& node_bytes) {
  for (const auto& [node, bytes] : node_bytes) pages.node_bytes[node] += bytes;
}

}  // namespace

std::int64_t LivePiece::present_bytes() const noexcept { return sum_of(node_bytes); }

std::int64_t TablePages::present_bytes() const noexcept { return sum_of(node_bytes); }

std::vector<LivePiece> each_part_once(std::vector<LivePiece> pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  std::vector<LivePiece> kept;
  for (LivePiece& piece : pieces) {
    if (kept.empty() || piece.begin >= kept.back().end) {
      kept.push_back(std::move(piece));
      continue;
    }
    LivePiece& before = kept.back();
    const std::uint64_t begin = before.begin;
    const std::uint64_t end = std::max(before.end, piece.end);
    if (piece.present_bytes() > before.present_bytes()) std::swap(before, piece);
    before.begin = begin;
    before.end = end;
    if (before.pss_bytes && piece.pss_bytes) *before.pss_bytes += *piece.pss_bytes;
  }
  return kept;
}

TablePages count_pages(const std::vector<std::vector<LivePiece>>& readers) {
  TablePages pages;
  for (const Part& part : parts_of(readers)) {
    const auto length = static_cast<std::int64_t>(part.end - part.begin);
    pages.bytes += length;
    std::int64_t all = 0;
    std::size_t with_pages = 0;
    const auto* fullest = &*part.shares.begin();
    for (const auto& share : part.shares) {
      const std::int64_t present = sum_of(share.second.node_bytes);
      all += present;
      if (present > 0) ++with_pages;
      if (present > sum_of(fullest->second.node_bytes)) fullest = &share;
      pages.page_bytes = smaller_page(pages.page_bytes, share.second.page_bytes);
    }
    const std::int64_t most = sum_of(fullest->second.node_bytes);
    const auto slack = static_cast<std::int64_t>(kRounding * static_cast<double>(length));
    const bool whole = with_pages <= 1 || most >= length - slack || (part.pss_bytes && most >= *part.pss_bytes - slack);
    const bool apart = !whole && part.pss_bytes && all <= *part.pss_bytes + slack;
    for (const auto& [reader, share] : part.shares) {
      if (!apart && reader != fullest->first) continue;
      add(pages, share.node_bytes);
      if (std::find(pages.readers.begin(), pages.readers.end(), reader) == pages.readers.end()) {
        pages.readers.push_back(reader);
      }
    }
    if (whole || apart) continue;
    if (!part.pss_bytes) pages.uncounted_bytes.reset();
    if (pages.uncounted_bytes) *pages.uncounted_bytes += *part.pss_bytes - most;
  }
  std::sort(pages.readers.begin(), pages.readers.end());
  return pages;
}

}  // namespace eb::collectors
