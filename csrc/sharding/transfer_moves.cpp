#include "sharding/transfer_moves.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <tuple>
#include <utility>

namespace shardwright {

namespace {

// How tiles that several ranks of one host need get there.
struct Strategy {
  bool split_within_hosts = false;   // tiles that a rank of the host has: parts, else whole to each
  bool split_between_hosts = false;  // tiles from another host: parts, else whole to one
};
constexpr std::array<Strategy, 3> kSplittingStrategies = {
    {{.split_between_hosts = true},
     {.split_within_hosts = true},
     {.split_within_hosts = true, .split_between_hosts = true}}};

// A part that one of `senders` has to send, to `receivers.front()` or, with `any_receiver`, to one
// of them; the others get it from there.
struct Job {
  Region region;
  std::int64_t bytes = 0;
  const std::vector<int>* senders = nullptr;  // devices
  std::vector<int> receivers;                 // devices
  bool any_receiver = false;
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
  std::vector<Move> assign(std::vector<Job> jobs) const;
  double phaseCostUs(const std::vector<Move>& moves, bool gather) const;
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

std::vector<Job> MovePlanner::jobs(const Strategy& strategy) const {
  std::vector<Job> result;
  for (std::size_t t = 0; t < all_.tiles.size(); ++t) {
    const Tile& tile = all_.tiles[t];
    const std::vector<int>& holders = all_.source.holders[tile.source];
    const std::vector<HostGroup>& near = source_groups_[tile.source];
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
      const bool crosses = same_host == near.end();
      const std::vector<int>* senders = crosses ? &holders : &same_host->devices;
      const auto add = [&](const Region& region, std::vector<int> to, bool any_receiver) {
        result.push_back({.region = region,
                          .bytes = numElements(region) * all_.element_bytes,
                          .senders = senders,
                          .receivers = std::move(to),
                          .any_receiver = any_receiver,
                          .crosses_hosts = crosses});
      };
      const bool split = crosses ? strategy.split_between_hosts : strategy.split_within_hosts;
      if (split && receivers.size() > 1) {
        for (const Region& piece : splitRegion(tile.region, receivers.size())) {
          add(piece, receivers, /*any_receiver=*/false);
          std::rotate(receivers.begin(), receivers.begin() + 1, receivers.end());
        }
      } else if (crosses) {
        add(tile.region, receivers, /*any_receiver=*/true);
      } else {
        for (const int receiver : receivers) {
          add(tile.region, {receiver}, /*any_receiver=*/false);
        }
      }
    }
  }
  return result;
}

std::vector<Move> MovePlanner::assign(std::vector<Job> jobs) const {
  // What crosses hosts first: a NIC is the scarcer link, and the ports then even out.
  std::stable_sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) {
    return std::tuple(!a.crosses_hosts, -a.bytes) < std::tuple(!b.crosses_hosts, -b.bytes);
  });
  std::vector<std::int64_t> nic_out(all_.host_names.size(), 0);
  std::vector<Port> ports(all_.ranks.size());
  const auto port = [&](int device) -> Port& { return ports[static_cast<std::size_t>(device)]; };
  std::vector<Move> moves;
  for (const Job& job : jobs) {
    const auto nic = [&](int device) -> std::int64_t& {
      return nic_out[static_cast<std::size_t>(all_.hostOf(device))];
    };
    const int from = *std::min_element(job.senders->begin(), job.senders->end(), [&](int a, int b) {
      return std::tuple(job.crosses_hosts ? nic(a) : 0, port(a).out, a) <
             std::tuple(job.crosses_hosts ? nic(b) : 0, port(b).out, b);
    });
    const int to = job.any_receiver ? *std::min_element(job.receivers.begin(), job.receivers.end(),
                                                        [&](int a, int b) {
                                                          return std::tuple(port(a).in, a) <
                                                                 std::tuple(port(b).in, b);
                                                        })
                                    : job.receivers.front();
    port(from).out += job.bytes;
    port(to).in += job.bytes;
    if (job.crosses_hosts) {
      nic(from) += job.bytes;
    }
    moves.push_back({.from = from, .to = to, .region = job.region, .bytes = job.bytes});
    for (const int other : job.receivers) {
      if (other != to) {
        moves.push_back(
            {.gather = true, .from = to, .to = other, .region = job.region, .bytes = job.bytes});
      }
    }
  }
  return moves;
}

double MovePlanner::phaseCostUs(const std::vector<Move>& moves, bool gather) const {
  std::vector<Port> ports(all_.ranks.size());
  std::vector<Port> nics(all_.host_names.size());
  std::vector<std::pair<int, int>> messages;
  for (const Move& move : moves) {
    if (move.gather != gather) {
      continue;
    }
    messages.emplace_back(move.from, move.to);
    ports[static_cast<std::size_t>(move.from)].out += move.bytes;
    ports[static_cast<std::size_t>(move.to)].in += move.bytes;
    if (all_.hostOf(move.from) != all_.hostOf(move.to)) {
      nics[static_cast<std::size_t>(all_.hostOf(move.from))].out += move.bytes;
      nics[static_cast<std::size_t>(all_.hostOf(move.to))].in += move.bytes;
    }
  }
  if (messages.empty()) {
    return 0;
  }
  const auto busiest = [](const std::vector<Port>& links) {
    std::int64_t bytes = 0;
    for (const Port& link : links) {
      bytes = std::max({bytes, link.out, link.in});
    }
    return static_cast<double>(bytes);
  };
  double bytes_us = busiest(ports) / cluster_.intra_host.bandwidth_bytes_per_us;
  if (const double nic_bytes = busiest(nics); nic_bytes > 0) {
    bytes_us = std::max(bytes_us, nic_bytes / cluster_.inter_host.bandwidth_bytes_per_us);
  }
  std::sort(messages.begin(), messages.end());
  messages.erase(std::unique(messages.begin(), messages.end()), messages.end());
  std::vector<int> count(all_.ranks.size(), 0);
  std::vector<bool> leaves_host(all_.ranks.size(), false);
  for (const auto& [from, to] : messages) {
    for (const int device : {from, to}) {
      const auto index = static_cast<std::size_t>(device);
      ++count[index];
      leaves_host[index] = leaves_host[index] || all_.hostOf(from) != all_.hostOf(to);
    }
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
  PricedMoves result{.moves = assign(jobs(strategy))};
  result.cost_us =
      phaseCostUs(result.moves, /*gather=*/false) + phaseCostUs(result.moves, /*gather=*/true);
  return result;
}

PricedMoves MovePlanner::cheapest() const {
  bool choice_within = false;
  bool choice_between = false;
  for (const Job& job : jobs({.split_within_hosts = true, .split_between_hosts = true})) {
    (job.crosses_hosts ? choice_between : choice_within) |= job.receivers.size() > 1;
  }
  PricedMoves best = priced({});
  for (const Strategy& strategy : kSplittingStrategies) {
    if ((strategy.split_within_hosts && !choice_within) ||
        (strategy.split_between_hosts && !choice_between)) {
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
