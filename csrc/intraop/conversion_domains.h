// The specs and forms a conversion point may take, and what they cost against each other and
// against the value's producer.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "intraop/model.h"
#include "intraop/spec_tables.h"

namespace shardwright {

struct ConversionDomain {
  std::vector<ConversionStrategy> strategies;
  SpecListId specs = 0;  // spec of each strategy
  SpecListId coded = 0;  // spec and form of each strategy, for sharing tables
};

// What conversion points of one value are made of.
struct DomainInputs {
  std::vector<SpecId> producer;   // distinct specs the value can have
  std::vector<SpecId> consumers;  // distinct specs its group's uses can demand
  bool outlives_conversion = false;
  bool memory_counts = true;  // false: forms that differ in memory alone are one
};

class ConversionDomains {
 public:
  explicit ConversionDomains(SpecTables& tables) : tables_(&tables) {}

  ConversionDomain first(const DomainInputs& inputs);
  ConversionDomain later(const DomainInputs& inputs, const ConversionDomain& first);

  // Price of making the conversion from the value (rows: `producer`, its spec per strategy).
  CostTableId fromProducer(ProblemBuilder& builder, PriceBookId book, SpecListId producer,
                           const ConversionDomain& domain, double weight);
  // Which pairs of group 0 (rows) and group 1 go together; costs nothing.
  CostTableId fromFirst(ProblemBuilder& builder, const ConversionDomain& first,
                        const ConversionDomain& later);

 private:
  ConversionDomain finish(std::vector<ConversionStrategy> strategies,
                          const std::vector<SpecId>& specs);

  SpecTables* tables_;
  std::map<std::tuple<PriceBookId, SpecListId, SpecListId, double>, CostTableId> producer_tables_;
  std::map<std::tuple<SpecListId, SpecListId>, CostTableId> first_tables_;
};

}  // namespace shardwright
