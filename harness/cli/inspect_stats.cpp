// inspect stats (hidden): single functions of harness/stats on JSON from standard input, so that tests can hold them
// against other libraries. One list of requests in, one list of answers out.
#include <algorithm>
#include <iostream>
#include <iterator>

#include "harness/base/error.h"
#include "harness/cli/inspect.h"
#include "harness/stats/distributions.h"
#include "harness/stats/paired.h"
#include "harness/stats/summary.h"
#include "harness/stats/tail.h"
#include "harness/stats/tests.h"

namespace eb::cli::inspect {

namespace {

using Values = std::vector<double>;

Values values_of(const Json& request, const char* key) { return request.at(key).get<Values>(); }

std::vector<stats::PairBlocks> pairs_of(const Json& request) {
  std::vector<stats::PairBlocks> pairs;
  for (const Json& one : request.at("pairs")) {
    pairs.push_back({values_of(one, "a"), values_of(one, "b"), one.value("matched", true)});
  }
  return pairs;
}

Json interval_json(const stats::Interval& interval) { return {{"low", interval.low}, {"high", interval.high}}; }

Json paired(const std::string& function, const Json& request) {
  if (function == "t_interval") {
    const stats::MeanInterval m = stats::t_interval(values_of(request, "values"));
    return {{"mean", m.mean}, {"deviation", m.deviation}, {"interval", interval_json(m.interval)}};
  }
  if (function == "welch_interval") {
    const stats::WelchInterval w = stats::welch_interval(values_of(request, "a"), values_of(request, "b"));
    return {{"difference", w.difference}, {"df", w.df}, {"interval", interval_json(w.interval)}};
  }
  if (function == "sign_test") return {{"p", stats::sign_test(values_of(request, "values")).p}};
  if (function == "bootstrap") {
    return interval_json(stats::hierarchical_bootstrap(pairs_of(request), request.at("seed").get<std::uint64_t>()));
  }
  if (function == "pair_log_ratio") {
    Json out = Json::array();
    for (const stats::PairBlocks& pair : pairs_of(request)) out.push_back(stats::pair_log_ratio(pair));
    return out;
  }
  return nullptr;
}

Json answer(const Json& request) {
  const auto function = request.at("function").get<std::string>();
  const auto number = [&](const char* key) { return request.at(key).get<double>(); };
  if (function == "t_cdf") return stats::t_cdf(number("t"), number("df"));
  if (function == "t_quantile") return stats::t_quantile(number("p"), number("df"));
  if (function == "normal_quantile") return stats::normal_quantile(number("p"));
  if (function == "incomplete_beta") return stats::incomplete_beta(number("a"), number("b"), number("x"));
  if (function == "mad") return stats::summarize(values_of(request, "values")).mad;
  if (function == "holm") return stats::holm(values_of(request, "p"));
  if (function == "mann_whitney") {
    const stats::MannWhitney m = stats::mann_whitney(values_of(request, "a"), values_of(request, "b"));
    return {{"u", m.u}, {"p", m.p}, {"exact", m.exact}};
  }
  if (function == "quantile_interval") {
    Values values = values_of(request, "values");
    std::sort(values.begin(), values.end());
    const auto q = stats::quantile_interval(values, number("p"));
    if (!q) return {{"low_rank", nullptr}};
    return {{"value", q->value}, {"low_rank", q->low_rank}, {"high_rank", q->high_rank}};
  }
  if (function == "two_clusters") {
    const auto c = stats::two_clusters(values_of(request, "values"));
    if (!c) return {{"explained", nullptr}};
    return {{"lower", c->lower}, {"explained", c->explained}, {"p", c->p}};
  }
  Json result = paired(function, request);
  if (result.is_null()) fail(Exit::usage, "inspect stats: unknown function {}", function);
  return result;
}

}  // namespace

int show_stats(const Options& /*options*/) {
  const std::string text{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  Json out = Json::array();
  try {
    for (const Json& request : Json::parse(text)) out.push_back(answer(request));
  } catch (const Json::exception& error) {
    fail(Exit::usage, "inspect stats: {}", error.what());
  }
  print(out);
  return static_cast<int>(Exit::ok);
}

}  // namespace eb::cli::inspect
