#include "base/error.h"

#include <utility>

namespace shardwright {

std::string_view errorKindName(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kCapture:
      return "CaptureError";
    case ErrorKind::kRule:
      return "RuleError";
    case ErrorKind::kInfeasible:
      return "InfeasibleError";
    case ErrorKind::kPlan:
      return "PlanError";
    case ErrorKind::kCluster:
      return "ClusterError";
    case ErrorKind::kProblem:
      return "ProblemError";
    case ErrorKind::kSolver:
      return "SolverError";
    case ErrorKind::kRankMismatch:
      return "RankMismatchError";
    case ErrorKind::kCollective:
      return "CollectiveError";
    case ErrorKind::kConfig:
      return "ConfigError";
    case ErrorKind::kInternal:
      return "InternalError";
  }
  return "InternalError";
}

namespace {

std::string formatMessage(ErrorKind kind, const std::string& code, const std::string& summary,
                          const ErrorDetails& details) {
  std::string text(errorKindName(kind));
  text += " [" + code + "]: " + summary;
  for (const std::string& value : details.values) {
    text += "\n  " + value;
  }
  if (!details.where.empty()) {
    text += "\n  at: " + details.where;
  }
  if (!details.advice.empty()) {
    text += "\n  try: " + details.advice;
  }
  return text;
}

}  // namespace

Error::Error(ErrorKind kind, std::string code, std::string summary, ErrorDetails details)
    : kind_(kind),
      code_(std::move(code)),
      summary_(std::move(summary)),
      details_(std::move(details)),
      message_(formatMessage(kind_, code_, summary_, details_)) {}

}  // namespace shardwright
