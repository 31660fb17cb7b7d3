#include "intraop/table_pool.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "intraop/min_plus.h"

namespace shardwright {

namespace {

uint64_t wordAt(const unsigned char* bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

uint64_t mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0xff51afd7ed558ccdull;
  return hash ^ (hash >> 32);
}

}  // namespace

uint64_t hashBytes(const void* data, size_t num_bytes, uint64_t seed) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  uint64_t hash = seed ^ (num_bytes * 0x9e3779b97f4a7c15ull);
  size_t i = 0;
  if (num_bytes >= 64) {
    // Four chains, which the processor works on at the same time.
    std::array<uint64_t, 4> lanes = {hash, hash + 1, hash + 2, hash + 3};
    for (; i + 32 <= num_bytes; i += 32) {
      for (size_t lane = 0; lane < lanes.size(); ++lane) {
        lanes[lane] = mixed(lanes[lane], wordAt(bytes + i + 8 * lane));
      }
    }
    for (const uint64_t lane : lanes) hash = mixed(hash, lane);
  }
  for (; i + 8 <= num_bytes; i += 8) hash = mixed(hash, wordAt(bytes + i));
  uint64_t tail = 0;
  if (i < num_bytes) std::memcpy(&tail, bytes + i, num_bytes - i);
  hash = (hash ^ tail) * 0xc4ceb9fe1a85ec53ull;
  return hash ^ (hash >> 29);
}

size_t TablePool::KeyHash::operator()(const Key& key) const {
  return static_cast<size_t>(hashBytes(&key, sizeof(Key), 17));
}

TableRef TablePool::intern(Matrix matrix) {
  // -0.0 and 0.0 are the same cost but not the same bytes.
  for (double& cost : matrix.costs) cost += 0.0;
  const uint64_t shape =
      (static_cast<uint64_t>(matrix.num_rows) << 32) ^ static_cast<uint64_t>(matrix.num_cols);
  const uint64_t hash = hashBytes(matrix.costs.data(), matrix.costs.size() * sizeof(double), shape);
  const auto [first, last] = table_by_hash_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    const Matrix& known = table(it->second);
    if (known.num_rows == matrix.num_rows && known.num_cols == matrix.num_cols &&
        known.costs == matrix.costs) {
      return it->second;
    }
  }
  const auto ref = static_cast<TableRef>(tables_.size());
  table_by_hash_.emplace(hash, ref);
  table_hash_.push_back(hash);
  bytes_ += matrix.costs.size() * sizeof(double);
  tables_.push_back(std::move(matrix));
  facts_.emplace_back();
  swap_costs_.emplace_back();
  transposed_.push_back(-1);
  return ref;
}

ListRef TablePool::internList(std::vector<int32_t> list) {
  const uint64_t hash = hashBytes(list.data(), list.size() * sizeof(int32_t), 5);
  const auto [first, last] = list_by_hash_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (this->list(it->second) == list) return it->second;
  }
  const auto ref = static_cast<ListRef>(lists_.size());
  list_by_hash_.emplace(hash, ref);
  lists_.push_back(std::move(list));
  return ref;
}

TableRef TablePool::gather(TableRef ref, ListRef rows, ListRef cols) {
  if (rows == kNoList && cols == kNoList) return ref;
  const Key key{ref, rows, cols};
  if (const auto it = gathered_.find(key); it != gathered_.end()) return it->second;
  const Matrix& source = table(ref);
  const std::vector<int32_t>* row_list = rows == kNoList ? nullptr : &list(rows);
  const std::vector<int32_t>* col_list = cols == kNoList ? nullptr : &list(cols);
  Matrix result;
  result.num_rows = row_list ? static_cast<int32_t>(row_list->size()) : source.num_rows;
  result.num_cols = col_list ? static_cast<int32_t>(col_list->size()) : source.num_cols;
  result.costs.reserve(static_cast<size_t>(result.num_rows) * static_cast<size_t>(result.num_cols));
  for (int32_t r = 0; r < result.num_rows; ++r) {
    const double* from = source.row(row_list ? (*row_list)[static_cast<size_t>(r)] : r);
    if (col_list) {
      for (int32_t c : *col_list) result.costs.push_back(from[c]);
    } else {
      result.costs.insert(result.costs.end(), from, from + source.num_cols);
    }
  }
  const TableRef made = intern(std::move(result));
  gathered_.emplace(key, made);
  return made;
}

ListRef TablePool::compose(ListRef outer, ListRef inner) {
  const Key key{outer, inner, 0};
  if (const auto it = composed_.find(key); it != composed_.end()) return it->second;
  std::vector<int32_t> result;
  result.reserve(list(inner).size());
  for (int32_t i : list(inner)) result.push_back(list(outer)[static_cast<size_t>(i)]);
  const ListRef made = internList(std::move(result));
  composed_.emplace(key, made);
  return made;
}

