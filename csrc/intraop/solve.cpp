#include "intraop/solve.h"

#include "intraop/search.h"

namespace shardwright {

Answer solve(const Problem& problem, const SolveOptions& options) {
  Search search(problem, options);
  const Claim claim = search.run();
  Answer answer = certify(problem, claim);
  answer.phases = search.phases();
  if (answer.status == SolveStatus::kInfeasible && options.smallest_peak_time_s > 0.0 &&
      problem.memoryLimitBytes()) {
    const PeakAnswer peak = minimizePeak(problem, options.smallest_peak_time_s, options.interrupt);
    answer.smallest_peak_bound_bytes = peak.bound_bytes;
    if (!peak.choice.empty()) answer.smallest_peak_bytes = peak.peak_bytes;
  }
  answer.seconds = search.seconds();
  return answer;
}

}  // namespace shardwright
