// SIGTERM and SIGINT as a request to leave: the first one calls a function on a thread of this object, the second one
// ends the process at once, with status 130.
//
// A handler and a semaphore rather than sigwait(): OpenBLAS and OpenMP start threads while the program is loaded,
// before main() could block a signal, and the kernel may deliver to any of them.
#pragma once

#include <functional>
#include <thread>

namespace everstep {

class StopSignal {
 public:
  // One at a time in a process.
  explicit StopSignal(std::function<void()> on_first);
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  // Signals have their usual effect again. A call of the function that is under way is waited for.
  ~StopSignal();

 private:
  std::thread thread_;
};

}  // namespace everstep
