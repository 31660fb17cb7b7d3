#include "sharding/transfer_moves.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <tuple>
#include <utility>

namespace shardwright {

namespace {

// How tiles that several ranks need get there.
struct Strategy {
  bool split_within_hosts = false;   // tiles that a rank of the host has: parts, else whole to each
  bool split_between_hosts = false;  // tiles from another host: parts, else whole to one
  bool relay = false;                // tiles for several hosts: a part to each, else a copy to each
};
constexpr int kNumStrategies = 8;
Strategy strategyOf(int number) {
  return {.split_within_hosts = (number & 2) != 0,
          .split_between_hosts = (number & 1) != 0,
          .relay = (number & 4) != 0};
}

// Devices that lack a tile, host by host.
using Receivers = std::vector<std::vector<int>>;

// A part that one of `senders` has to send into one host, from where the others get it. It enters
// each host at one of its receivers, and the others of the host get it from there.
struct Job {
  Region region;
  std::int64_t bytes = 0;
  const std::vector<int>* senders = nullptr;  // devices
  std::shared_ptr<const Receivers> receivers;
  std::size_t first_host = 0;  // where it is sent
  // The receiver it enters at, counted round; or any of them.
  std::size_t slot = 0;
  bool any_slot = false;
  bool crosses_hosts = false;
};

struct Port {
  std::int64_t out = 0;
  std::int64_t in = 0;
};

// Devices of one host.
struct HostGroup {
  int host = 0;
  std::vector<int> devices;
};

class MovePlanner {
 public:
  MovePlanner(const TransferTiles& tiles, const Cluster& cluster)
      : all_(tiles),
        cluster_(cluster),
        source_groups_(groupByHost(tiles.source)),
        target_groups_(groupByHost(tiles.target)) {}

  PricedMoves cheapest() const;

 private:
  std::vector<std::vector<HostGroup>> groupByHost(const ShardGrid& grid) const;
  std::vector<Job> jobs(const Strategy& strategy) const;
  // Jobs that bring a region to the receivers of one or several hosts, each in `slots` parts.
  void addJobs(const Region& region, const std::vector<int>& senders, bool crosses_hosts,
               Receivers receivers, std::size_t slots, std::vector<Job>& jobs) const;
  PricedMoves assign(std::vector<Job> jobs) const;
  double phaseCostUs(const std::vector<Move>& moves, TransferKind kind) const;
  PricedMoves priced(const Strategy& strategy) const;

