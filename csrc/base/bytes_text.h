// Numbers of bytes as people read and write them.
#pragma once

#include <cstdint>
#include <string>

namespace shardwright {

// Rounded to one decimal: bytesText(1536) == "1.5 KiB", bytesText(7) == "7 B".
std::string bytesText(std::int64_t bytes);

// The same rounded up and in the form that memory_limit takes, so that as many bytes fit it:
// bytesLimitText(10147000321) == "9.5GiB".
std::string bytesLimitText(std::int64_t bytes);

}  // namespace shardwright
