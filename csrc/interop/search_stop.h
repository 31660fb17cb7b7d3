// When a search must end: at its time limit, or when interrupted. May be asked from any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

namespace shardwright {

class SearchStop {
 public:
  // `is_interrupted` may be empty; only the thread that makes this calls it.
  SearchStop(double time_limit_s, std::function<bool()> is_interrupted)
      : is_interrupted_(std::move(is_interrupted)),
        end_(std::chrono::steady_clock::now() +
             std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                 std::chrono::duration<double>(std::clamp(time_limit_s, 0.0, kLongest)))) {}

  // Whether to end now. Other threads learn of an interrupt when the first one has asked.
  bool operator()() {
    if (std::this_thread::get_id() == owner_ && !interrupted_ && is_interrupted_ &&
        is_interrupted_()) {
      interrupted_ = true;
    }
    return interrupted_ || secondsLeft() == 0;
  }

  bool isInterrupted() const { return interrupted_; }
  double secondsLeft() const {
    const std::chrono::duration<double> left = end_ - std::chrono::steady_clock::now();
    return std::max(0.0, left.count());
  }

 private:
  static constexpr double kLongest = 1e9;

  std::function<bool()> is_interrupted_;
  std::chrono::steady_clock::time_point end_;
  std::thread::id owner_ = std::this_thread::get_id();
  std::atomic<bool> interrupted_ = false;
};

}  // namespace shardwright
