// The one exception type of the planner and the runtime. Bindings turn it into the Python class of
// the same name.

#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace shardwright {

// One enumerator per Python class in shardwright.errors; errorKindName() gives that class's name.
enum class ErrorKind : std::uint8_t {
  kCapture,
  kRule,
  kInfeasible,
  kPlan,
  kCluster,
  kProblem,
  kSolver,
  kRankMismatch,
  kCollective,
  kConfig,
  kInternal,
};

// "InfeasibleError" for kInfeasible, and so on.
std::string_view errorKindName(ErrorKind kind);

// What an error says after its first line. Every part may be empty.
struct ErrorDetails {
  std::vector<std::string> values = {};  // one line each, "smallest peak found: 9.4 GiB"
  std::string where = {};                // place in the user's code, "train.py:41, in train_step"
  std::string advice = {};               // what to do, "memory_limit=\"9.5GiB\" or 8 devices"
};

// An error with a stable code. Example:
//
//   throw Error(ErrorKind::kInfeasible, "E203", "no sharding fits 8.0 GiB per device on mesh (2,
//   2).",
//               {.values = {"smallest peak found: 9.4 GiB"}, .advice = "memory_limit=\"9.5GiB\""});
//
// Contract: `code` is "E" and three digits and has an entry in docs/errors.md; `summary` is one
// line.
class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string code, std::string summary, ErrorDetails details = {});

  ErrorKind kind() const { return kind_; }
  const std::string& code() const { return code_; }
  const std::string& summary() const { return summary_; }
  const ErrorDetails& details() const { return details_; }

  // The text a user reads; lines after the first are indented by two spaces:
  //
  //   InfeasibleError [E203]: no sharding fits 8.0 GiB per device on mesh (2, 2).
  //     smallest peak found: 9.4 GiB
  //     at: train.py:41
  //     try: memory_limit="9.5GiB"
  const std::string& message() const { return message_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  ErrorKind kind_;
  std::string code_;
  std::string summary_;
  ErrorDetails details_;
  std::string message_;
};

}  // namespace shardwright
