// Distinct id types, so that the index of a node is never taken for the index of an edge.

#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace shardwright {

// An index into one table, or nothing (the default). Ids order and hash by index; different Tags do
// not mix.
//
//   NodeId node(3);
//   costs[node.index()];
template <typename Tag>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(std::size_t index) : value_(static_cast<std::int32_t>(index)) {}

  constexpr bool isValid() const { return value_ >= 0; }
  // Contract: isValid().
  constexpr std::size_t index() const { return static_cast<std::size_t>(value_); }

  friend constexpr auto operator<=>(const Id&, const Id&) = default;

 private:
  std::int32_t value_ = -1;
};

using NodeId = Id<struct NodeTag>;
using EdgeId = Id<struct EdgeTag>;
using StageId = Id<struct StageTag>;

}  // namespace shardwright

template <typename Tag>
struct std::hash<shardwright::Id<Tag>> {
  std::size_t operator()(const shardwright::Id<Tag>& id) const noexcept {
    return id.isValid() ? std::hash<std::size_t>{}(id.index()) : static_cast<std::size_t>(-1);
  }
};
