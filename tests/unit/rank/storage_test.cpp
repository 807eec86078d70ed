// What a rank's table storage refuses, and what kernels see of it.
#include "harness/rank/tables/storage.h"

#include <gtest/gtest.h>

#include <cstring>

#include "harness/base/error.h"

namespace eb::rank {
namespace {

plan::StorageSpec spec(plan::Backing backing, plan::PolicyKind policy) {
  plan::StorageSpec storage;
  storage.backing = backing;
  storage.policy.kind = policy;
  return storage;
}

void expect_usage(const plan::StorageSpec& storage, const std::string& part) {
  try {
    (void)sharing_of(storage);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Sharing, FollowsBackingAndPolicy) {
  using plan::Backing;
  using plan::PolicyKind;
  EXPECT_EQ(sharing_of(spec(Backing::shm, PolicyKind::bind)), Sharing::descriptor);
  EXPECT_EQ(sharing_of(spec(Backing::shm, PolicyKind::stock)), Sharing::named);
  EXPECT_EQ(sharing_of(spec(Backing::memfd, PolicyKind::none)), Sharing::descriptor);
  EXPECT_EQ(sharing_of(spec(Backing::anon, PolicyKind::none)), Sharing::private_);
  for (const Backing backing : {Backing::hugetlb_2m, Backing::hugetlb_1g, Backing::shm_thp}) {
    EXPECT_EQ(sharing_of(spec(backing, PolicyKind::bind)), Sharing::descriptor);
  }
  EXPECT_EQ(sharing_of(spec(Backing::anon_thp, PolicyKind::bind)), Sharing::private_);
  EXPECT_EQ(sharing_of(spec(Backing::stub, PolicyKind::stock)), Sharing::none);
  EXPECT_EQ(sharing_of(spec(Backing::hbm, PolicyKind::bind)), Sharing::device);
}

TEST(Sharing, WhatIsNotBuiltIsRefusedByName) {
  using plan::Backing;
  expect_usage(spec(Backing::cuda_host_numa, plan::PolicyKind::none), "cuda-host-numa");
  for (const Backing backing : {Backing::memfd, Backing::hugetlb_2m, Backing::hugetlb_1g, Backing::shm_thp}) {
    expect_usage(spec(backing, plan::PolicyKind::stock), plan::name(backing));
  }
}

class Storage : public ::testing::Test {
 protected:
  void SetUp() override {
    scenario_.model.base = engram::preset("tiny");
    scenario_.parallel.tp = 2;
    scenario_.parallel.dp = 2;
    scenario_.storage.backing = plan::Backing::memfd;
    geometry_ = engram::make_geometry(scenario_.model.base, 1.0);
    layout_ = plan::make_layout(scenario_, geometry_);
  }
  plan::Scenario scenario_;
  engram::Geometry geometry_;
  plan::RunLayout layout_;
};

TEST_F(Storage, PeerDoesNoneOfTheLeadersWork) {
  TableStorage leader(scenario_, layout_, geometry_, 0);
  TableStorage peer(scenario_, layout_, geometry_, 2);
  EXPECT_TRUE(leader.leader());
  EXPECT_FALSE(peer.leader());
  std::string path;
  const int fd = leader.create(&path);
  EXPECT_TRUE(path.empty());  // nothing has a name
  leader.map({});
  peer.map(UniqueFd(::dup(fd)));
  peer.pretouch({});
  peer.load({});
  for (std::size_t i = 0; i < peer.mapping().size(); ++i) ASSERT_EQ(peer.mapping().data()[i], std::byte{0});
  leader.load({});
  EXPECT_NE(peer.mapping().data()[0], std::byte{0});  // and the peer sees it
}

TEST_F(Storage, MapWithoutItsDescriptorAndViewsBeforeRegistrationAreErrors) {
  TableStorage peer(scenario_, layout_, geometry_, 2);
  EXPECT_THROW(peer.map({}), Error);
  TableStorage leader(scenario_, layout_, geometry_, 0);
  std::string path;
  (void)leader.create(&path);
  leader.map({});
  EXPECT_THROW((void)leader.views(), Error);
}

// hbm: every rank has its own tables in its device's memory, whatever the mode, and they hold the same rows. The CPU
// backend's "device" is host memory.
TEST_F(Storage, DeviceMemoryHoldsTheSameTables) {
  std::string path;
  TableStorage host(scenario_, layout_, geometry_, 0);
  (void)host.create(&path);
  host.map({});
  host.load({});
  scenario_.storage.backing = plan::Backing::hbm;
  const plan::RunLayout layout = plan::make_layout(scenario_, geometry_);
  EXPECT_EQ(layout.backings.size(), layout.ranks.size());
  const auto backend = backend::make_cpu_backend({});
  for (const int rank : {0, 2}) {  // two readers of what would be one shared backing
    TableStorage tables(scenario_, layout, geometry_, rank);
    EXPECT_TRUE(tables.leader());
    tables.map({});
    tables.apply_policy();
    tables.pretouch({});
    EXPECT_THROW((void)tables.views(), Error);
    tables.register_with(*backend);
    tables.load({});
    const auto views = tables.views();
    ASSERT_EQ(views.size(), host.places().layers.size());
    EXPECT_TRUE(views[0].in_device_memory);
    EXPECT_EQ(std::memcmp(views[0].weights, host.mapping().data(), host.mapping().size()), 0);
    tables.unregister();
    EXPECT_THROW((void)tables.views(), Error);
  }
}

}  // namespace
}  // namespace eb::rank
