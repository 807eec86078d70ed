#include <dlfcn.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "harness/backend/cuda/communicators.h"
#include "harness/base/symbols.h"

namespace eb::backend::cuda {

namespace {

// NCCL is loaded when a group needs it: one GPU works without it.
struct Nccl {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRank) comm_init_rank = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
};

template <typename Function>
void resolve(void* handle, const char* name, Function& function) {
  if (!find_symbol(handle, name, function)) fail(Exit::failure, "libnccl.so.2 lacks {}", name);
}

const Nccl& nccl() {
  static const Nccl loaded = [] {
    // Multicast over NVLink needs rights that shared hosts do not give, and would make runs incomparable.
    ::setenv("NCCL_NVLS_ENABLE", "0", 1);
    void* handle = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) fail(Exit::failure, "collectives between GPUs need NCCL: {}", ::dlerror());
    Nccl api;
    resolve(handle, "ncclGetVersion", api.get_version);
    resolve(handle, "ncclGetUniqueId", api.get_unique_id);
    resolve(handle, "ncclCommInitRank", api.comm_init_rank);
    resolve(handle, "ncclCommDestroy", api.comm_destroy);
    resolve(handle, "ncclAllGather", api.all_gather);
    resolve(handle, "ncclSend", api.send);
    resolve(handle, "ncclRecv", api.recv);
    resolve(handle, "ncclGroupStart", api.group_start);
    resolve(handle, "ncclGroupEnd", api.group_end);
    resolve(handle, "ncclGetErrorString", api.error_string);
    return api;
  }();
  return loaded;
}

void check_nccl(ncclResult_t result, const char* what) {
  if (result != ncclSuccess) fail(Exit::failure, "{}: NCCL: {}", what, nccl().error_string(result));
}

class NcclGroup final : public Communicator {
 public:
  NcclGroup(cpu::Channel& channel, StreamOf stream)
      : size_(static_cast<int>(channel.members())),
        index_(static_cast<int>(channel.index())),
        stream_(std::move(stream)) {
    ncclUniqueId own{};
    if (index_ == 0) check_nccl(nccl().get_unique_id(&own), "ncclGetUniqueId");
    std::vector<ncclUniqueId> all(channel.members());
    channel.all_gather({OpKind::copy, -1}, reinterpret_cast<const std::byte*>(&own),
                       reinterpret_cast<std::byte*>(all.data()), sizeof(own), 0);
    check_nccl(nccl().comm_init_rank(&communicator_, size_, all[0], index_), "ncclCommInitRank");
  }
  ~NcclGroup() override { nccl().comm_destroy(communicator_); }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  [[nodiscard]] int size() const noexcept override { return size_; }
  [[nodiscard]] int index() const noexcept override { return index_; }

  void all_gather(StreamId stream, Op /*op*/, const std::byte* send, std::byte* recv, std::size_t bytes) override {
    check_nccl(nccl().all_gather(send, recv, bytes, ncclUint8, communicator_, stream_(stream)), "ncclAllGather");
  }
  void all_to_all(StreamId stream, Op /*op*/, const std::byte* send, std::byte* recv, std::size_t bytes) override {
    check_nccl(nccl().group_start(), "ncclGroupStart");
    for (int peer = 0; peer < size_; ++peer) {
      const std::size_t at = static_cast<std::size_t>(peer) * bytes;
      check_nccl(nccl().send(send + at, bytes, ncclUint8, peer, communicator_, stream_(stream)), "ncclSend");
      check_nccl(nccl().recv(recv + at, bytes, ncclUint8, peer, communicator_, stream_(stream)), "ncclRecv");
    }
    check_nccl(nccl().group_end(), "ncclGroupEnd");
  }

 private:
  int size_;
  int index_;
  StreamOf stream_;
  ncclComm_t communicator_ = nullptr;
};

}  // namespace

std::string nccl_version() {
  int version = 0;
  check_nccl(nccl().get_version(&version), "ncclGetVersion");
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

std::unique_ptr<Communicator> make_nccl(cpu::Channel& channel, StreamOf stream) {
  return std::make_unique<NcclGroup>(channel, std::move(stream));
}

}  // namespace eb::backend::cuda
