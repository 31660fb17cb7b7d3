#include "interop/stage_tables.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

namespace shardwright {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();

// The one empty spec of a missing value is port 0.
std::vector<int> portsOf(StagePorts& ports, const StageMesh& mesh,
                         const std::vector<ShardingSpec>& specs, std::size_t num_dims) {
  std::vector<int> result;
  for (const ShardingSpec& spec : specs) {
    result.push_back(spec.empty() ? 0
                                  : ports.portOf(mesh.submesh, mesh.mesh_shape, spec, num_dims));
  }
  return result;
}

// Of a tensor what each device has.
double shareOf(const StageMesh& mesh, const ShardingSpec& spec) {
  double share = 1;
  for (std::size_t axis = 0; axis < spec.size(); ++axis) {
    if (spec[axis].kind == Placement::Kind::kShard) share /= mesh.mesh_shape[axis];
  }
  return share;
}

// Half of each time; 0 where nothing is possible.
std::vector<double> halves(std::vector<double> times) {
  for (double& time : times) time = time < kImpossible ? time / 2 : 0;
  return times;
}

}  // namespace

StageTables::StageTables(const LayerSequences& sequences, const std::vector<BoundaryDims>& dims,
                         const std::vector<StageMesh>& meshes,
                         const std::vector<SubmeshShape>& submeshes,
                         const std::vector<BoundaryTensors>& boundary_tensors,
                         const Cluster& cluster, const StageTableOptions& options)
    : sequences_(sequences),
      meshes_(meshes),
      options_(options),
      passing_(passingBytes(sequences.numLayers(), options.passing_values)),
      recomputed_passing_(passingBytes(sequences.numLayers(), options.recomputed_passing_values)),
      ports_(submeshes.size()) {
  problem_.num_layers = sequences.numLayers();
  problem_.submeshes = submeshes;
  problem_.num_devices = cluster.numDevices();
  problem_.num_microbatches = options.num_microbatches;
  problem_.charge = TransferCharge::kLink;
  problem_.memory_limit_bytes = options.memory_limit_bytes;
  collectWays(dims, meshes);
  problem_.num_specs = ports_.numPorts();
  addKinds();
  addBoundaries(boundary_tensors, cluster);
}

double StageTables::timeOf(const StageCost& cost) const {
  return cost.forward_us + cost.backward_us + cost.update_us / options_.num_microbatches;
}

// Of what layers [begin, end) send others once per step.
double StageTables::leavingUs(int begin, int end) const {
  const auto is_inside = [&](int layer) { return begin <= layer && layer < end; };
  double sum = 0;
  for (const StepTransfer& transfer : options_.step_transfers) {
    if (is_inside(transfer.source) && !std::ranges::all_of(transfer.targets, is_inside)) {
      sum += transfer.time_us;
    }
  }
  return sum;
}

