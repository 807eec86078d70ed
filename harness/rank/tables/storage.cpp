#include "harness/rank/tables/storage.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <span>
#include <thread>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/base/sha256.h"
#include "harness/rank/tables/table_writer.h"
#include "placement/backing.h"
#include "placement/policy.h"
#include "placement/pretouch.h"
#include "placement/topology.h"

namespace eb::rank {

namespace {

constexpr std::size_t kPretouchPiece = std::size_t{1} << 30;  // between two calls of progress

[[noreturn]] void refuse(plan::Backing backing) {
  fail(Exit::usage, "storage.backing {}: not in this version of engram-bench; use another backing",
       plan::name(backing));
}

}  // namespace

Sharing sharing_of(const plan::StorageSpec& storage) {
  const bool stock = storage.policy.kind == plan::PolicyKind::stock;
  switch (storage.backing) {
    case plan::Backing::stub:
      return Sharing::none;
    case plan::Backing::hbm:
      return Sharing::device;
    case plan::Backing::anon:
    case plan::Backing::anon_thp:
      return Sharing::private_;
    case plan::Backing::shm:
      return stock ? Sharing::named : Sharing::descriptor;
    case plan::Backing::memfd:
    case plan::Backing::hugetlb_2m:
    case plan::Backing::hugetlb_1g:
    case plan::Backing::shm_thp:
      if (stock) {
        fail(Exit::usage, "storage.policy stock shares a named file in /dev/shm: use storage.backing shm, not {}",
             plan::name(storage.backing));
      }
      return Sharing::descriptor;
    case plan::Backing::cuda_host_numa:
      break;
  }
  refuse(storage.backing);
}

TableStorage::TableStorage(const plan::Scenario& scenario, const plan::RunLayout& layout,
                           const engram::Geometry& geometry, int rank)
    : scenario_(scenario),
      geometry_(geometry),
      place_(layout.ranks.at(static_cast<std::size_t>(rank))),
      sharing_(sharing_of(scenario.storage)),
      policy_(plan::policy_of(scenario.storage, layout.backings.at(static_cast<std::size_t>(place_.backing)))) {
  if (sharing_ != Sharing::none) {
    places_ = plan::make_backing_layout(geometry, place_.shard, scenario.storage);
  }
}

int TableStorage::create(std::string* path) {
  const auto bytes = static_cast<std::size_t>(places_.bytes);
  if (sharing_ == Sharing::named) {
    placement::NamedFile file = placement::create_stock_file(bytes);
    fd_ = std::move(file.fd);
    *path = file.path;
  } else {
    fd_ = placement::create_backing(scenario_.storage.backing, bytes);
  }
  return fd_.get();
}

void TableStorage::map(UniqueFd fd) {
  const auto bytes = static_cast<std::size_t>(places_.bytes);
  if (!in_host_memory(sharing_)) return;
  if (sharing_ == Sharing::private_) {
    mapping_ = placement::map_private(bytes, scenario_.storage.backing);
    return;
  }
  if (fd) fd_ = std::move(fd);
  if (!fd_) fail(Exit::failure, "the backing's descriptor did not arrive");
  mapping_ = placement::map_backing(scenario_.storage.backing, fd_.get(), bytes);
}

void TableStorage::open_named(const std::string& path) {
  if (!fd_) fd_ = placement::open_stock_file(path);
  mapping_ = Mapping::shared(fd_.get(), static_cast<std::size_t>(places_.bytes), path.c_str());
}

void TableStorage::prepare_policy() {
  if (!mapping_ || (!leader() && !policy_of_each_mapping(scenario_.storage.backing))) return;
  if (policy_.kind == plan::PolicyKind::none || policy_.kind == plan::PolicyKind::stock) return;
  effective_ = placement::resolve(policy_, placement::read_topology(placement::Devices::skip));
  segments_ = placement::bound_segments(*effective_, mapping_.size(), unit());
}

void TableStorage::apply_policy() {
  if (effective_) placement::apply(*effective_, mapping_.data(), mapping_.size(), unit());
}

void TableStorage::pretouch(const std::function<void()>& progress) {
  if (!mapping_ || scenario_.storage.policy.kind == plan::PolicyKind::stock) return;
  if (segments_.empty()) return touch(0, mapping_.size(), progress);
  for (const placement::Segment& segment : segments_) {
    touch(segment.offset, segment.bytes, progress);
    if (leader() && scenario_.storage.pretouch != plan::PretouchKind::none) {
      placement::check_segment(segment, mapping_.data(), unit());
    }
  }
}

void TableStorage::touch(std::size_t offset, std::size_t bytes, const std::function<void()>& progress) {
  const plan::StorageSpec& storage = scenario_.storage;
  const int threads = placement::pretouch_threads(storage.pretouch, storage.pretouch_threads, leader());
  if (threads == 0) return;
  // A page of 1 GiB is faulted by one thread: a piece has one for each.
  const std::size_t piece = std::max(kPretouchPiece, unit() * static_cast<std::size_t>(threads));
  for (std::size_t done = 0; done < bytes; done += piece) {
    placement::pretouch(storage.pretouch, threads, leader(), mapping_.data() + offset + done,
                        std::min(piece, bytes - done), unit());
    if (progress) progress();
  }
}

void TableStorage::register_with(backend::Backend& backend) {
  if (mapping_) registration_ = backend.register_table(mapping_.data(), mapping_.size());
  if (sharing_ != Sharing::device) return;
  backend_ = &backend;
  device_ = backend.allocate(static_cast<std::size_t>(places_.bytes), backend::MemoryKind::device,
                             "storage.backing hbm, the tables");
}

void TableStorage::write_to(std::byte* memory, const std::function<void()>& progress) const {
  const auto source = make_table_source(scenario_, geometry_);
  write_tables(*source, geometry_, place_.shard, scenario_.storage.layout, places_, memory, allowed_cpu_count(),
               progress);
}

void TableStorage::load(const std::function<void()>& progress) {
  if (sharing_ == Sharing::device) return load_device(progress);
  if (leader() && mapping_) write_to(mapping_.data(), progress);
}

// Through private memory of this process, which is given back at the end.
void TableStorage::load_device(const std::function<void()>& progress) {
  const Mapping scratch = placement::map_private(static_cast<std::size_t>(places_.bytes));
  write_to(scratch.data(), progress);
  const backend::StreamId stream = backend_->create_stream("load");
  constexpr std::size_t kPiece = std::size_t{256} << 20;
  for (std::size_t done = 0; done < scratch.size(); done += kPiece) {
    backend_->copy(stream, {backend::OpKind::copy, -1}, device_->data() + done, scratch.data() + done,
                   std::min(kPiece, scratch.size() - done));
    backend_->synchronize();
    if (progress) progress();
  }
}

std::string TableStorage::content_sha256(const std::function<void()>& progress) const {
  constexpr std::size_t kPiece = std::size_t{64} << 20;
  const std::size_t pieces = (mapping_.size() + kPiece - 1) / kPiece;
  std::vector<std::string> sums(pieces);
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < pieces; i = next++) {
      const std::size_t offset = i * kPiece;
      sums[i] = sha256_hex({mapping_.data() + offset, std::min(kPiece, mapping_.size() - offset)});
      if (progress) progress();
    }
  };
  {
    std::vector<std::jthread> threads;
    const auto count = std::min<std::size_t>(pieces, static_cast<std::size_t>(allowed_cpu_count()));
    for (std::size_t i = 1; i < count; ++i) threads.emplace_back(work);
    work();
  }
  Sha256 all;
  for (const std::string& sum : sums) all.update(std::as_bytes(std::span(sum)));
  return all.hex();
}

