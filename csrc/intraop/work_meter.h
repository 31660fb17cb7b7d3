// Nominal time: seconds that the work done so far would take on an ordinary core. Decisions inside
// the search use it instead of a clock, so that the same problem gives the same choice on a busy
// machine.
#pragma once

namespace shardwright {

class WorkMeter {
 public:
  static constexpr double kRowEntriesPerSecond = 1e9;

  double seconds() const { return seconds_; }
  void add(const WorkMeter& other) { seconds_ += other.seconds_; }
  // Visits of table entries in long vectorised rows.
  void addRows(double entries) { seconds_ += entries / kRowEntriesPerSecond; }
  // Entries of message-passing tables, short rows.
  void addMessages(double entries) { seconds_ += entries * 3e-9; }
  // Bookkeeping around one eliminated variable: names, tables, allocation.
  void addSteps(double count) { seconds_ += count * 2e-6; }
  // Scattered single look-ups.
  void addLookups(double count) { seconds_ += count * 8e-9; }

 private:
  double seconds_ = 0.0;
};

}  // namespace shardwright