  const TransferTiles& all_;
  const Cluster& cluster_;
  std::vector<std::vector<HostGroup>> source_groups_;  // per shard
  std::vector<std::vector<HostGroup>> target_groups_;
};

std::vector<std::vector<HostGroup>> MovePlanner::groupByHost(const ShardGrid& grid) const {
  std::vector<std::vector<HostGroup>> by_shard(grid.holders.size());
  for (std::size_t shard = 0; shard < grid.holders.size(); ++shard) {
    std::vector<HostGroup>& groups = by_shard[shard];
    for (const int device : grid.holders[shard]) {
      const auto group = std::find_if(groups.begin(), groups.end(), [&](const HostGroup& known) {
        return known.host == all_.hostOf(device);
      });
      if (group == groups.end()) {
        groups.push_back({.host = all_.hostOf(device), .devices = {device}});
      } else {
        group->devices.push_back(device);
      }
    }
  }
  return by_shard;
}

void MovePlanner::addJobs(const Region& region, const std::vector<int>& senders, bool crosses_hosts,
                          Receivers receivers, std::size_t slots, std::vector<Job>& jobs) const {
  const std::size_t num_hosts = receivers.size();
  const auto shared = std::make_shared<const Receivers>(std::move(receivers));
  std::vector<Region> pieces = splitRegion(region, num_hosts * slots);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::int64_t bytes = numElements(pieces[i]) * all_.element_bytes;
    jobs.push_back({.region = std::move(pieces[i]),
                    .bytes = bytes,
                    .senders = &senders,
                    .receivers = shared,
                    .first_host = i % num_hosts,
                    .slot = i / num_hosts,
                    .any_slot = slots == 1,
                    .crosses_hosts = crosses_hosts});
  }
}

std::vector<Job> MovePlanner::jobs(const Strategy& strategy) const {
  std::vector<Job> result;
  for (const Tile& tile : all_.tiles) {
    const std::vector<int>& holders = all_.source.holders[tile.source];
    const std::vector<HostGroup>& near = source_groups_[tile.source];
    Receivers far;
    for (const HostGroup& group : target_groups_[tile.target]) {
      std::vector<int> receivers;
      std::set_difference(group.devices.begin(), group.devices.end(), holders.begin(),
                          holders.end(), std::back_inserter(receivers));
      if (receivers.empty()) {
        continue;
      }
      const auto same_host = std::find_if(near.begin(), near.end(), [&](const HostGroup& senders) {
        return senders.host == group.host;
      });
      if (same_host == near.end()) {
        far.push_back(std::move(receivers));
      } else if (strategy.split_within_hosts) {
        addJobs(tile.region, same_host->devices, false, {receivers}, receivers.size(), result);
      } else {
        for (const int receiver : receivers) {
          addJobs(tile.region, same_host->devices, false, {{receiver}}, 1, result);
        }
      }
    }
    const auto slots = [&](const std::vector<int>& receivers) {
      return strategy.split_between_hosts ? receivers.size() : 1;
    };
    if (strategy.relay && far.size() > 1) {
      std::size_t most = 1;
      for (const std::vector<int>& receivers : far) {
        most = std::max(most, slots(receivers));
      }
      addJobs(tile.region, holders, true, std::move(far), most, result);
    } else {
      for (const std::vector<int>& receivers : far) {
        addJobs(tile.region, holders, true, {receivers}, slots(receivers), result);
      }
    }
  }
  return result;
}

PricedMoves MovePlanner::assign(std::vector<Job> jobs) const {
  // What crosses hosts first: a NIC is the scarcer link, and the ports then even out.
  std::stable_sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) {
    return std::tuple(!a.crosses_hosts, -a.bytes) < std::tuple(!b.crosses_hosts, -b.bytes);
  });
  std::vector<std::int64_t> nic_out(all_.host_names.size(), 0);
  std::vector<Port> ports(all_.ranks.size());
  const auto port = [&](int device) -> Port& { return ports[static_cast<std::size_t>(device)]; };
  PricedMoves result;
  for (Job& job : jobs) {
    const auto nic = [&](int device) -> std::int64_t& {
      return nic_out[static_cast<std::size_t>(all_.hostOf(device))];
    };
    const int from = *std::min_element(job.senders->begin(), job.senders->end(), [&](int a, int b) {
      return std::tuple(job.crosses_hosts ? nic(a) : 0, port(a).out, a) <
             std::tuple(job.crosses_hosts ? nic(b) : 0, port(b).out, b);
    });
    const auto entry_among = [&](const std::vector<int>& devices) {
      const auto least = [&](int a, int b) {
        return std::tuple(port(a).in, a) < std::tuple(port(b).in, b);
      };
      return job.any_slot ? *std::min_element(devices.begin(), devices.end(), least)
                          : devices[job.slot % devices.size()];
    };
    const auto add = [&](TransferKind kind, int source, int target) {
      result.moves.push_back({.kind = kind,
                              .from = source,
                              .to = target,
                              .piece = result.pieces.size(),
                              .bytes = job.bytes});
    };
    port(from).out += job.bytes;
    if (job.crosses_hosts) {
      nic(from) += job.bytes;
    }
    int first_entry = -1;
    for (std::size_t i = 0; i < job.receivers->size(); ++i) {
      const std::vector<int>& devices =
          (*job.receivers)[(job.first_host + i) % job.receivers->size()];
      const int entry = entry_among(devices);
      port(entry).in += job.bytes;
      if (first_entry < 0) {
        first_entry = entry;
        add(TransferKind::kSend, from, entry);
      } else {
        add(TransferKind::kRelay, first_entry, entry);
      }
      for (const int other : devices) {
        if (other != entry) {
          add(TransferKind::kGather, entry, other);
        }
      }
    }
    result.pieces.push_back(std::move(job.region));
  }
  return result;
}