void TableStorage::corrupt() noexcept {
  if (mapping_) mapping_.data()[mapping_.size() / 2] ^= std::byte{1};
}

void TableStorage::unmap() noexcept {
  unregister();
  mapping_.reset();
  fd_.reset();
}

std::vector<kernels::TableView> TableStorage::views() const {
  std::vector<kernels::TableView> views;
  const bool on_device = sharing_ == Sharing::device;
  if (!mapping_ && !on_device) return views;
  if (!registration_ && !device_) fail(Exit::failure, "tables are not registered");
  const std::byte* base = on_device ? device_->data() : registration_->device_address();
  const bool quantised = geometry_.model.format == engram::RowFormat::e4m3_ue8m0;
  for (std::size_t i = 0; i < places_.layers.size(); ++i) {
    const plan::TablePlace& place = places_.layers[i];
    kernels::TableView view;
    view.weights = base + place.weights_offset;
    view.scales = quantised ? base + place.scales_offset : nullptr;
    view.weight_stride = place.weight_stride;
    view.scale_stride = quantised ? place.scale_stride : 0;
    view.first_row = place_.shard.rows[i].first;
    view.rows = place_.shard.rows[i].count;
    view.dim = geometry_.model.dim;
    view.block = quantised ? geometry_.model.block : 0;
    view.in_device_memory = on_device;
    view.format = quantised ? kernels::RowFormat::e4m3_ue8m0 : kernels::RowFormat::bf16;
    views.push_back(view);
  }
  return views;
}

int allowed_cpu_count() noexcept {
  cpu_set_t* set = CPU_ALLOC(4096);  // larger than cpu_set_t's 1024, so that big machines are not an EINVAL
  if (set == nullptr) return 1;
  const std::size_t bytes = CPU_ALLOC_SIZE(4096);
  CPU_ZERO_S(bytes, set);
  const int count = ::sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 1;
  CPU_FREE(set);
  return std::max(1, count);
}

}  // namespace eb::rank
