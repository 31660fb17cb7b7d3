#include "interop/layer_list.h"

#include <cstring>
#include <utility>

namespace shardwright {
namespace {

using Kind = LayerEntry::Kind;

template <typename T>
void put(std::string& text, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  text.append(bytes, sizeof(T));
}

void put(std::string& text, const std::string& value) {
  put(text, static_cast<std::int64_t>(value.size()));
  text += value;
}

void put(std::string& text, const TensorMeta& meta) {
  put(text, static_cast<std::int64_t>(meta.shape.size()));
  for (const std::int64_t size : meta.shape) {
    put(text, size);
  }
  put(text, meta.dtype);
}

std::string nameOf(const Node& node, int output, const char* suffix) {
  return node.name + (output > 0 ? "_" + std::to_string(output) : "") + suffix;
}

}  // namespace

void LayerWriter::begin(const LayerList& list) {
  list_ = &list;
  ++number_;
  received_.clear();
  sent_.clear();
  for (std::size_t index = 0; index < list.entries.size(); ++index) {
    const LayerEntry& entry = list.entries[index];
    if (entry.kind == Kind::kReceived) {
      received_.emplace(entry.value, index);
    } else if (entry.kind == Kind::kSend) {
      sent_.emplace(entry.value, index);
    } else {
      place_[entry.value.node.index()] = index;
      stamp_[entry.value.node.index()] = number_;
    }
  }
}

std::int64_t LayerWriter::entryOf(Kind kind, ValueRef value) const {
  const auto& entries = kind == Kind::kSend ? sent_ : received_;
  const auto found = entries.find(value);
  return found == entries.end() ? -1 : static_cast<std::int64_t>(found->second);
}

ValueRef LayerWriter::local(ValueRef value) const {
  if (stamp_[value.node.index()] == number_) {
    return {NodeId(place_[value.node.index()]), value.output};
  }
  return {NodeId(received_.at(value)), 0};
}

void LayerWriter::sign(std::string& text, const Arg& arg) const {
  put(text, static_cast<std::uint8_t>(arg.value.index()));
  if (const ValueRef* value = arg.asValue()) {
    const ValueRef here = local(*value);
    put(text, static_cast<std::int64_t>(here.node.index()));
    put(text, here.output);
  } else if (const ArgList* list = arg.asList()) {
    put(text, static_cast<std::int64_t>(list->size()));
    for (const Arg& element : *list) {
      sign(text, element);
    }
  } else if (const auto* flag = std::get_if<bool>(&arg.value)) {
    put(text, *flag);
  } else if (const auto* integer = std::get_if<std::int64_t>(&arg.value)) {
    put(text, *integer);
  } else if (const auto* number = std::get_if<double>(&arg.value)) {
    put(text, *number);
  } else if (const auto* word = std::get_if<std::string>(&arg.value)) {
    put(text, *word);
  }
}

void LayerWriter::sign(std::string& text, const Node& node) const {
  put(text, node.op);
  put(text, static_cast<std::int64_t>(node.args.size()));
  for (const Arg& arg : node.args) {
    sign(text, arg);
  }
  put(text, static_cast<std::int64_t>(node.kwargs.size()));
  for (const auto& [name, arg] : node.kwargs) {
    put(text, name);
    sign(text, arg);
  }
  put(text, static_cast<std::int64_t>(node.outputs.size()));
  for (const TensorMeta& meta : node.outputs) {
    put(text, meta);
  }
}

std::string LayerWriter::signature() const {
  std::string text;
  for (const LayerEntry& entry : list_->entries) {
    const Node& node = whole_.node(entry.value.node);
    put(text, entry.kind);
    put(text, entry.phase);
    switch (entry.kind) {
      case Kind::kInput:
        put(text, node.input->kind);
        put(text, node.outputs[0]);
        break;
      case Kind::kReceived:
        put(text, whole_.meta(entry.value));
        break;
      case Kind::kSend:
        put(text, static_cast<std::int64_t>(local(entry.value).node.index()));
        put(text, entry.value.output);
        break;
      case Kind::kCall:
        sign(text, node);
        break;
    }
  }
  for (const std::size_t number : list_->outputs) {
    const GraphOutput& output = whole_.outputs()[number];
    const ValueRef value = local(output.value);
    put(text, static_cast<std::int64_t>(value.node.index()));
    put(text, value.output);
    put(text, output.updates ? static_cast<std::int64_t>(place_[output.updates->index()])
                             : std::int64_t{-1});
  }
  return text;
}

Arg LayerWriter::renamed(const Arg& arg) const {
  if (const ValueRef* value = arg.asValue()) {
    return {local(*value)};
  }
  const ArgList* list = arg.asList();
  if (list == nullptr) {
    return arg;
  }
  ArgList copy;
  for (const Arg& element : *list) {
    copy.push_back(renamed(element));
  }
  return {std::move(copy)};
}

Graph LayerWriter::graph() const {
  std::vector<Node> nodes;
  std::vector<GraphOutput> outputs;
  for (const std::size_t number : list_->outputs) {
    const GraphOutput& output = whole_.outputs()[number];
    outputs.push_back({local(output.value), output.updates
                                                ? std::optional(local({*output.updates, 0}).node)
                                                : std::nullopt});
  }
  for (const LayerEntry& entry : list_->entries) {
    const Node& origin = whole_.node(entry.value.node);
    Node node;
    switch (entry.kind) {
      case Kind::kInput:
        node = origin;
        break;
      case Kind::kReceived:
        node.name = nameOf(origin, entry.value.output, "_received");
        node.op = "input";
        node.outputs = {whole_.meta(entry.value)};
        node.input = InputLabel{InputKind::kBatch, node.name, "", ""};
        break;
      case Kind::kSend:
        node.name = nameOf(origin, entry.value.output, "_sent");
        node.op = "shardwright.send.default";
        node.args = {{local(entry.value)}};
        node.outputs = {{{0}, whole_.meta(entry.value).dtype}};
        outputs.push_back({{NodeId(nodes.size()), 0}, std::nullopt});
        break;
      case Kind::kCall:
        node = origin;
        for (Arg& arg : node.args) {
          arg = renamed(arg);
        }
        for (auto& [name, arg] : node.kwargs) {
          arg = renamed(arg);
        }
        break;
    }
    node.module_path = origin.module_path;
    node.source = origin.source;
    node.phase = entry.phase;
    node.is_late = entry.is_late;
    nodes.push_back(std::move(node));
  }
  return Graph(std::move(nodes), std::move(outputs));
}

}  // namespace shardwright
