// The chain of evidence: pages, mechanism, guards, outcome. A later link is not claimed where an earlier one does not
// hold, and the verdict names the link where the chain broke. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/evidence/judge.h"

namespace eb::evidence {

enum class Link { pages, mechanism, guards, outcome };
[[nodiscard]] const char* name(Link link) noexcept;

// broken: there is evidence against the link. not_shown: there is none for it.
enum class LinkStatus { held, broken, not_shown, not_tested, void_ };
[[nodiscard]] const char* name(LinkStatus status) noexcept;

struct LinkFinding {
  Link link{};
  LinkStatus status = LinkStatus::not_tested;
  bool claimed = false;  // held, and all before it hold
  std::string text;
};

// What the factor does to the place of the pages.
enum class PageClaim {
  move,  // the arms ask for different places: shares must differ, each as asked
  same,  // the arms share one allocation, or ask for the same place: shares must be equal
};

// Observed pages of one arm in one pair, over all its backings.
struct PageShares {
  int pair = 0;
  std::map<int, double> shares;     // node -> share of the pages that could be queried
  std::map<int, double> requested;  // empty: the policy promises none
  double unqueryable_share = 0;     // of all pages; counted apart
  std::string unknown;              // why there are no shares; empty: there are
  double rounding = 0;              // a node's share may be off by this beside the tolerance: backings are whole pages
};

struct PagesInput {
  PageClaim claim = PageClaim::same;
  bool one_allocation = false;  // both arms ran on the same pages
  double tolerance = 0.01;
  std::vector<PageShares> a;  // one a pair
  std::vector<PageShares> b;
};
[[nodiscard]] LinkFinding judge_pages(const PagesInput& input);

// Largest difference of a node's share between two distributions.
[[nodiscard]] double share_distance(const std::map<int, double>& a, const std::map<int, double>& b);

struct Comparison {
  Verdict verdict = Verdict::none;
  Reason reason = Reason::no_samples;
  std::optional<Link> broke_at;  // first broken link; where none is broken, the first that is not shown
  std::vector<LinkFinding> links;
  std::string text;
};

struct ChainInput {
  LinkFinding pages;
  Finding primary;
  std::vector<Finding> guards;
  bool replay = false;
  std::optional<Finding> outcome;  // TTFT, ITL or goodput of a replay
  bool links_after_pages_void = false;
  Reason void_reason = Reason::emulated_time;
};
[[nodiscard]] Comparison judge_chain(const ChainInput& input);

// 0, 3 or 4 as `--gate` exits: regression; equivalence or improvement without a regression; all else.
[[nodiscard]] int gate_exit(const Comparison& comparison) noexcept;

// Where the pages of a table lie, seen from the device that reads them.
enum class Locality { near, far, mixed, unknown };
[[nodiscard]] const char* name(Locality locality) noexcept;
// near or far where at least 1 - tolerance of the pages are on the device's node, or off it.
[[nodiscard]] Locality locality_of(const std::map<int, double>& shares, int device_node, double tolerance);

// A1: far over near inside each device, so that two sockets are never pooled. y of a rank: log(far/near) of each pair.
struct RankRatio {
  int rank = 0;
  std::vector<double> log_ratios;
  std::optional<double> ratio;  // exp(mean)
  std::optional<stats::Interval> interval;
};
struct RankLookup {
  int rank = 0;
  Locality a{};
  Locality b{};
  std::vector<double> log_b_over_a;  // one a pair
};
// Ranks whose label does not change between near and far have no ratio and are left out.
[[nodiscard]] std::vector<RankRatio> within_device_ratios(const std::vector<RankLookup>& ranks);

}  // namespace eb::evidence