void StageTables::collectWays(const std::vector<BoundaryDims>& dims,
                              const std::vector<StageMesh>& meshes) {
  ways_.assign(problem_.submeshes.size(),
               std::vector<Ways>(static_cast<std::size_t>(sequences_.numSequences())));
  // Keys need the number of ports, which is known only when all were seen.
  std::vector<std::vector<Candidate>> found(problem_.submeshes.size());
  for (std::size_t m = 0; m < meshes.size(); ++m) {
    const StageMesh& mesh = meshes[m];
    std::vector<std::vector<int>> entry_ports;
    std::vector<std::vector<int>> exit_ports;
    for (std::size_t c = 0; c < mesh.tables.size(); ++c) {
      entry_ports.push_back(portsOf(ports_, mesh, mesh.tables[c].entry_specs, dims[c].entry));
      exit_ports.push_back(portsOf(ports_, mesh, mesh.tables[c].exit_specs, dims[c].exit));
    }
    for (std::size_t price = 0; price < options_.num_prices; ++price) {
      const auto costs = sequenceCosts(sequences_, mesh.tables, price);
      std::vector<int> first_class;
      for (int sequence = 0; sequence < sequences_.numSequences(); ++sequence) {
        const auto [front, last] = sequences_.step(sequence);
        first_class.push_back(front < 0 ? last : first_class[static_cast<std::size_t>(front)]);
        const std::vector<int>& entries = entry_ports[static_cast<std::size_t>(first_class.back())];
        const std::vector<int>& exits = exit_ports[static_cast<std::size_t>(last)];
        for (std::size_t entry = 0; entry < entries.size(); ++entry) {
          for (std::size_t exit = 0; exit < exits.size(); ++exit) {
            const StageCost& cost =
                costs[static_cast<std::size_t>(sequence)][entry * exits.size() + exit];
            if (!cost.possible) continue;
            found[static_cast<std::size_t>(mesh.submesh)].push_back(
                {sequence, entries[entry], exits[exit],
                 StageWay{
                     static_cast<int>(m), price, entry, exit, cost,
                     stageBytes(cost, options_.splits_backward, sequences_.isFirst(sequence))}});
          }
        }
      }
    }
  }
  const auto num_ports = static_cast<std::size_t>(ports_.numPorts());
  for (std::size_t submesh = 0; submesh < found.size(); ++submesh) {
    const std::vector<bool> kept = portsToKeep(static_cast<int>(submesh), found[submesh]);
    for (const auto& [sequence, entry, exit, way] : found[submesh]) {
      if (!kept[static_cast<std::size_t>(entry)] || !kept[static_cast<std::size_t>(exit)]) continue;
      const std::size_t key =
          static_cast<std::size_t>(entry) * num_ports + static_cast<std::size_t>(exit);
      ways_[submesh][static_cast<std::size_t>(sequence)][key].push_back(way);
    }
    for (Ways& groups : ways_[submesh]) {
      for (auto& [key, ways] : groups) prune(ways);
    }
  }
}

std::vector<bool> StageTables::portsToKeep(int submesh,
                                           const std::vector<Candidate>& candidates) const {
  const std::vector<StagePorts::Port>& ports = ports_.ports(submesh);
  const auto is_layer = [&](const Candidate& candidate) {
    return sequences_.lengthOf(candidate.sequence) == 1;
  };
  std::map<int, double> least;
  for (const Candidate& candidate : candidates) {
    if (!is_layer(candidate)) continue;
    const double time = timeOf(candidate.way.cost);
    const auto [found, is_new] = least.try_emplace(candidate.sequence, time);
    if (!is_new) found->second = std::min(found->second, time);
  }
  // Least of (time / least time) over the layers and sides on which the port stands.
  std::vector<double> excess(ports.size(), kImpossible);
  for (const Candidate& candidate : candidates) {
    if (!is_layer(candidate)) continue;
    const double ratio = timeOf(candidate.way.cost) / std::max(1e-9, least[candidate.sequence]);
    for (const int port : {candidate.entry, candidate.exit}) {
      double& known = excess[static_cast<std::size_t>(port)];
      known = std::min(known, ratio);
    }
  }
  // The first port is no layout.
  std::map<std::size_t, std::vector<std::size_t>> by_dims;
  for (std::size_t port = 1; port < ports.size(); ++port) {
    by_dims[ports[port].num_dims].push_back(port);
  }
  std::vector<bool> kept(ports.size(), false);
  kept[0] = true;
  for (auto& [dims, list] : by_dims) {
    std::ranges::stable_sort(list, {}, [&](std::size_t port) { return excess[port]; });
    list.resize(std::min(list.size(), options_.max_ports));
    for (const std::size_t port : list) kept[port] = true;
  }
  return kept;
}

