// What stands in the graph of one layer, as references into the whole graph, before it is written.
// Private to layer_*.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace shardwright {

struct LayerEntry {
  enum class Kind : std::uint8_t { kInput, kReceived, kCall, kSend };
  Kind kind = Kind::kCall;
  ValueRef value;  // kReceived, kSend: which value; else output 0 of the node
  Phase phase = Phase::kForward;
  bool is_late = false;  // see Node::is_late
};

// Entries in the order of the layer's graph.
struct LayerList {
  std::vector<LayerEntry> entries;
  std::vector<std::size_t> outputs;  // indices into the whole graph's outputs
};

// The value of another layer that entry `received` brings in, by value.
using ReceivedPhases = std::map<ValueRef, Phase>;

// Writes layers one after the other; keeps a table over the whole graph in between, so that a layer
// costs no more than its own size.
class LayerWriter {
 public:
  explicit LayerWriter(const Graph& whole)
      : whole_(whole), place_(whole.nodes().size()), stamp_(whole.nodes().size(), -1) {}

  // Makes `list` the layer that the next calls are about.
  void begin(const LayerList& list);
  // Text that is equal for layers whose graphs are equal up to names.
  std::string signature() const;
  Graph graph() const;
  // Index of the entry that sends or receives `value`, -1 where there is none.
  std::int64_t entryOf(LayerEntry::Kind kind, ValueRef value) const;

 private:
  ValueRef local(ValueRef value) const;
  void sign(std::string& text, const Arg& arg) const;
  void sign(std::string& text, const Node& node) const;
  Arg renamed(const Arg& arg) const;

  const Graph& whole_;
  const LayerList* list_ = nullptr;
  int number_ = -1;
  std::vector<std::size_t> place_;  // by node of the whole graph: entry, where stamped
  std::vector<int> stamp_;
  std::map<ValueRef, std::size_t> received_;
  std::map<ValueRef, std::size_t> sent_;
};

}  // namespace shardwright
