#include "intraop/conversion_domains.h"

#include <algorithm>
#include <utility>

namespace shardwright {
namespace {

using Form = ConversionStrategy::Form;

constexpr int kNumForms = 5;

}  // namespace

ConversionDomain ConversionDomains::finish(std::vector<ConversionStrategy> strategies,
                                           const std::vector<SpecId>& specs) {
  ConversionDomain domain;
  std::vector<SpecId> coded;
  for (std::size_t index = 0; index < strategies.size(); ++index) {
    coded.push_back(specs[index] * kNumForms + static_cast<int>(strategies[index].form));
  }
  domain.strategies = std::move(strategies);
  domain.specs = tables_->internList(specs);
  domain.coded = tables_->internList(std::move(coded));
  return domain;
}

ConversionDomain ConversionDomains::first(const DomainInputs& inputs) {
  const bool holds_copies = inputs.outlives_conversion && inputs.memory_counts;
  std::vector<ConversionStrategy> strategies;
  std::vector<SpecId> specs;
  const auto add = [&](SpecId spec, Form form) {
    strategies.push_back({tables_->spec(spec), form});
    specs.push_back(spec);
  };
  for (const SpecId spec : inputs.producer) {
    add(spec, holds_copies ? Form::kAlias : Form::kConverted);
  }
  for (const SpecId spec : inputs.consumers) {
    // A consumer turns a whole value into a pending sum at no cost; holding it so serves nobody.
    if (hasPartial(tables_->spec(spec))) {
      continue;
    }
    if (holds_copies) {
      add(spec, Form::kCopy);
    } else if (std::ranges::find(inputs.producer, spec) == inputs.producer.end()) {
      add(spec, Form::kConverted);
    }
  }
  return finish(std::move(strategies), specs);
}

ConversionDomain ConversionDomains::later(const DomainInputs& inputs,
                                          const ConversionDomain& first_domain) {
  std::vector<ConversionStrategy> strategies;
  std::vector<SpecId> specs;
  if (inputs.outlives_conversion) {
    ConversionDomain domain = first(inputs);
    strategies = std::move(domain.strategies);
    specs = tables_->list(domain.specs);
  } else {
    for (const SpecId spec : inputs.producer) {
      strategies.push_back({tables_->spec(spec), Form::kOwn});
      specs.push_back(spec);
    }
  }
  const std::vector<SpecId>& first_specs = tables_->list(first_domain.specs);
  for (std::size_t index = 0; index < first_specs.size(); ++index) {
    if (first_domain.strategies[index].form != Form::kAlias) {
      strategies.push_back({first_domain.strategies[index].spec, Form::kKept});
      specs.push_back(first_specs[index]);
    }
  }
  return finish(std::move(strategies), specs);
}

CostTableId ConversionDomains::fromProducer(ProblemBuilder& builder, PriceBookId book,
                                            SpecListId producer, const ConversionDomain& domain,
                                            double weight) {
  const auto [entry, added] =
      producer_tables_.try_emplace(std::tuple(book, producer, domain.coded, weight), CostTableId{});
  if (!added) {
    return entry->second;
  }
  const std::vector<SpecId>& rows = tables_->list(producer);
  const std::vector<SpecId>& cols = tables_->list(domain.specs);
  std::vector<std::int64_t> costs;
  costs.reserve(rows.size() * cols.size());
  for (const SpecId from : rows) {
    for (std::size_t col = 0; col < cols.size(); ++col) {
      std::int64_t cost = 0;
      switch (domain.strategies[col].form) {
        case Form::kConverted:
          cost = tables_->price(book, from, cols[col], weight);
          break;
        case Form::kAlias:
        case Form::kOwn:
          cost = from == cols[col] ? 0 : kForbidden;
          break;
        case Form::kCopy:
          cost = from == cols[col] ? kForbidden : tables_->price(book, from, cols[col], weight);
          break;
        case Form::kKept:
          break;
      }
      costs.push_back(cost);
    }
  }
  entry->second = builder.addTable(static_cast<std::int32_t>(rows.size()),
                                   static_cast<std::int32_t>(cols.size()), std::move(costs));
  return entry->second;
}

CostTableId ConversionDomains::fromFirst(ProblemBuilder& builder, const ConversionDomain& first,
                                         const ConversionDomain& later) {
  const auto [entry, added] =
      first_tables_.try_emplace(std::tuple(first.coded, later.coded), CostTableId{});
  if (!added) {
    return entry->second;
  }
  const std::vector<SpecId>& rows = tables_->list(first.specs);
  const std::vector<SpecId>& cols = tables_->list(later.specs);
  std::vector<std::int64_t> costs;
  costs.reserve(rows.size() * cols.size());
  for (std::size_t row = 0; row < rows.size(); ++row) {
    for (std::size_t col = 0; col < cols.size(); ++col) {
      const bool same = rows[row] == cols[col];
      bool fits = true;
      switch (later.strategies[col].form) {
        case Form::kKept:
          fits = same && first.strategies[row].form != Form::kAlias;
          break;
        case Form::kOwn:
          fits = !same;  // where both are the value itself, the buffer of group 0 is kept
          break;
        case Form::kConverted:
        case Form::kAlias:
        case Form::kCopy:
          break;
      }
      costs.push_back(fits ? 0 : kForbidden);
    }
  }
  entry->second = builder.addTable(static_cast<std::int32_t>(rows.size()),
                                   static_cast<std::int32_t>(cols.size()), std::move(costs));
  return entry->second;
}

}  // namespace shardwright
