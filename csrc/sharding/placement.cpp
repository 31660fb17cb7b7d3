#include "sharding/placement.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"

namespace shardwright {

Placement Placement::shard(int atom_index, int order_index) {
  Placement result;
  result.kind = Kind::kShard;
  result.atom = static_cast<std::int16_t>(atom_index);
  result.order = static_cast<std::int8_t>(order_index);
  return result;
}

Placement Placement::partial(ReduceOp op) {
  Placement result;
  result.kind = Kind::kPartial;
  result.reduce = op;
  return result;
}

const char* reduceOpName(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kMin:
      return "min";
  }
  return "sum";
}

ShardingSpec replicatedSpec(int num_axes) {
  return ShardingSpec(static_cast<std::size_t>(num_axes));
}

bool hasPartial(const ShardingSpec& spec) {
  return std::any_of(spec.begin(), spec.end(), [](const Placement& placement) {
    return placement.kind == Placement::Kind::kPartial;
  });
}

std::vector<int> axesOfAtom(const ShardingSpec& spec, int atom) {
  std::vector<int> axes;
  for (std::size_t axis = 0; axis < spec.size(); ++axis) {
    if (spec[axis].kind == Placement::Kind::kShard && spec[axis].atom == atom) {
      axes.push_back(static_cast<int>(axis));
    }
  }
  std::stable_sort(axes.begin(), axes.end(), [&](int a, int b) {
    return spec[static_cast<std::size_t>(a)].order < spec[static_cast<std::size_t>(b)].order;
  });
  return axes;
}

std::vector<std::int64_t> atomShards(const TensorAtoms& atoms, const ShardingSpec& spec,
                                     const std::vector<int>& mesh_shape) {
  std::vector<std::int64_t> shards(atoms.sizes.size(), 1);
  for (std::size_t axis = 0; axis < spec.size(); ++axis) {
    if (spec[axis].kind == Placement::Kind::kShard) {
      shards[static_cast<std::size_t>(spec[axis].atom)] *= mesh_shape[axis];
    }
  }
  return shards;
}

std::vector<std::int64_t> localShape(const TensorAtoms& atoms, const ShardingSpec& spec,
                                     const std::vector<int>& mesh_shape) {
  const std::vector<std::int64_t> shards = atomShards(atoms, spec, mesh_shape);
  std::vector<std::int64_t> shape;
  shape.reserve(atoms.dims.size());
  for (const std::vector<int>& dim : atoms.dims) {
    std::int64_t size = 1;
    for (const int atom : dim) {
      const auto index = static_cast<std::size_t>(atom);
      size *= atoms.sizes[index] / shards[index];
    }
    shape.push_back(size);
  }
  return shape;
}

bool isValid(const TensorAtoms& atoms, const ShardingSpec& spec,
             const std::vector<int>& mesh_shape) {
  if (spec.size() != mesh_shape.size()) {
    return false;
  }
  const Placement* pending = nullptr;
  for (const Placement& placement : spec) {
    if (placement.kind == Placement::Kind::kPartial) {
      if (pending != nullptr && pending->reduce != placement.reduce) {
        return false;
      }
      pending = &placement;
    }
    if (placement.kind != Placement::Kind::kShard) {
      continue;
    }
    if (placement.atom < 0 || static_cast<std::size_t>(placement.atom) >= atoms.sizes.size()) {
      return false;
    }
    const std::vector<int> axes = axesOfAtom(spec, placement.atom);
    std::int64_t shards = 1;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      const auto axis = static_cast<std::size_t>(axes[i]);
      if (spec[axis].order != static_cast<int>(i)) {
        return false;
      }
      shards *= mesh_shape[axis];
    }
    if (atoms.sizes[static_cast<std::size_t>(placement.atom)] % shards != 0) {
      return false;
    }
  }
  return true;
}

namespace {

// "R" or "S" with its axes, outermost first.
std::string symbolOfAtom(const ShardingSpec& spec, int atom) {
  const std::vector<int> axes = axesOfAtom(spec, atom);
  if (axes.empty()) {
    return "R";
  }
  std::string text = "S";
  for (const int axis : axes) {
    text += static_cast<char>('0' + axis);
  }
  return text;
}

std::string symbolOfDim(const std::vector<int>& dim, const ShardingSpec& spec) {
  if (dim.empty()) {
    return "R";
  }
  const bool only_outermost = std::all_of(dim.begin() + 1, dim.end(),
                                          [&](int atom) { return axesOfAtom(spec, atom).empty(); });
  if (only_outermost) {
    return symbolOfAtom(spec, dim.front());
  }
  std::string text = "{";
  for (std::size_t i = 0; i < dim.size(); ++i) {
    text += (i > 0 ? "," : "") + symbolOfAtom(spec, dim[i]);
  }
  return text + "}";
}

constexpr std::array<ReduceOp, 3> kReduceOps = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin};

}  // namespace