void StageTables::prune(std::vector<StageWay>& ways) const {
  const auto memory = [](const StageWay& way) {
    return std::pair(way.bytes.held, way.bytes.per_microbatch);
  };
  std::ranges::stable_sort(ways, [&](const StageWay& a, const StageWay& b) {
    return std::tuple(timeOf(a.cost), memory(a)) < std::tuple(timeOf(b.cost), memory(b));
  });
  if (!options_.memory_limit_bytes) {
    ways.resize(1);
    return;
  }
  // The fastest says what memory costs, and what does not fit how much would do where nothing does.
  const auto is_too_large = [&](const StageWay& way) {
    return way.bytes.held + way.bytes.per_microbatch > *options_.memory_limit_bytes;
  };
  if (!std::ranges::all_of(ways, is_too_large)) {
    const auto others = std::remove_if(ways.begin() + 1, ways.end(), is_too_large);
    ways.erase(others, ways.end());
  }
  std::vector<StageWay> kept;
  for (const StageWay& way : ways) {
    const bool is_worse = std::ranges::any_of(kept, [&](const StageWay& other) {
      return memory(other).first <= memory(way).first && memory(other).second <= memory(way).second;
    });
    if (!is_worse) kept.push_back(way);
  }
  if (kept.size() > options_.most_ways) {
    // The fastest stays; the others go by the bytes they take, fewest first, evenly.
    const auto bytes = [&](const StageWay& way) {
      return way.bytes.held + kTypicalInFlight * way.bytes.per_microbatch;
    };
    std::stable_sort(kept.begin() + 1, kept.end(),
                     [&](const StageWay& a, const StageWay& b) { return bytes(a) < bytes(b); });
    std::vector<StageWay> few = {kept.front()};
    const std::size_t others = options_.most_ways - 1;
    for (std::size_t index = 0; index < others; ++index) {
      few.push_back(kept[1 + index * (kept.size() - 1) / others]);
    }
    kept = std::move(few);
    std::ranges::stable_sort(kept, [&](const StageWay& a, const StageWay& b) {
      return timeOf(a.cost) < timeOf(b.cost);
    });
  }
  ways = std::move(kept);
}

void StageTables::addKinds() {
  const auto num_ports = static_cast<std::size_t>(ports_.numPorts());
  RangeTable<double> leaving_us(problem_.num_layers, 0);
  for (int begin = 0; begin < problem_.num_layers; ++begin) {
    for (int end = begin + 1; end <= problem_.num_layers; ++end) {
      leaving_us.at(begin, end) = leavingUs(begin, end) / options_.num_microbatches;
    }
  }
  for (std::size_t submesh = 0; submesh < ways_.size(); ++submesh) {
    std::map<std::size_t, std::size_t> variants;
    for (const Ways& groups : ways_[submesh]) {
      for (const auto& [key, ways] : groups) {
        variants[key] = std::max(variants[key], ways.size());
      }
    }
    for (const auto& [key, count] : variants) {
      for (std::size_t variant = 0; variant < count; ++variant) {
        problem_.kinds.push_back(
            {static_cast<std::int32_t>(submesh), static_cast<std::int32_t>(key / num_ports),
             static_cast<std::int32_t>(key % num_ports), static_cast<std::int32_t>(variant)});
        group_of_kind_.push_back(key);
        RangeTable<double> times(problem_.num_layers, kImpossible);
        StageMemory memory{RangeTable<std::int64_t>(problem_.num_layers, 0),
                           RangeTable<std::int64_t>(problem_.num_layers, 0)};
        for (int begin = 0; begin < problem_.num_layers; ++begin) {
          for (int end = begin + 1; end <= problem_.num_layers; ++end) {
            const Ways& groups =
                ways_[submesh][static_cast<std::size_t>(sequences_.of(begin, end))];
            const auto found = groups.find(key);
            if (found == groups.end() || found->second.size() <= variant) continue;
            const StageWay& way = found->second[variant];
            times.at(begin, end) = timeOf(way.cost) + leaving_us.at(begin, end);
            const StageBytes bytes = bytesOf(begin, end, way);
            memory.fixed_bytes.at(begin, end) = bytes.held;
            memory.per_microbatch_bytes.at(begin, end) = bytes.per_microbatch;
          }
        }
        problem_.times.push_back(std::move(times));
        if (options_.memory_limit_bytes) problem_.memory.push_back(std::move(memory));
      }
    }
  }
}

StageBytes StageTables::bytes(int begin, int end, int kind) const {
  return bytesOf(begin, end, way(begin, end, kind));
}

