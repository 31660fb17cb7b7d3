// Ctrl-C during a long search that keeps what it has.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>

namespace shardwright {

// Ctrl-C ends the search with what it has; looked for at most 20 times a second. Called without the
// GIL.
class InterruptWatch {
 public:
  // Whether Ctrl-C was seen.
  bool raised() const { return raised_; }
  // Raises KeyboardInterrupt if it was. Called with the GIL.
  void rethrow() const {
    if (!raised_) return;
    PyErr_SetNone(PyExc_KeyboardInterrupt);
    throw pybind11::error_already_set();
  }

  bool operator()() {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(50)) return raised_;
    last_ = now;
    const pybind11::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) {
      PyErr_Clear();
      raised_ = true;
    }
    return raised_;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  bool raised_ = false;
};

}  // namespace shardwright