std::string printSpec(const TensorAtoms& atoms, const ShardingSpec& spec) {
  std::string text;
  for (const std::vector<int>& dim : atoms.dims) {
    text += (text.empty() ? "" : " ") + symbolOfDim(dim, spec);
  }
  for (const ReduceOp op : kReduceOps) {
    std::string axes;
    for (std::size_t axis = 0; axis < spec.size(); ++axis) {
      if (spec[axis] == Placement::partial(op)) {
        axes += static_cast<char>('0' + axis);
      }
    }
    if (!axes.empty()) {
      text += (text.empty() ? "P" : " P") + axes;
      text += op == ReduceOp::kSum ? "" : "(" + std::string(reduceOpName(op)) + ")";
    }
  }
  return text.empty() ? "R" : text;
}

namespace {

// Reads one spec text against the atoms it must fit.
class SpecParser {
 public:
  SpecParser(const TensorAtoms& atoms, const std::string& text, int num_axes)
      : atoms_(atoms), text_(text), spec_(static_cast<std::size_t>(num_axes)) {}

  ShardingSpec parse() {
    const std::vector<std::string> words = split(text_, ' ');
    std::size_t next = 0;
    for (const std::vector<int>& dim : atoms_.dims) {
      if (next == words.size()) {
        fail("it has fewer symbols than the tensor has dims");
      }
      parseDim(words[next++], dim);
    }
    if (atoms_.dims.empty() && next < words.size() && words[next] == "R") {
      ++next;
    }
    for (; next < words.size(); ++next) {
      parsePartial(words[next]);
    }
    return std::move(spec_);
  }

 private:
  static std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts;
    std::string part;
    for (const char c : text) {
      if (c != separator) {
        part += c;
      } else if (separator != ' ' || !part.empty()) {
        parts.push_back(std::exchange(part, {}));
      }
    }
    if (separator != ' ' || !part.empty()) {
      parts.push_back(part);
    }
    return parts;
  }

  [[noreturn]] void fail(const std::string& reason) const {
    throw Error(
        ErrorKind::kPlan, "E310", "a sharding spec does not fit its tensor: " + reason + ".",
        {.values = {"spec: \"" + text_ + "\"", "tensor dims: " + std::to_string(atoms_.dims.size()),
                    "mesh axes: " + std::to_string(spec_.size())},
         .advice = "one symbol per tensor dim, as in \"S0 R\", \"R S01\" or \"R R P1\""});
  }

  Placement& axisOf(char c) {
    if (c < '0' || c >= '0' + static_cast<int>(spec_.size())) {
      fail(std::string("'") + c + "' is no axis of the mesh");
    }
    Placement& placement = spec_[static_cast<std::size_t>(c - '0')];
    if (placement.kind != Placement::Kind::kReplicate) {
      fail(std::string("axis ") + c + " is named twice");
    }
    return placement;
  }

  void parseAtom(const std::string& word, int atom) {
    if (word == "R") {
      return;
    }
    if (word.size() < 2 || word[0] != 'S') {
      fail("\"" + word + "\" is neither R nor S with its axes");
    }
    for (std::size_t i = 1; i < word.size(); ++i) {
      axisOf(word[i]) = Placement::shard(atom, static_cast<int>(i) - 1);
    }
  }

  void parseDim(const std::string& word, const std::vector<int>& dim) {
    if (word.front() != '{') {
      if (dim.empty()) {
        if (word != "R") {
          fail("a dim of size 1 cannot be sharded");
        }
        return;
      }
      parseAtom(word, dim.front());
      return;
    }
    if (word.back() != '}') {
      fail("\"" + word + "\" does not close its brace");
    }
    const std::vector<std::string> parts = split(word.substr(1, word.size() - 2), ',');
    if (parts.size() != dim.size()) {
      fail("\"" + word + "\" is written for a dim of " + std::to_string(parts.size()) +
           " atoms, this one has " + std::to_string(dim.size()));
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parseAtom(parts[i], dim[i]);
    }
  }

  void parsePartial(const std::string& word) {
    if (word.front() != 'P') {
      fail("\"" + word + "\" is one symbol more than the tensor has dims");
    }
    const std::size_t open = std::min(word.find('('), word.size());
    const std::string name = word.substr(open);
    const auto* op = std::find_if(kReduceOps.begin(), kReduceOps.end(), [&](ReduceOp candidate) {
      return name == "(" + std::string(reduceOpName(candidate)) + ")";
    });
    if (open < 2 || (!name.empty() && op == kReduceOps.end())) {
      fail("\"" + word + "\" is not P with its axes, as in P01 or P0(max)");
    }
    for (std::size_t i = 1; i < open; ++i) {
      axisOf(word[i]) = Placement::partial(name.empty() ? ReduceOp::kSum : *op);
    }
  }

  const TensorAtoms& atoms_;
  const std::string& text_;
  ShardingSpec spec_;
};

}  // namespace

ShardingSpec parseSpec(const TensorAtoms& atoms, const std::string& text, int num_axes) {
  return SpecParser(atoms, text, num_axes).parse();
}

}  // namespace shardwright
