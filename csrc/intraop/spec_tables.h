// Cost tables over lists of specs, built once per distinct content: repeated layers of a model
// share every price and every table.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "intraop/problem.h"
#include "sharding/reshard.h"

namespace shardwright {

// Index of a distinct spec, of a distinct list of specs, and of a distinct kind of tensor.
using SpecId = std::int32_t;
using SpecListId = std::int32_t;
using PriceBookId = std::int32_t;

class SpecTables {
 public:
  explicit SpecTables(const DeviceMesh& mesh) : reshards_(mesh) {}

  SpecId intern(const ShardingSpec& spec);
  const ShardingSpec& spec(SpecId id) const { return *specs_[static_cast<std::size_t>(id)]; }
  SpecListId internList(std::vector<SpecId> list);
  const std::vector<SpecId>& list(SpecListId id) const {
    return *lists_[static_cast<std::size_t>(id)];
  }
  // Prices of tensors with these atoms and element type.
  PriceBookId book(const TensorAtoms& atoms, DType dtype);
  // Price in cost units of one conversion times `weight`; kForbidden when there is no way.
  std::int64_t price(PriceBookId book, SpecId from, SpecId to, double weight);

  // Table of the prices from every spec of `rows` to every spec of `cols`.
  CostTableId prices(ProblemBuilder& builder, PriceBookId book, SpecListId rows, SpecListId cols,
                     double weight);
  // 0 where the specs are equal, forbidden elsewhere.
  CostTableId identity(ProblemBuilder& builder, SpecListId rows, SpecListId cols);

 private:
  struct Book {
    ReshardTable* table = nullptr;
    std::vector<int> spec_index;  // by SpecId: the table's number of the spec, -2 = not asked yet
  };
  CostTableId table(ProblemBuilder& builder, PriceBookId book, SpecListId rows, SpecListId cols,
                    double weight);

  ReshardTableCache reshards_;
  std::map<ShardingSpec, SpecId> spec_ids_;
  std::vector<const ShardingSpec*> specs_;
  std::map<std::vector<SpecId>, SpecListId> list_ids_;
  std::vector<const std::vector<SpecId>*> lists_;
  std::map<const ReshardTable*, PriceBookId> book_ids_;
  std::vector<Book> books_;
  std::map<std::tuple<PriceBookId, SpecListId, SpecListId, double>, CostTableId> tables_;
};

}  // namespace shardwright