double MovePlanner::phaseCostUs(const std::vector<Move>& moves, TransferKind kind) const {
  std::vector<Port> ports(all_.ranks.size());
  std::vector<Port> nics(all_.host_names.size());
  const std::size_t num_devices = all_.ranks.size();
  std::vector<bool> message(num_devices * num_devices, false);  // by sender and receiver
  std::vector<int> count(num_devices, 0);
  std::vector<bool> leaves_host(num_devices, false);
  for (const Move& move : moves) {
    if (move.kind != kind) {
      continue;
    }
    const auto from = static_cast<std::size_t>(move.from);
    const auto to = static_cast<std::size_t>(move.to);
    const bool crosses = all_.hostOf(move.from) != all_.hostOf(move.to);
    ports[from].out += move.bytes;
    ports[to].in += move.bytes;
    if (crosses) {
      nics[static_cast<std::size_t>(all_.hostOf(move.from))].out += move.bytes;
      nics[static_cast<std::size_t>(all_.hostOf(move.to))].in += move.bytes;
    }
    if (!message[from * num_devices + to]) {
      message[from * num_devices + to] = true;
      for (const std::size_t device : {from, to}) {
        ++count[device];
        leaves_host[device] = leaves_host[device] || crosses;
      }
    }
  }
  const auto busiest = [](const std::vector<Port>& links) {
    std::int64_t bytes = 0;
    for (const Port& link : links) {
      bytes = std::max({bytes, link.out, link.in});
    }
    return static_cast<double>(bytes);
  };
  const double port_bytes = busiest(ports);
  const double nic_bytes = busiest(nics);
  double bytes_us = 0;
  if (port_bytes > 0) {
    bytes_us = port_bytes / cluster_.intra_host.bandwidth_bytes_per_us;
  }
  if (nic_bytes > 0) {
    bytes_us = std::max(bytes_us, nic_bytes / cluster_.inter_host.bandwidth_bytes_per_us);
  }
  double latency_us = 0;
  for (std::size_t device = 0; device < count.size(); ++device) {
    const Link& link = leaves_host[device] ? cluster_.inter_host : cluster_.intra_host;
    if (count[device] > 0) {
      latency_us =
          std::max(latency_us, link.latency_us + link.hop_latency_us * (count[device] - 1));
    }
  }
  return bytes_us + latency_us;
}

PricedMoves MovePlanner::priced(const Strategy& strategy) const {
  PricedMoves result = assign(jobs(strategy));
  for (const TransferKind kind :
       {TransferKind::kSend, TransferKind::kRelay, TransferKind::kGather}) {
    result.cost_us += phaseCostUs(result.moves, kind);
  }
  return result;
}

PricedMoves MovePlanner::cheapest() const {
  Strategy choices;
  for (const Job& job : jobs(strategyOf(kNumStrategies - 1))) {
    choices.relay |= job.receivers->size() > 1;
    for (const std::vector<int>& receivers : *job.receivers) {
      (job.crosses_hosts ? choices.split_between_hosts : choices.split_within_hosts) |=
          receivers.size() > 1;
    }
  }
  PricedMoves best = priced({});
  for (int number = 1; number < kNumStrategies; ++number) {
    const Strategy strategy = strategyOf(number);
    if (strategy.split_within_hosts > choices.split_within_hosts ||
        strategy.split_between_hosts > choices.split_between_hosts ||
        strategy.relay > choices.relay) {
      continue;
    }
    PricedMoves other = priced(strategy);
    if (other.cost_us < best.cost_us) {
      best = std::move(other);
    }
  }
  return best;
}

}  // namespace

PricedMoves cheapestMoves(const TransferTiles& tiles, const Cluster& cluster) {
  return MovePlanner(tiles, cluster).cheapest();
}

}  // namespace shardwright
