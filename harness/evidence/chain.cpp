#include "harness/evidence/chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace eb::evidence {

namespace {

std::string shares_text(const std::map<int, double>& shares) {
  std::string text;
  for (const auto& [node, share] : shares) {
    if (share > 0) text += fmt::format("{}N{} {:.1f} %", text.empty() ? "" : ", ", node, share * 100);
  }
  return text.empty() ? "no page" : text;
}

LinkFinding pages(LinkStatus status, std::string text) { return {Link::pages, status, false, std::move(text)}; }

// Empty: every arm got what it asked for.
std::string broken_request(const PagesInput& input, const std::vector<PageShares>& arm, const char* which) {
  for (const PageShares& one : arm) {
    if (one.requested.empty()) continue;
    const double off = share_distance(one.shares, one.requested);
    if (off > input.tolerance + one.rounding) {
      return fmt::format("{} pair {}: asked for {}, found {}", which, one.pair, shares_text(one.requested),
                         shares_text(one.shares));
    }
  }
  return "";
}

LinkStatus status_of(const Finding& finding) {
  switch (finding.verdict) {
    case Verdict::better:
      return LinkStatus::held;
    case Verdict::worse:
      return LinkStatus::broken;
    case Verdict::void_:
      return LinkStatus::void_;
    case Verdict::same:
    case Verdict::inconclusive:
    case Verdict::none:
      return LinkStatus::not_shown;
  }
  return LinkStatus::not_shown;
}

LinkFinding judge_guards(const std::vector<Finding>& guards) {
  LinkFinding link{Link::guards, LinkStatus::held, false, ""};
  if (guards.empty()) return {Link::guards, LinkStatus::not_tested, false, "no guard is declared"};
  bool measured = false;
  for (const Finding& guard : guards) {
    link.text += (link.text.empty() ? "" : "; ") + finding_text(guard);
    if (guard.verdict == Verdict::worse) link.status = LinkStatus::broken;
    // A guard that the configuration does not have (one rank has no collective) holds nothing back.
    if (guard.verdict == Verdict::none && guard.reason == Reason::no_samples) continue;
    measured = true;
    if (link.status == LinkStatus::broken) continue;
    if (guard.verdict == Verdict::void_) {
      link.status = LinkStatus::void_;
    } else if (guard.verdict != Verdict::better && guard.verdict != Verdict::same && link.status == LinkStatus::held) {
      link.status = LinkStatus::not_shown;
    }
  }
  if (!measured) link.status = LinkStatus::not_tested;
  return link;
}

const char* status_words(LinkStatus status) {
  switch (status) {
    case LinkStatus::broken:
      return "broke at";
    case LinkStatus::void_:
      return "is void from";
    default:
      return "is not shown from";
  }
}

std::string conclusion(const Comparison& comparison, const ChainInput& input) {
  std::string text = finding_text(input.primary);
  if (comparison.reason == Reason::guard_worse) text = "worse (guard_worse): " + text;
  if (comparison.reason == Reason::pages_not_as_asked) {
    text = fmt::format("void (pages_not_as_asked): {}; {}", comparison.links.front().text, text);
  }
  if (comparison.broke_at) {
    const auto at = static_cast<std::size_t>(*comparison.broke_at);
    text += fmt::format(". The chain {} link {} ({})", status_words(comparison.links[at].status), at + 1,
                        name(*comparison.broke_at));
    if (*comparison.broke_at == Link::guards) text += ": " + comparison.links[at].text;
  } else if (comparison.links.back().claimed) {
    text += ". All four links hold";
  } else {
    text += ". Mechanism shown, guards held; the outcome was not tested";
  }
  return text;
}

}  // namespace

const char* name(Link link) noexcept {
  constexpr const char* kNames[] = {"pages", "mechanism", "guards", "outcome"};
  return kNames[static_cast<int>(link)];
}

const char* name(LinkStatus status) noexcept {
  constexpr const char* kNames[] = {"held", "broken", "not_shown", "not_tested", "void"};
  return kNames[static_cast<int>(status)];
}

const char* name(Locality locality) noexcept {
  constexpr const char* kNames[] = {"near", "far", "mixed", "unknown"};
  return kNames[static_cast<int>(locality)];
}

double share_distance(const std::map<int, double>& a, const std::map<int, double>& b) {
  std::set<int> nodes;
  for (const auto& [node, share] : a) nodes.insert(node);
  for (const auto& [node, share] : b) nodes.insert(node);
  double most = 0;
  const auto at = [](const std::map<int, double>& shares, int node) {
    const auto found = shares.find(node);
    return found == shares.end() ? 0.0 : found->second;
  };
  for (const int node : nodes) most = std::max(most, std::abs(at(a, node) - at(b, node)));
  return most;
}

