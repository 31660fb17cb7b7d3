// Actions as text, in the grammar of torch.distributed.pipelining.
#include <array>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "interop/schedule.h"

namespace shardwright {
namespace {

// Longer names first: "B" begins no other name, but reading stays right whatever is added.
constexpr std::array kActionKinds = {ActionKind::kSendForward,   ActionKind::kReceiveForward,
                                     ActionKind::kSendBackward,  ActionKind::kReceiveBackward,
                                     ActionKind::kForward,       ActionKind::kBackward,
                                     ActionKind::kBackwardInput, ActionKind::kBackwardWeight};

// The neighbour that a transfer without a peer in its text means.
bool peerIsLater(ActionKind kind) {
  return kind == ActionKind::kSendForward || kind == ActionKind::kReceiveBackward;
}

// Reads digits at the front of `text`, if any.
std::optional<std::int32_t> takeNumber(std::string_view& text) {
  std::int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value < 0 || text.front() == '-') return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

std::optional<ActionKind> takeKind(std::string_view& text) {
  for (const ActionKind kind : kActionKinds) {
    const std::string_view name = toString(kind);
    if (text.starts_with(name)) {
      text.remove_prefix(name.size());
      return kind;
    }
  }
  return std::nullopt;
}

std::optional<Action> readAction(std::string_view text) {
  Action action;
  const auto stage = takeNumber(text);
  const auto kind = takeKind(text);
  const auto microbatch = takeNumber(text);
  if (!stage || !kind || !microbatch) return std::nullopt;
  action = {StageId(static_cast<std::size_t>(*stage)), *kind, *microbatch, {}};
  if (!action.isTransfer()) return text.empty() ? std::optional(action) : std::nullopt;
  std::int32_t peer = *stage + (peerIsLater(*kind) ? 1 : -1);
  if (!text.empty()) {
    if (text.front() != (action.isSend() ? '>' : '<')) return std::nullopt;
    text.remove_prefix(1);
    const auto named = takeNumber(text);
    if (!named || !text.empty()) return std::nullopt;
    peer = *named;
  }
  if (peer < 0 || (peer > *stage) != peerIsLater(*kind) || peer == *stage) return std::nullopt;
  action.peer = StageId(static_cast<std::size_t>(peer));
  return action;
}

}  // namespace

const char* toString(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "F";
    case ActionKind::kBackward:
      return "B";
    case ActionKind::kBackwardInput:
      return "I";
    case ActionKind::kBackwardWeight:
      return "W";
    case ActionKind::kSendForward:
      return "SEND_F";
    case ActionKind::kReceiveForward:
      return "RECV_F";
    case ActionKind::kSendBackward:
      return "SEND_B";
    case ActionKind::kReceiveBackward:
      return "RECV_B";
  }
  return "unknown";
}

std::string toText(const Action& action) {
  std::string text = std::to_string(action.stage.index()) + toString(action.kind) +
                     std::to_string(action.microbatch);
  if (!action.isTransfer()) return text;
  const auto stage = static_cast<std::ptrdiff_t>(action.stage.index());
  const auto peer = static_cast<std::ptrdiff_t>(action.peer.index());
  if (peer == stage + (peerIsLater(action.kind) ? 1 : -1)) return text;
  return text + (action.isSend() ? ">" : "<") + std::to_string(peer);
}

Action parseAction(std::string_view text) {
  if (const auto action = readAction(text)) return *action;
  throw Error(
      ErrorKind::kConfig, "E553", "an action of a pipeline schedule cannot be read.",
      {.values = {"\"" + std::string(text) + "\""},
       .advice = R"(stage, kind and microbatch, as in "0F0", "1B3", "0SEND_F1", "1RECV_F1")"});
}

std::string toText(const Schedule& schedule) {
  std::string text;
  for (const std::vector<Action>& list : schedule.actions) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i > 0) text += ',';
      text += toText(list[i]);
    }
    text += '\n';
  }
  return text;
}

}  // namespace shardwright