Matrix Matrix::transposed() const {
  Matrix result{num_cols, num_rows, std::vector<double>(costs.size())};
  for (int32_t r = 0; r < num_rows; ++r) {
    const double* from = row(r);
    for (int32_t c = 0; c < num_cols; ++c) {
      result
          .costs[static_cast<size_t>(c) * static_cast<size_t>(num_rows) + static_cast<size_t>(r)] =
          from[c];
    }
  }
  return result;
}

TableRef TablePool::transposed(TableRef ref) {
  if (const TableRef known = transposed_[static_cast<size_t>(ref)]; known >= 0) return known;
  const TableRef made = intern(table(ref).transposed());
  transposed_[static_cast<size_t>(ref)] = made;
  transposed_[static_cast<size_t>(made)] = ref;
  return made;
}

TableRef TablePool::sum(TableRef a, TableRef b) {
  const Key key{std::min(a, b), std::max(a, b), 0};
  if (const auto it = summed_.find(key); it != summed_.end()) return it->second;
  Matrix result = table(a);
  const Matrix& other = table(b);
  for (size_t i = 0; i < result.costs.size(); ++i) result.costs[i] += other.costs[i];
  const TableRef made = intern(std::move(result));
  summed_.emplace(key, made);
  return made;
}

const TableFacts& TablePool::facts(TableRef ref) {
  if (facts_[static_cast<size_t>(ref)].known) return facts_[static_cast<size_t>(ref)];
  TableFacts facts;
  facts.known = true;
  std::vector<int32_t> function;
  {
    const Matrix& t = table(ref);
    bool functional = true;
    bool all_finite = true;
    for (int32_t r = 0; r < t.num_rows; ++r) {
      int32_t num_finite = 0;
      int32_t last = -1;
      for (int32_t c = 0; c < t.num_cols; ++c) {
        if (t.at(r, c) == kInfinity) continue;
        ++num_finite;
        last = c;
      }
      if (num_finite > 0) facts.supported_rows.push_back(r);
      if (num_finite != 1) functional = false;
      if (num_finite != t.num_cols) all_finite = false;
      function.push_back(last);
    }
    if (!functional) function.clear();
    if (all_finite) {
      facts.separable = true;
      for (int32_t r = 0; r < t.num_rows && facts.separable; ++r) {
        const double shift = t.at(r, 0) - t.at(0, 0);
        for (int32_t c = 0; c < t.num_cols; ++c) {
          if (t.at(r, c) != t.at(0, c) + shift) {
            facts.separable = false;
            break;
          }
        }
      }
      if (facts.separable) {
        for (int32_t r = 0; r < t.num_rows; ++r) facts.row_part.push_back(t.at(r, 0));
        for (int32_t c = 0; c < t.num_cols; ++c) {
          facts.col_part.push_back(t.at(0, c) - t.at(0, 0));
        }
      }
    }
  }
  if (!function.empty()) facts.function = internList(std::move(function));
  facts_[static_cast<size_t>(ref)] = std::move(facts);
  return facts_[static_cast<size_t>(ref)];
}

const std::vector<double>& TablePool::rowSwapCosts(TableRef ref) {
  std::vector<double>& swaps = swap_costs_[static_cast<size_t>(ref)];
  if (!swaps.empty()) return swaps;
  const Matrix columns = table(ref).transposed();
  const auto n = static_cast<size_t>(columns.num_cols);
  swaps.assign(n * n, -kInfinity);
  bytes_ += swaps.size() * sizeof(double);
  for (size_t a = 0; a < n; ++a) {
    double* worst = swaps.data() + a * n;
    for (int32_t c = 0; c < columns.num_rows; ++c) {
      const double* column = columns.row(c);
      if (column[a] != kInfinity) min_plus::raiseByDifference(worst, column, column[a], n);
    }
  }
  return swaps;
}

void TablePool::forgetSwapCosts() {
  for (std::vector<double>& swaps : swap_costs_) {
    bytes_ -= swaps.size() * sizeof(double);
    std::vector<double>().swap(swaps);
  }
}

void TablePool::keepOnly(const std::vector<char>& marked) {
  const auto dead = [&](TableRef ref) { return !marked[static_cast<size_t>(ref)]; };
  std::erase_if(gathered_, [&](const auto& e) { return dead(e.first.a) || dead(e.second); });
  std::erase_if(
      summed_, [&](const auto& e) { return dead(e.first.a) || dead(e.first.b) || dead(e.second); });
  for (TableRef& ref : transposed_) {
    if (ref >= 0 && dead(ref)) ref = -1;
  }
  std::erase_if(table_by_hash_, [&](const auto& e) { return dead(e.second); });
  bytes_ = 0;
  for (size_t i = 0; i < tables_.size(); ++i) {
    if (dead(static_cast<TableRef>(i))) {
      tables_[i] = Matrix{};
      facts_[i] = TableFacts{};
      std::vector<double>().swap(swap_costs_[i]);
      transposed_[i] = -1;
    }
    bytes_ += (tables_[i].costs.size() + swap_costs_[i].size()) * sizeof(double);
  }
}

}  // namespace shardwright