LinkFinding judge_pages(const PagesInput& input) {
  if (input.a.empty() || input.a.size() != input.b.size()) {
    return pages(LinkStatus::not_tested, "no pair has a page map of both arms");
  }
  for (const auto* arm : {&input.a, &input.b}) {
    for (const PageShares& one : *arm) {
      if (!one.unknown.empty()) return pages(LinkStatus::not_tested, one.unknown);
    }
  }
  std::string broken = broken_request(input, input.a, "baseline,");
  if (broken.empty()) broken = broken_request(input, input.b, "arm,");
  if (!broken.empty()) return pages(LinkStatus::broken, broken);
  double least = 1;
  double most = 0;
  double unqueryable = 0;
  for (std::size_t i = 0; i < input.a.size(); ++i) {
    const double moved = share_distance(input.a[i].shares, input.b[i].shares);
    least = std::min(least, moved);
    most = std::max(most, moved);
    unqueryable = std::max({unqueryable, input.a[i].unqueryable_share, input.b[i].unqueryable_share});
  }
  std::string text = fmt::format("{} in the baseline, {} in the arm", shares_text(input.a.front().shares),
                                 shares_text(input.b.front().shares));
  if (unqueryable > 0) text += fmt::format("; up to {:.2f} % of the pages could not be queried", unqueryable * 100);
  if (input.claim == PageClaim::move) {
    if (least <= input.tolerance) return pages(LinkStatus::broken, "the pages did not move: " + text);
    return pages(LinkStatus::held, "the pages moved as asked: " + text);
  }
  if (input.one_allocation) return pages(LinkStatus::held, "both arms read the same pages: " + text);
  if (most > input.tolerance)
    return pages(LinkStatus::broken, "the pages moved, which this factor must not do: " + text);
  return pages(LinkStatus::held, "the pages lie alike in both arms: " + text);
}

Comparison judge_chain(const ChainInput& input) {
  Comparison out;
  LinkFinding mechanism{Link::mechanism, status_of(input.primary), false, finding_text(input.primary)};
  LinkFinding guards = judge_guards(input.guards);
  LinkFinding outcome{Link::outcome, LinkStatus::not_tested, false,
                      "only TTFT, ITL or goodput of a replay decide this link"};
  if (input.replay && input.outcome) {
    outcome = {Link::outcome, status_of(*input.outcome), false, finding_text(*input.outcome)};
  }
  if (input.links_after_pages_void) {
    for (LinkFinding* link : {&mechanism, &guards, &outcome}) {
      link->status = LinkStatus::void_;
      link->text = fmt::format("void: {}: {}", name(input.void_reason), link->text);
    }
  }
  out.links = {input.pages, mechanism, guards, outcome};
  bool before = true;
  for (LinkFinding& link : out.links) {
    // Pages that nobody could look at claim nothing, and what follows rests on figures alone.
    before = before && link.status == LinkStatus::held;
    link.claimed = before;
  }
  for (const LinkStatus wanted : {LinkStatus::broken, LinkStatus::void_, LinkStatus::not_shown}) {
    for (const LinkFinding& link : out.links) {
      if (!out.broke_at && link.status == wanted) out.broke_at = link.link;
    }
  }
  out.verdict = input.primary.verdict;
  out.reason = input.primary.reason;
  const bool judged = out.verdict != Verdict::void_ && out.verdict != Verdict::none;
  if (judged && input.pages.status == LinkStatus::broken) {
    out.verdict = Verdict::void_;
    out.reason = Reason::pages_not_as_asked;
  } else if (judged && out.verdict != Verdict::worse && guards.status == LinkStatus::broken) {
    out.verdict = Verdict::worse;
    out.reason = Reason::guard_worse;
  }
  out.text = conclusion(out, input);
  return out;
}

int gate_exit(const Comparison& comparison) noexcept {
  if (comparison.verdict == Verdict::worse) return 3;
  if (comparison.verdict == Verdict::better || comparison.verdict == Verdict::same) return 0;
  return 4;
}

Locality locality_of(const std::map<int, double>& shares, int device_node, double tolerance) {
  if (shares.empty() || device_node < 0) return Locality::unknown;
  const auto found = shares.find(device_node);
  const double own = found == shares.end() ? 0 : found->second;
  if (own >= 1 - tolerance) return Locality::near;
  return own <= tolerance ? Locality::far : Locality::mixed;
}

std::vector<RankRatio> within_device_ratios(const std::vector<RankLookup>& ranks) {
  std::vector<RankRatio> out;
  for (const RankLookup& rank : ranks) {
    const bool to_far = rank.a == Locality::near && rank.b == Locality::far;
    const bool to_near = rank.a == Locality::far && rank.b == Locality::near;
    if (!to_far && !to_near) continue;
    RankRatio one;
    one.rank = rank.rank;
    for (const double y : rank.log_b_over_a) one.log_ratios.push_back(to_far ? y : -y);
    if (one.log_ratios.size() >= 2) {
      const stats::MeanInterval t = stats::t_interval(one.log_ratios);
      one.ratio = std::exp(t.mean);
      one.interval = stats::Interval{std::exp(t.interval.low), std::exp(t.interval.high)};
    }
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace eb::evidence