StageBytes StageTables::bytesOf(int begin, int end, const StageWay& way) const {
  const StageMesh& mesh = meshes_[static_cast<std::size_t>(way.mesh)];
  const int sequence = sequences_.of(begin, end);
  const int last = sequences_.step(sequence).second;
  const LayerTable& first = mesh.tables[static_cast<std::size_t>(sequences_.classOf(begin))];
  const double entry = shareOf(mesh, first.entry_specs[way.entry]);
  const double exit =
      shareOf(mesh, mesh.tables[static_cast<std::size_t>(last)].exit_specs[way.exit]);
  const auto bytesIn = [&](const RangeTable<std::int64_t>& table, double share) {
    return static_cast<std::int64_t>(std::ceil(share * static_cast<double>(table.at(begin, end))));
  };
  const PassingBytes& passing = mesh.recomputed ? recomputed_passing_ : passing_;
  StageBytes bytes = way.bytes;
  bytes.per_microbatch += bytesIn(passing.activations, entry);
  // Each at least in as many parts as there are devices.
  bytes.per_microbatch -= passing.repeated.at(begin, end) /
                          problem_.submeshes[static_cast<std::size_t>(mesh.submesh)].numDevices();
  bytes.held += bytesIn(passing.inner, std::min(entry, exit));
  bytes.held += static_cast<std::int64_t>(
      std::ceil(passing.step_share.at(begin, end) * static_cast<double>(way.cost.step_bytes)));
  if (!options_.splits_backward) {
    bytes.held += bytesIn(passing.gradients, exit);
  } else if (sequences_.isFirst(sequence)) {
    bytes.per_microbatch += bytesIn(passing.first_gradients, exit);
  } else {
    bytes.per_microbatch += bytesIn(passing.gradients, exit);
  }
  return bytes;
}

void StageTables::addBoundaries(const std::vector<BoundaryTensors>& tensors,
                                const Cluster& cluster) {
  const auto num_specs = static_cast<std::size_t>(problem_.num_specs);
  const std::size_t num_ports = problem_.submeshes.size() * num_specs;
  std::set<std::size_t> exits;
  std::set<std::size_t> entries;
  for (const StageKind& kind : problem_.kinds) {
    const std::size_t base = static_cast<std::size_t>(kind.submesh) * num_specs;
    exits.insert(base + static_cast<std::size_t>(kind.exit_spec));
    entries.insert(base + static_cast<std::size_t>(kind.entry_spec));
  }
  std::map<BoundaryTensors, Boundary> known;
  problem_.boundaries.resize(static_cast<std::size_t>(problem_.num_layers));
  for (std::size_t layer = 1; layer < problem_.boundaries.size(); ++layer) {
    const auto [found, is_new] = known.try_emplace(tensors[layer]);
    if (is_new) {
      Boundary& boundary = found->second;
      boundary.time.assign(num_ports * num_ports, kImpossible);
      boundary.link_time.assign(num_ports * num_ports, kImpossible);
      std::vector<double> least_exit(num_ports, kImpossible);
      std::vector<double> least_entry(num_ports, kImpossible);
      for (const std::size_t exit : exits) {
        for (const std::size_t entry : entries) {
          const auto port = [&](std::size_t index) -> const StagePorts::Port& {
            return ports_.ports(static_cast<int>(index / num_specs))[index % num_specs];
          };
          const PortPrice price =
              portPrice(tensors[layer], port(exit), problem_.submeshes[exit / num_specs],
                        port(entry), problem_.submeshes[entry / num_specs], cluster);
          boundary.time[exit * num_ports + entry] = price.time_us;
          boundary.link_time[exit * num_ports + entry] = price.link_us;
          least_exit[exit] = std::min(least_exit[exit], price.time_us);
          least_entry[entry] = std::min(least_entry[entry], price.time_us);
        }
      }
      if (options_.waits_for_transfers) {
        boundary.exit_wait = halves(std::move(least_exit));
        boundary.entry_wait = halves(std::move(least_entry));
      }
    }
    problem_.boundaries[layer] = found->second;
  }
}

const StageWay& StageTables::way(int begin, int end, int kind) const {
  const auto index = static_cast<std::size_t>(kind);
  const auto submesh = static_cast<std::size_t>(problem_.kinds[index].submesh);
  const Ways& groups = ways_[submesh][static_cast<std::size_t>(sequences_.of(begin, end))];
  return groups.at(group_of_kind_[index])[static_cast<std::size_t>(problem_.kinds[index].variant)];
}

}  // namespace shardwright
