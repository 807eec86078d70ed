#include "harness/backend/cpu/runtime.h"

#include <algorithm>
#include <exception>

#include "harness/backend/cpu/op_text.h"
#include "harness/backend/cpu/service_thread.h"
#include "harness/base/error.h"
#include "harness/base/os.h"

namespace eb::backend::cpu {

void Status::set_failed(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (text_.empty()) text_ = text;
  skip_.store(true, std::memory_order_release);
}

void Status::rethrow() const {
  if (!skip()) return;
  const std::lock_guard lock(mutex_);
  throw Error(Exit::failure, text_.empty() ? "the backend was stopped; its queued work was dropped" : text_);
}

Stream::Stream(Runtime& runtime, const std::string& name) {
  context_.runtime = &runtime;
  context_.name = name;
  thread_ = service_thread("eb-" + name, [this] {
    while (!context_.quit) queue_.run_next(context_);
  });
}

Stream::~Stream() {
  quit();
  thread_.join();
}

void Stream::quit() {
  if (quitting_) return;
  quitting_ = true;
  queue_.push([](StreamContext& context) { context.quit = true; });
}

void Stream::drain() {
  if (queue_.idle()) return;
  drained_.reset();
  EventSlot* slot = &drained_;
  queue_.push([slot](StreamContext&) { slot->complete(0); });
  drained_.wait();
}

Runtime::Runtime(const CpuOptions& options)
    : groups_(options.arena, options.groups, options.rank, status_.skip_flag(), options.waiting) {}

StreamId Runtime::create_stream(const std::string& name) {
  streams_.push_back(std::make_unique<Stream>(*this, name));
  return static_cast<StreamId>(streams_.size() - 1);
}

Stream& Runtime::stream(StreamId stream) const {
  if (stream >= streams_.size()) {
    fail(Exit::failure, "stream {} was asked for; there are {}", stream, streams_.size());
  }
  return *streams_[stream];
}

void Runtime::drain() {
  for (const auto& stream : streams_) stream->drain();
}

void Runtime::quiesce() noexcept {
  const bool idle = std::all_of(streams_.begin(), streams_.end(), [](const auto& stream) { return stream->idle(); });
  if (!idle && std::uncaught_exceptions() > 0) {
    status_.set_stopped();
    groups_.interrupt();
  }
  drain();
}

void Runtime::shut_down() noexcept {
  status_.set_stopped();
  groups_.interrupt();
  // First all, then join: a stream may wait for an event that another one records.
  for (const auto& stream : streams_) stream->quit();
  streams_.clear();
}

void Runtime::failed(const StreamContext& context, Op op, const char* text) {
  if (status_.skip()) return;  // given up since something else failed first
  status_.set_failed(fmt::format("stream {}: {}: {}", context.name, op_text(op), text));
  groups_.interrupt();
}

}  // namespace eb::backend::cpu
