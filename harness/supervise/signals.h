// SIGINT and SIGTERM as a state that the supervisor's loop looks at.
#pragma once

namespace eb::supervise {

// The signal that came since install_signal_handlers(); 0: none.
[[nodiscard]] int pending_signal() noexcept;
// Readable once a signal came; -1 before install_signal_handlers().
[[nodiscard]] int signal_fd() noexcept;
// Forgets what came (tests).
void clear_signal() noexcept;
// Throws Error(interrupted) if a signal came.
void check_interrupted();

}  // namespace eb::supervise
