// Sharding rules in factor notation, as in "m k, k n -> m n", one per node.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "sharding/placement.h"

namespace shardwright {

// An index of the op's iteration space. A factor in an output is parallel there; a factor that an
// operand has and an output lacks is a reduction, and that output becomes partial.
struct Factor {
  std::int64_t size = 1;
  bool blocked = false;              // never sharded (softmax dim, conv window, sort dim)
  ReduceOp reduce = ReduceOp::kSum;  // how an output without this factor is completed
  // Sharding it needs to know which part this rank holds (vocabulary of an embedding, arange):
  // the op named in ShardingRule::offset_op is emitted instead. Only the outermost atom of such a
  // factor may be sharded; at most one such factor of an op is.
  bool needs_offset = false;
  // needs_offset, after refinement: elements of the original factor per index of this atom, so
  // that the first global index is stride * (first index of this rank's part of the atom).
  std::int64_t offset_stride = 1;
};

// The factors of one tensor: per dim, outer to inner; a size-1 or broadcast dim has none.
struct TensorMap {
  std::vector<std::vector<int>> dims;
  bool missing_is_partial = true;  // outputs: a missing factor leaves P (else: replicated result)
  // Outputs: factors whose absence leaves this output whole all the same (the in-channel factor for
  // the bias gradient of a convolution).
  std::vector<int> unaffected;
};

// A way for a pending reduction to pass through: where all operands with `operands[i]` are P on an
// axis (and the others R), the outputs with `outputs[o]` are P too (and the others R). Linear ops
// have some: both operands of add; either operand of mul; the operand of a sum.
struct PartialRule {
  std::vector<bool> operands;
  std::vector<bool> outputs;
  ReduceOp reduce = ReduceOp::kSum;
};

// An argument that must change when its op runs on shards.
struct ArgEdit {
  enum class Kind : std::uint8_t {
    kLocalShape,  // argument becomes the local shape of output `output` (view, expand, full)
    kLocalDim,    // integer argument becomes the local size of dim `dim` of output `output`
    kScale,       // integer argument is scaled by local/global size of dim `dim` of operand
                  // `operand`, or of output `output` where `operand` is -1 (slice bounds on a dim
                  // whose inner atom is sharded). A value past the global size is cut to it first,
                  // a negative one has it added first.
    // Integer lists over the atoms of dim-flattened output `output`, for random streams and other
    // ops that must know global positions:
    kGlobalAtoms,  // global size of each atom, in the order of the output's dims
    kLocalAtoms,   // local size of each atom
    kAtomStarts,   // first global index of this rank's part of each atom
  };
  Kind kind = Kind::kLocalShape;
  // Position in Node::args; -1 - k: the k-th extra argument after them, given only when
  // ShardingRule::offset_op or sharded_op is emitted.
  int arg = 0;
  int element = -1;  // element of a list argument, -1 = the whole argument
  int output = 0;
  int operand = 0;
  int dim = 0;
};

struct ShardingRule {
  std::vector<Factor> factors;
  std::vector<TensorMap> operands;  // as Node::operands()
  std::vector<TensorMap> outputs;
  std::vector<PartialRule> partials;
  std::vector<ArgEdit> edits;
  // Emitted instead of the node's op when a needs_offset factor is sharded; takes the same
  // arguments, then the extra arguments of `edits`, then one integer: the first global index of
  // this rank's part of that factor.
  std::string offset_op;
  // Emitted instead of the node's op whenever anything is sharded (extra arguments by `edits`).
  std::string sharded_op;
  // Pure view: output 0 is operand 0's storage with its atoms regrouped or permuted; it needs no
  // decision of its own.
  bool is_view = false;
  // Output o lives in the storage of operand aliases[o] (slices, expand, in-place updates), -1 =
  // own storage. A slice of a converted operand lives in the converted copy; where `in_place`, the
  // aliased operand may not be converted on the way in.
  std::vector<int> aliases;
  bool in_place = false;
  double flops = 0;  // of the whole op; multiply-add counts 2
  // Tensor bytes it reads and writes are derived from operands and outputs unless >= 0.
  double bytes_moved = -1;
};

}  // namespace shardwright
