// A thread of the backend: signals are the host thread's business, and a name shows it in ps and in a debugger.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "harness/base/error.h"

namespace eb::backend::cpu {

// Errors: Error(failure) where the system gives no more threads.
template <typename Body>
[[nodiscard]] std::thread service_thread(const std::string& name, Body body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited by the new thread
  try {
    std::thread thread(std::move(body));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());  // the kernel keeps 15 characters
    return thread;
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    fail(
        Exit::failure,
        "thread {} could not be started: {}; check the limits on processes (ulimit -u, the cgroup's pids.max) or lower "
        "device.cpu_workers",
        name, error.what());
  }
}

}  // namespace eb::backend::cpu
