// Rules as one line of text, for explanations and tests.
#pragma once

#include <string>

#include "sharding/rule.h"

namespace shardwright {

// "a b*, b* c -> a c": factors are lettered in order, blocked ones starred, a dim of several is in
// parentheses, a dim without any is "1". Then, as far as there are any, what may be pending, by
// operand ("; P: 0 | 1"), factors that need their offset ("; offset: b") and extrema ("; max: b").
std::string ruleText(const ShardingRule& rule);

}  // namespace shardwright
