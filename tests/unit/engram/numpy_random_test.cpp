// Expected values: NumPy 2.4, numpy.random.default_rng(seed).
#include "harness/engram/numpy_random.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace eb::engram {
namespace {

std::vector<std::int64_t> draw(std::uint64_t seed, std::int64_t high, int count) {
  NumpyGenerator generator(seed);
  std::vector<std::int64_t> values;
  for (int i = 0; i < count; ++i) values.push_back(generator.below(high));
  return values;
}

TEST(NumpyRandom, RawWordsOfSeedsOfOneAndTwoWords) {
  const struct {
    std::uint64_t seed, first, second, third;
  } cases[] = {
      {0, 11749869230777074271U, 4976686463289251617U, 755828109848996024U},
      {1, 9441442522235856127U, 17532960557476522086U, 2659275481604167885U},
      {10007, 15187255322829266483U, 959186003677246517U, 7126631698937927467U},
      {140098, 13420388419549774097U, 10208617735032736636U, 6128116274024149523U},
      {4294967295U, 4647538520743280031U, 4041050679407036418U, 5299467714154781845U},
      {4294967296U, 16412783775159424549U, 10277383025879800780U, 14774146505460541886U},
      {9223372036854788153U, 9116129000838757916U, 10625643075464141531U, 787597703341980114U},
  };
  for (const auto& c : cases) {
    NumpyGenerator generator(c.seed);
    EXPECT_EQ(generator.next_u64(), c.first) << c.seed;
    EXPECT_EQ(generator.next_u64(), c.second) << c.seed;
    EXPECT_EQ(generator.next_u64(), c.third) << c.seed;
  }
}

TEST(NumpyRandom, BoundedIntegersOnBothSidesOf32Bits) {
  using Values = std::vector<std::int64_t>;
  EXPECT_EQ(draw(10007, 1, 6), (Values{0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(draw(10007, 2, 6), (Values{0, 1, 1, 0, 1, 0}));
  EXPECT_EQ(draw(10007, 1000, 6), (Values{149, 823, 619, 51, 547, 386}));
  EXPECT_EQ(draw(5, 4294967295, 6), (Values{2881021351, 3457461229, 97294836, 3470079268, 2013703615, 2213306430}));
  EXPECT_EQ(draw(5, 4294967296, 6), (Values{2881021352, 3457461230, 97294837, 3470079269, 2013703616, 2213306431}));
  EXPECT_EQ(draw(5, 4294967297, 6), (Values{3457461231, 3470079269, 2213306431, 1227507580, 231630603, 1646556805}));
}

// Ranges just above a power of two reject almost half of the draws: the redraw loops are what these two test.
TEST(NumpyRandom, RedrawsWhereNumpyRedraws) {
  using Values = std::vector<std::int64_t>;
  EXPECT_EQ(draw(7, 2147483649, 6), (Values{1926751966, 1241873585, 1790251937, 483628757, 119253154, 644602188}));
  EXPECT_EQ(draw(5, (std::int64_t{1} << 62) + 1, 6),
            (Values{3712420728229738858, 2376519684796296048, 1318026228599734557, 248711466137453627,
                    1883750170337626353, 208794978701495667}));
}

}  // namespace
}  // namespace eb::engram
