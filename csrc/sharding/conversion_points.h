// Where a value is held in a spec of its own choosing for several consumers: the one definition
// that the search, the emission and the certificate go by.
#pragma once

#include <vector>

#include "graph/graph.h"
#include "sharding/sharded_graph.h"

namespace shardwright {

// One reader of a root value: operand `operand` of the non-view node `node`, through any views, or
// result `result` (index into Graph::outputs()) when that is >= 0. New values of inputs are written
// back into the input's buffer right after `node`: the later of the value's own op and the last
// reader of the old value. Values returned to the user are read when the step is over: `node` is
// invalid.
struct ValueUse {
  NodeId node;
  int operand = 0;
  int result = -1;

  bool isResult() const { return result >= 0; }
};

// A place where a value is held in a spec for several uses, so that its conversion is priced once,
// emitted once, and occupies memory from its making to its last use.
//
// Values (roots, with the uses of all their views) with two or more uses, and op outputs whose one
// use by a node comes after a change of phase (saved activations, gradients), have a point. It
// serves all uses, unless those of later phases may want the value in another form than those of
// the first phase that uses it: where the first phase has two or more uses (or, of a graph input,
// the later ones have), there are two points, group 0 for the first phase and group 1 for the later
// ones. Group 1 takes either the value itself again ("gather again in backward") or the conversion
// of group 0 when it has the same spec ("keep it"). All other uses convert privately, right before
// their node.
//
// What is added up over microbatches counts as read in the phase that makes it.
//
// Conversions of op outputs are made right after the op (so that a partial gradient dies at once),
// those of graph inputs right before the first use of their group.
//
// Example: h = layer_norm(x) read by three products (forward) and by their backward products has
// {h, 0, {mm, mm, mm}} and {h, 1, {mm, mm, mm}}; h = gelu(x) read by one product and by its
// backward has {h, 0, {mm, mm}}.
struct ConversionPoint {
  ValueRef value;  // the root
  int group = 0;
  Phase phase = Phase::kForward;  // of the group's first use: its price has that phase's weight
  std::vector<ValueUse> uses;     // in execution order
};

// Uses of every root value, [node][output], in execution order; views have none (theirs are their
// root's). In-place uses (the user's output overwrites the value's buffer, ShardingRule::in_place)
// are listed apart: they read the value's own buffer in its own spec, never a conversion.
struct ValueUses {
  std::vector<ValueUse> converting;
  std::vector<ValueUse> in_place;
};
std::vector<std::vector<ValueUses>> valueUses(const ShardedGraph& graph);

// The value whose own buffer `value` is in, through pure views and in-place updates (slices count
// as values of their own: they live in whatever copy they are cut from).
ValueRef bufferOwner(const ShardedGraph& graph, ValueRef value);

// Whether `node` adds its operand up over microbatches (shardwright.accumulate): it stands in the
// update, reads its operand in every microbatch right where that is made, and what it gives is in
// memory throughout.
bool accumulatesMicrobatches(const Node& node);

// Whether what `node` gives is one for all microbatches: a sum over them or a joined result. All
// else that forward and backward make is there once per microbatch.
bool spansMicrobatches(const Node& node);

// All points, ordered by value, then group.
std::vector<ConversionPoint> conversionPoints(const ShardedGraph& graph);

}  // namespace shardwright
