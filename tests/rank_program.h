// main() of a test program that is its own rank process too: the supervisor starts /proc/self/exe with the word "rank".
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "harness/control/channel.h"
#include "harness/rank/rank_main.h"
#include "harness/supervise/reroll.h"

namespace eb {

// `parts`: what a rank of these tests is made of.
inline int test_or_rank_main(int argc, char** argv, rank::RankParts (*parts)()) {
  if (argc == 4 && std::strcmp(argv[1], "rank") == 0) {
    control::Channel channel{UniqueFd(std::atoi(argv[3]))};
    return rank::run_rank(channel, parts());
  }
  ::testing::InitGoogleTest(&argc, argv);
  supervise::install_signal_handlers();
  return RUN_ALL_TESTS();
}

}  // namespace eb
