#include "harness/evidence/hypotheses.h"

#include <fmt/format.h>

namespace eb::evidence {

namespace {

const Finding* find(const HypothesisInput& input, const char* metric) {
  const auto found = input.findings.find(metric);
  return found == input.findings.end() ? nullptr : &found->second;
}

Verdict verdict_of(const Finding* finding) { return finding == nullptr ? Verdict::none : finding->verdict; }
bool moved(Verdict verdict) { return verdict == Verdict::better || verdict == Verdict::worse; }
bool decided(Verdict verdict) { return moved(verdict) || verdict == Verdict::same; }

void add_effect(Hypothesis& hypothesis, const HypothesisInput& input, const char* metric) {
  const Finding* finding = find(input, metric);
  if (finding == nullptr || !finding->effect) return;
  if (finding->of_step) {
    hypothesis.figures[fmt::format("{}_change_step_share", metric)] = *finding->effect - 1;
  } else {
    hypothesis.figures[fmt::format("{}_ratio", metric)] = *finding->effect;
  }
}

void add_traffic(Hypothesis& hypothesis, const char* what, const Traffic& traffic) {
  if (!traffic.counted()) return;
  hypothesis.figures[fmt::format("{}_bytes_per_step_baseline", what)] = *traffic.baseline_bytes;
  hypothesis.figures[fmt::format("{}_bytes_per_step_arm", what)] = *traffic.arm_bytes;
}

Hypothesis remote_pages(const HypothesisInput& input) {
  Hypothesis h{"H1", "remote pages dominate the wait", Standing::not_testable, "", {}};
  for (const char* metric : {"lookup_us", "exposed_us", "step_us"}) add_effect(h, input, metric);
  add_traffic(h, "cross_socket", input.cross_socket);
  const Verdict lookup = verdict_of(find(input, "lookup_us"));
  if (!input.factor.starts_with("storage.")) {
    h.why = "the arms do not move pages";
  } else if (input.pages != LinkStatus::held) {
    h.why = fmt::format("link 1 (pages) is {}", name(input.pages));
  } else if (lookup == Verdict::same) {
    h.standing = Standing::weakened;
    h.why = "the pages moved, the lookup time did not";
  } else if (!moved(lookup)) {
    h.why = "the lookup time is not decided";
  } else if (!input.cross_socket.counted()) {
    h.why = "pages and lookup time moved together, but the traffic between the sockets was not counted: " +
            input.cross_socket.reason;
  } else if (input.cross_socket.direction(find(input, "lookup_us")->delta) == (lookup == Verdict::worse ? 1 : -1)) {
    h.standing = Standing::supported;
    h.why = "pages, lookup time and traffic between the sockets moved together";
  } else {
    h.why = "pages and lookup time moved together, but the traffic between the sockets did not go along";
  }
  return h;
}

Hypothesis contention(const HypothesisInput& input) {
  Hypothesis h{"H2", "DP concurrency fights over memory controller or PCIe", Standing::not_testable, "", {}};
  add_effect(h, input, "lookup_us");
  add_effect(h, input, "aggregate_rows_per_s");
  add_traffic(h, "host", input.host);
  const Verdict lookup = verdict_of(find(input, "lookup_us"));
  if (input.factor != "parallel.dp" && input.factor != "workload.active_readers") {
    h.why = "the arms do not change the number of replicas";
  } else if (!decided(lookup)) {
    h.why = "the lookup time is not decided";
  } else if (lookup != Verdict::worse) {
    h.standing = Standing::weakened;
    h.why = "more replicas did not make the lookup slower";
  } else if (!input.host.counted()) {
    h.why = "more replicas made the lookup slower, but neither the memory controller nor PCIe was counted: " +
            input.host.reason;
  } else if (input.host.direction(find(input, "lookup_us")->delta) <= 0) {
    h.standing = Standing::weakened;
    h.why = "more replicas made the lookup slower, but the host's traffic did not rise along";
  } else {
    h.standing = Standing::supported;
    h.why = "more replicas: host traffic rises and the lookup gets slower";
  }
  return h;
}

Hypothesis short_lead(const HypothesisInput& input) {
  Hypothesis h{"H3", "the prefetch lead is too short", Standing::not_testable, "", {}};
  if (!input.first_exposed_us || !input.first_recoverable_us) {
    h.why = "no arm submits early, or its waits were not recorded";
    return h;
  }
  h.figures["first_layer"] = input.first_layer;
  h.figures["exposed_us_median"] = *input.first_exposed_us;
  h.figures["recoverable_us_median"] = *input.first_recoverable_us;
  if (*input.first_exposed_us <= 0) {
    h.standing = Standing::weakened;
    h.why = "the lookup of the earliest Engram layer is done before its consumer comes";
  } else if (*input.first_recoverable_us <= 0) {
    h.standing = Standing::weakened;
    h.why = "the earliest consumer waits, but no earlier lookup could have given the time back";
  } else {
    h.standing = Standing::supported;
    h.why = "the earliest consumer finds its lookup not done, and an earlier start would have given time back";
  }
  return h;
}

Hypothesis stealing(const HypothesisInput& input) {
  Hypothesis h{"H4", "prefetch steals from main compute", Standing::not_testable, "", {}};
  for (const char* metric : {"exposed_us", "front_us", "step_us"}) add_effect(h, input, metric);
  if (input.factor != "prefetch.submit") {
    h.why = "the arms do not change when the lookup is submitted";
    return h;
  }
  // Towards early: the change whose price is asked for. An arm that leaves early pays it back.
  const auto towards_early = [&](const char* metric) {
    const Verdict verdict = verdict_of(find(input, metric));
    if (input.arm_is_early || !moved(verdict)) return verdict;
    return verdict == Verdict::better ? Verdict::worse : Verdict::better;
  };
  const Verdict wait = towards_early("exposed_us");
  const Verdict front = towards_early("front_us");
  const Verdict step = towards_early("step_us");
  if (!decided(wait) || !decided(front) || !decided(step)) {
    h.why = "wait, front layers and step are not all decided";
  } else if (wait == Verdict::better && front == Verdict::worse && step != Verdict::better) {
    h.standing = Standing::supported;
    h.why = "early submission shortens the wait, slows the front layers down, and the step gains nothing";
  } else if (front != Verdict::worse && step == Verdict::better) {
    h.standing = Standing::weakened;
    h.why = "the front layers stay as they are and the step gains";
  } else {
    h.why = "the figures are neither what the hypothesis says nor its opposite";
  }
  return h;
}

}  // namespace

int Traffic::direction(double delta) const noexcept {
  if (!counted()) return 0;
  if (*arm_bytes > *baseline_bytes * (1 + delta)) return 1;
  return *arm_bytes * (1 + delta) < *baseline_bytes ? -1 : 0;
}

const char* name(Standing standing) noexcept {
  constexpr const char* kNames[] = {"supported", "weakened", "not_testable"};
  return kNames[static_cast<int>(standing)];
}

std::vector<Hypothesis> judge_hypotheses(const HypothesisInput& input) {
  return {remote_pages(input), contention(input), short_lead(input), stealing(input)};
}

std::string copies_advice(const std::string& factor, const std::string& a1, const std::string& b1) {
  if (factor != "storage.copies") return "";
  if (!a1.empty() && !b1.empty()) return fmt::format("rests on A1 ({}) and B1 ({}) of this machine", a1, b1);
  return fmt::format("premature: A1/B1 evidence missing ({}{}{} of this machine)", a1.empty() ? "A1" : "",
                     a1.empty() && b1.empty() ? " and " : "", b1.empty() ? "B1" : "");
}

}  // namespace eb::evidence
