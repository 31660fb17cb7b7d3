// Reader of the public format of the intra-operator parallelism contest (ASPLOS / EuroSys 2025,
// google/iopddl): one JSON object, plain or gzip.
#pragma once

#include <string>

#include "intraop/json_scanner.h"
#include "intraop/problem.h"

namespace shardwright {

// Costs from this on mean "forbidden"; the contest writes 10^18.
inline constexpr int64_t kContestForbidden = 100'000'000'000'000'000;

// Reads {"problem": {"name", "nodes": {"intervals", "costs", "usages"}, "edges": {"nodes",
// "costs"}, "usage_limit"}}; the limit and the name may be missing. Throws Error E212 (malformed,
// with JSON pointer and byte) or E213 (too large or too deep), or E211 when the parts do not fit.
Problem readContestProblem(const std::string& path, const JsonLimits& limits = {});

}  // namespace shardwright
