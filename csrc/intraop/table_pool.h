// Cost tables held once by content, with memoised operations, so that repeated layers of a model
// pay once for every step of presolve and elimination.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <unordered_map>
#include <vector>

namespace shardwright {

// Forbidden inside the solver: absorbs under addition, so it can never pass for a number. Finite
// costs are multiples of a power of two below 2^53 in total, so double sums are exact.
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Dense row-major matrix of costs.
struct Matrix {
  int32_t num_rows = 0;
  int32_t num_cols = 0;
  std::vector<double> costs;

  const double* row(int32_t r) const {
    return costs.data() + static_cast<size_t>(r) * static_cast<size_t>(num_cols);
  }
  double at(int32_t r, int32_t c) const { return row(r)[c]; }
  Matrix transposed() const;
};

using TableRef = int32_t;
using ListRef = int32_t;
inline constexpr ListRef kNoList = -1;

// What presolve wants to know about a table, seen from its rows.
struct TableFacts {
  bool known = false;
  std::vector<int32_t> supported_rows;  // rows with a finite entry
  ListRef function = kNoList;  // row -> its only finite column, when every row has exactly one
  bool separable = false;      // entry == row_part[r] + col_part[c] throughout, all finite
  std::vector<double> row_part;
  std::vector<double> col_part;
};

class TablePool {
 public:
  TableRef intern(Matrix matrix);
  ListRef internList(std::vector<int32_t> list);

  const Matrix& table(TableRef ref) const { return tables_[static_cast<size_t>(ref)]; }
  const std::vector<int32_t>& list(ListRef ref) const { return lists_[static_cast<size_t>(ref)]; }

  // The table with rows and columns taken from the lists: result[i, j] = t[rows[i], cols[j]].
  // kNoList keeps that side as it is.
  TableRef gather(TableRef ref, ListRef rows, ListRef cols);
  // The list outer[inner[i]].
  ListRef compose(ListRef outer, ListRef inner);
  TableRef transposed(TableRef ref);
  TableRef sum(TableRef a, TableRef b);

  const TableFacts& facts(TableRef ref);
  // For rows a, b: the most it can cost to use row b instead of row a, max over columns of
  // t[b, c] - t[a, c] where t[a, c] is finite (-inf when there is none). Row-major [a, b].
  const std::vector<double>& rowSwapCosts(TableRef ref);

  // Forgets all swap costs, which copies of the pool would carry along.
  void forgetSwapCosts();

  size_t numTables() const { return tables_.size(); }
  // Bytes held by tables.
  size_t bytes() const { return bytes_; }
  // Forgets the contents of all tables that are not marked, and results derived from them.
  void keepOnly(const std::vector<char>& marked);

 private:
  struct Key {
    int32_t a, b, c;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };

  std::deque<Matrix> tables_;
  std::vector<uint64_t> table_hash_;
  std::deque<std::vector<int32_t>> lists_;
  std::deque<TableFacts> facts_;
  std::deque<std::vector<double>> swap_costs_;
  std::unordered_multimap<uint64_t, TableRef> table_by_hash_;
  std::unordered_multimap<uint64_t, ListRef> list_by_hash_;
  std::unordered_map<Key, TableRef, KeyHash> gathered_;
  std::unordered_map<Key, ListRef, KeyHash> composed_;
  std::unordered_map<Key, TableRef, KeyHash> summed_;
  std::vector<TableRef> transposed_;
  size_t bytes_ = 0;
};

// 64-bit hash of raw memory; equal contents are always compared before they are merged.
uint64_t hashBytes(const void* data, size_t num_bytes, uint64_t seed);

}  // namespace shardwright
