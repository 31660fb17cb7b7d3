#include "interop/stage_problem.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace shardwright {
namespace {

[[noreturn]] void reject(const std::string& value, const std::string& advice) {
  throw Error(ErrorKind::kProblem, "E221", "the tables of a stage search do not fit together.",
              {.values = {value}, .advice = advice});
}

std::string textOf(const SubmeshShape& shape) {
  return "(" + std::to_string(shape.num_hosts) + ", " + std::to_string(shape.devices_per_host) +
         ")";
}

// Devices per host that let the shapes tile a cluster: those of the shapes over several hosts, or
// the largest within one.
void checkShapes(const std::vector<SubmeshShape>& shapes) {
  if (shapes.empty()) reject("no submesh", "give at least one shape");
  int devices_per_host = 1;
  for (const SubmeshShape& shape : shapes) {
    devices_per_host = std::max(devices_per_host, shape.devices_per_host);
  }
  for (const SubmeshShape& shape : shapes) {
    if (!tilesCluster({shape}, devices_per_host)) {
      reject("submesh " + textOf(shape) + " beside one with " + std::to_string(devices_per_host) +
                 " devices per host",
             "shapes are (1, 2^k) within a host and (k, M) over several, M their devices: any "
             "others may leave gaps");
    }
  }
}

void checkTimes(const std::string& what, const std::vector<double>& values) {
  for (const double value : values) {
    if (std::isnan(value) || value < 0) {
      reject(what + ": " + std::to_string(value), "times are 0 or more; infinity forbids");
    }
  }
}

void checkBoundaries(const StageProblem& problem) {
  if (problem.boundaries.empty()) {
    if (problem.num_specs > 1) {
      reject(std::to_string(problem.num_specs) + " specs and no costs at boundaries",
             "give boundary costs: a change of spec is not free");
    }
    return;
  }
  if (problem.boundaries.size() != static_cast<std::size_t>(problem.num_layers)) {
    reject(std::to_string(problem.boundaries.size()) + " boundaries for " +
               std::to_string(problem.num_layers) + " layers",
           "give one per layer, the one in front of it");
  }
  const std::size_t ports = problem.submeshes.size() * static_cast<std::size_t>(problem.num_specs);
  for (std::size_t layer = 1; layer < problem.boundaries.size(); ++layer) {
    const Boundary& boundary = problem.boundaries[layer];
    const std::string where = "boundary in front of layer " + std::to_string(layer);
    const bool one = boundary.time.size() == 1 && problem.num_specs == 1;
    if (!one && boundary.time.size() != ports * ports) {
      reject(where + ": " + std::to_string(boundary.time.size()) + " costs",
             "give one, or one per pair of the " + std::to_string(ports) + " ports");
    }
    if (!boundary.link_time.empty() && boundary.link_time.size() != boundary.time.size()) {
      reject(where + ": " + std::to_string(boundary.link_time.size()) + " link times",
             "give as many as times");
    }
    checkTimes(where, boundary.time);
    checkTimes(where, boundary.link_time);
    for (const std::vector<double>* waits : {&boundary.exit_wait, &boundary.entry_wait}) {
      if (!waits->empty() && waits->size() != ports) {
        reject(where + ": " + std::to_string(waits->size()) + " waits", "give one per port");
      }
      checkTimes(where, *waits);
    }
  }
}

void checkMemory(const StageProblem& problem) {
  if (!problem.memory_limit_bytes) return;
  if (*problem.memory_limit_bytes < 0) {
    reject("memory limit " + std::to_string(*problem.memory_limit_bytes), "give 0 bytes or more");
  }
  if (!problem.memory.empty() && problem.memory.size() != problem.kinds.size()) {
    reject(std::to_string(problem.memory.size()) + " memory tables for " +
               std::to_string(problem.kinds.size()) + " kinds of stages",
           "give one per kind");
  }
  for (const StageMemory& memory : problem.memory) {
    if (memory.fixed_bytes.numLayers() != problem.num_layers ||
        memory.per_microbatch_bytes.numLayers() != problem.num_layers) {
      reject("a memory table of another number of layers", "give every range of layers");
    }
    for (int i = 0; i < problem.num_layers; ++i) {
      for (int j = i + 1; j <= problem.num_layers; ++j) {
        if (memory.fixed_bytes.at(i, j) < 0 || memory.per_microbatch_bytes.at(i, j) < 0) {
          reject("layers " + std::to_string(i) + " to " + std::to_string(j) + ": negative bytes",
                 "bytes are 0 or more");
        }
      }
    }
  }
}

}  // namespace

void validate(const StageProblem& problem) {
  if (problem.num_layers < 1 || problem.num_devices < 1 || problem.num_microbatches < 1 ||
      problem.num_specs < 1) {
    reject(std::to_string(problem.num_layers) + " layers, " + std::to_string(problem.num_devices) +
               " devices, " + std::to_string(problem.num_microbatches) + " microbatches, " +
               std::to_string(problem.num_specs) + " specs",
           "give at least one of each");
  }
  checkShapes(problem.submeshes);
  if (problem.num_stages && (*problem.num_stages < 1 || *problem.num_stages > problem.num_layers)) {
    reject("num_stages " + std::to_string(*problem.num_stages) + " of " +
               std::to_string(problem.num_layers) + " layers",
           "1 up to the number of layers");
  }
  if (problem.schedule == ScheduleKind::kInterleaved1F1B) {
    reject("schedule \"interleaved_1f1b\"", "\"gpipe\", \"1f1b\" or \"zero_bubble\"");
  }
  if (problem.times.size() != problem.kinds.size()) {
    reject(std::to_string(problem.times.size()) + " time tables for " +
               std::to_string(problem.kinds.size()) + " kinds of stages",
           "give one per kind");
  }
  const auto outside = [](std::int32_t index, std::size_t size) {
    return index < 0 || static_cast<std::size_t>(index) >= size;
  };
  const auto num_specs = static_cast<std::size_t>(problem.num_specs);
  for (std::size_t k = 0; k < problem.kinds.size(); ++k) {
    const StageKind& kind = problem.kinds[k];
    if (outside(kind.submesh, problem.submeshes.size()) || outside(kind.entry_spec, num_specs) ||
        outside(kind.exit_spec, num_specs)) {
      reject("kind " + std::to_string(k) + " names a submesh or spec that is none",
             "indices start at 0");
    }
    const RangeTable<double>& times = problem.times[k];
    if (times.numLayers() != problem.num_layers) {
      reject("a time table of another number of layers", "give every range of layers");
    }
    for (int i = 0; i < problem.num_layers; ++i) {
      for (int j = i + 1; j <= problem.num_layers; ++j) {
        if (std::isnan(times.at(i, j)) || times.at(i, j) < 0) {
          reject("layers " + std::to_string(i) + " to " + std::to_string(j) + ": time " +
                     std::to_string(times.at(i, j)),
                 "times are 0 or more; infinity forbids");
        }
      }
    }
  }
  checkBoundaries(problem);
  checkMemory(problem);
}

}  // namespace shardwright
