#include "intraop/spec_tables.h"

#include <utility>

#include "intraop/model.h"

namespace shardwright {
namespace {

constexpr PriceBookId kIdentityBook = -1;
constexpr int kNotAsked = -2;

}  // namespace

SpecId SpecTables::intern(const ShardingSpec& spec) {
  const auto [entry, added] = spec_ids_.try_emplace(spec, static_cast<SpecId>(specs_.size()));
  if (added) {
    specs_.push_back(&entry->first);
  }
  return entry->second;
}

SpecListId SpecTables::internList(std::vector<SpecId> list) {
  const auto [entry, added] =
      list_ids_.try_emplace(std::move(list), static_cast<SpecListId>(lists_.size()));
  if (added) {
    lists_.push_back(&entry->first);
  }
  return entry->second;
}

PriceBookId SpecTables::book(const TensorAtoms& atoms, DType dtype) {
  ReshardTable& table = reshards_.table(atoms, dtype);
  const auto [entry, added] =
      book_ids_.try_emplace(&table, static_cast<PriceBookId>(books_.size()));
  if (added) {
    books_.push_back({&table, {}});
  }
  return entry->second;
}

std::int64_t SpecTables::price(PriceBookId id, SpecId from, SpecId to, double weight) {
  if (from == to) {
    return 0;
  }
  Book& book = books_[static_cast<std::size_t>(id)];
  const auto indexOf = [&](SpecId spec_id) {
    const auto position = static_cast<std::size_t>(spec_id);
    if (position >= book.spec_index.size()) {
      book.spec_index.resize(specs_.size(), kNotAsked);
    }
    int& index = book.spec_index[position];
    if (index == kNotAsked) {
      index = book.table->specIndex(spec(spec_id));
    }
    return index;
  };
  const int from_index = indexOf(from);
  const int to_index = indexOf(to);
  if (from_index < 0 || to_index < 0) {
    return kForbidden;
  }
  const double us = book.table->costUs(from_index, to_index);
  return us < 0 ? kForbidden : costUnits(us * weight);
}

CostTableId SpecTables::prices(ProblemBuilder& builder, PriceBookId book, SpecListId rows,
                               SpecListId cols, double weight) {
  return table(builder, book, rows, cols, weight);
}

CostTableId SpecTables::identity(ProblemBuilder& builder, SpecListId rows, SpecListId cols) {
  return table(builder, kIdentityBook, rows, cols, 0);
}

CostTableId SpecTables::table(ProblemBuilder& builder, PriceBookId book, SpecListId rows,
                              SpecListId cols, double weight) {
  const auto [entry, added] =
      tables_.try_emplace(std::tuple(book, rows, cols, weight), CostTableId{});
  if (!added) {
    return entry->second;
  }
  const std::vector<SpecId>& row_specs = list(rows);
  const std::vector<SpecId>& col_specs = list(cols);
  std::vector<std::int64_t> costs;
  costs.reserve(row_specs.size() * col_specs.size());
  for (const SpecId from : row_specs) {
    for (const SpecId to : col_specs) {
      if (book == kIdentityBook) {
        costs.push_back(from == to ? 0 : kForbidden);
      } else {
        costs.push_back(price(book, from, to, weight));
      }
    }
  }
  entry->second = builder.addTable(static_cast<std::int32_t>(row_specs.size()),
                                   static_cast<std::int32_t>(col_specs.size()), std::move(costs));
  return entry->second;
}

}  // namespace shardwright
