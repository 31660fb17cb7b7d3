#include "runtime/ledger.h"

#include <gtest/gtest.h>

#include <string>

namespace shardwright {
namespace {

TEST(LedgerTest, OrdinalsCountFromZeroWithinAStep) {
  Ledger ledger;
  ledger.beginStep(5);
  ledger.start("all_reduce", "a", 16);
  ledger.start("all_gather", "b", 32);
  ledger.beginStep(6);
  ledger.start("all_reduce", "a", 16);
  const auto entries = ledger.entries(10);
  ASSERT_EQ(entries.size(), 3U);
  EXPECT_EQ(entries[1].step, 5);
  EXPECT_EQ(entries[1].ordinal, 1);
  EXPECT_EQ(entries[1].bytes, 32);
  EXPECT_EQ(entries[2].step, 6);
  EXPECT_EQ(entries[2].ordinal, 0);
}

TEST(LedgerTest, TheRingKeepsTheNewest) {
  Ledger ledger;
  ledger.beginStep(0);
  const std::size_t count = Ledger::kCapacity + 10;
  for (std::size_t i = 0; i < count; ++i) {
    ledger.finish(ledger.start("all_reduce", std::to_string(i), 1));
  }
  const auto entries = ledger.entries(2 * Ledger::kCapacity);
  ASSERT_EQ(entries.size(), Ledger::kCapacity);
  EXPECT_EQ(entries.front().group, "10");
  EXPECT_EQ(entries.back().group, std::to_string(count - 1));
  EXPECT_TRUE(entries.back().done);
}

TEST(LedgerTest, AFailureIsTakenOnce) {
  Ledger ledger;
  ledger.beginStep(1);
  ledger.fail(ledger.start("all_reduce", "tp", 8), "connection closed");
  const auto failure = ledger.takeFailure();
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->entry.group, "tp");
  EXPECT_EQ(failure->reason, "connection closed");
  EXPECT_FALSE(failure->entry.done);
  EXPECT_FALSE(ledger.takeFailure().has_value());
}

TEST(LedgerTest, AnEmptyLedgerHasNoLastEntry) {
  const Ledger ledger;
  EXPECT_FALSE(ledger.last().has_value());
}

}  // namespace
}  // namespace shardwright
