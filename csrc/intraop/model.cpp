#include "intraop/model.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/error.h"
#include "intraop/conversion_domains.h"
#include "intraop/forced_specs.h"
#include "intraop/live_intervals.h"
#include "intraop/model_memory.h"
#include "intraop/spec_tables.h"
#include "intraop/strategy_pool.h"

namespace shardwright {
namespace {

using Form = ConversionStrategy::Form;

std::vector<SpecId> distinct(const std::vector<SpecId>& list) {
  std::vector<SpecId> result;
  std::set<SpecId> seen;
  for (const SpecId spec : list) {
    if (seen.insert(spec).second) {
      result.push_back(spec);
    }
  }
  return result;
}

}  // namespace

std::int64_t costUnits(double us) { return std::llround(us * kUnitsPerUs); }

struct Model::Impl {
  Impl(const ShardedGraph& sharded_graph, const DeviceMesh& device_mesh, const Cluster& cluster,
       const ModelOptions& model_options)
      : graph(&sharded_graph),
        mesh(&device_mesh),
        options(model_options),
        tables(device_mesh),
        pool(sharded_graph, device_mesh, cluster, model_options.shard_all_products, tables),
        domains(tables),
        conversions(conversionPoints(sharded_graph)),
        intervals(sharded_graph, conversions),
        memory(sharded_graph, conversions, intervals, model_options.microbatches_in_flight),
        uses(valueUses(sharded_graph)) {}

  const Graph& ops() const { return graph->graph(); }
  double weightOf(Phase phase) const {
    return options.phase_weight[static_cast<std::size_t>(phase)];
  }
  ChoiceNodeId problemNode(NodeId node) const { return problem_node[node.index()]; }
  PriceBookId bookOf(ValueRef root) {
    return tables.book(graph->atoms(root), ops().meta(root).dtype);
  }
  SpecListId specsOf(ValueRef root) const {
    return sets[root.node.index()]->outputs[static_cast<std::size_t>(root.output)];
  }

  bool isOnlyRead(NodeId node) const;
  void collectStrategies();
  void addOps(ProblemBuilder& builder);
  void addConversions(ProblemBuilder& builder);
  void addConversionNode(ProblemBuilder& builder, int index);
  std::vector<SpecId> demandedSpecs(const ConversionPoint& point) const;
  void addUse(ProblemBuilder& builder, ValueRef root, const ValueUse& use, ChoiceNodeId provider,
              SpecListId provider_specs);
  void addUses(ProblemBuilder& builder);
  void addEdge(ProblemBuilder& builder, ChoiceNodeId from, ChoiceNodeId to, CostTableId table,
               Phase phase);
  SpecListId replicatedList();
  ShardingSpec specOf(const std::vector<std::int32_t>& choice, ValueRef root) const;
  void storeInParts(const std::vector<std::int32_t>& choice, StagePlan& stage);

  const ShardedGraph* graph;
  const DeviceMesh* mesh;
  ModelOptions options;
  SpecTables tables;
  StrategyPool pool;
  ConversionDomains domains;
  std::vector<ConversionPoint> conversions;
  LiveIntervals intervals;
  ModelMemory memory;
  std::vector<std::vector<ValueUses>> uses;              // by graph node and output
  std::vector<NodeId> held_whole;                        // inputs, where memory is ignored
  std::vector<std::shared_ptr<const StrategySet>> sets;  // by graph node; null for views
  std::vector<ChoiceNodeId> problem_node;                // by graph node
  std::vector<ConversionDomain> conversion_domains;
  std::vector<ChoiceNodeId> conversion_node;
  std::vector<ModelNode> nodes;
  std::vector<Phase> edge_phases;  // by edge of the problem
  std::optional<Problem> problem;
};

// Inputs that the step does not write. Held whole they cost nothing, and so does every conversion.
bool Model::Impl::isOnlyRead(NodeId id) const {
  const Node& node = ops().node(id);
  return node.input && node.outputs.size() == 1 && uses[id.index()][0].in_place.empty() &&
         std::ranges::none_of(ops().outputs(),
                              [&](const GraphOutput& output) { return output.updates == id; });
}

void Model::Impl::collectStrategies() {
  std::set<std::string> used;
  sets.resize(ops().nodes().size());
  for (std::size_t index = 0; index < sets.size(); ++index) {
    const NodeId node(index);
    if (!graph->isView(node)) {
      const std::shared_ptr<const StrategySet> every = pool.strategies(node);
      sets[index] = options.forced.empty() ? every
                                           : applyForced(*graph, node, mesh->shape(),
                                                         options.forced, every, tables, used);
      if (options.ignore_memory && sets[index] == every && isOnlyRead(node)) {
        const std::vector<Strategy>& all = sets[index]->strategies;
        const auto whole = std::ranges::find_if(all, [&](const Strategy& strategy) {
          return strategy.outputs.front() == replicatedSpec(mesh->numAxes());
        });
        if (whole != all.end()) {
          const auto position = static_cast<std::size_t>(whole - all.begin());
          sets[index] =
              std::make_shared<const StrategySet>(sets[index]->restrictedTo({position}, tables));
          held_whole.push_back(node);
        }
      }
    }
  }
  for (const auto& [name, spec] : options.forced) {
    if (!used.contains(name)) {
      throw Error(ErrorKind::kPlan, "E313",
                  "a sharding is forced on \"" + name + "\", which is not in the step.",
                  {.advice = "the name of an input (\"layers.0.weight\") or of a graph node"});
    }
  }
}

void Model::Impl::addOps(ProblemBuilder& builder) {
  problem_node.resize(sets.size());
  for (std::size_t index = 0; index < sets.size(); ++index) {
    if (!sets[index]) {
      continue;
    }
    const NodeId id(index);
    const Node& node = ops().node(id);
    const StrategySet& set = *sets[index];
    std::vector<std::int64_t> costs;
    costs.reserve(set.cost_us.size());
    for (const double us : set.cost_us) {
      costs.push_back(costUnits(us * weightOf(node.phase)));
    }
    std::vector<MemoryPiece> pieces;
    if (!options.ignore_memory) {
      pieces = memory.ofOp(id, set.output_bytes);
    }
    problem_node[index] = builder.addNode(std::move(costs), std::move(pieces), node.name);
    nodes.push_back({ModelNode::Kind::kOp, id, -1, -1});
  }
}

// Specs the uses of a conversion can ask for, in order of first appearance.
std::vector<SpecId> Model::Impl::demandedSpecs(const ConversionPoint& point) const {
  std::vector<SpecId> demanded;
  for (const ValueUse& use : point.uses) {
    SpecListId list = 0;
    if (!use.isResult()) {
      list = sets[use.node.index()]->operands[static_cast<std::size_t>(use.operand)];
    } else if (const GraphOutput& result = ops().outputs()[static_cast<std::size_t>(use.result)];
               result.updates) {
      list = specsOf({*result.updates, 0});
    } else {
      continue;
    }
    const std::vector<SpecId>& specs = tables.list(list);
    demanded.insert(demanded.end(), specs.begin(), specs.end());
  }
  return distinct(demanded);
}

void Model::Impl::addConversionNode(ProblemBuilder& builder, int index) {
  const ConversionPoint& point = conversions[static_cast<std::size_t>(index)];
  const ConversionDomain& domain = conversion_domains[static_cast<std::size_t>(index)];
  const ChoiceNodeId producer = problemNode(point.value.node);
  const PriceBookId book = bookOf(point.value);
  std::vector<MemoryPiece> pieces;
  if (!options.ignore_memory) {
    pieces = memory.ofConversion(index, domain.strategies, mesh->shape());
  }
  const ChoiceNodeId node =
      builder.addNode(std::vector<std::int64_t>(domain.strategies.size(), 0), std::move(pieces),
                      ops().node(point.value.node).name + ":" + std::to_string(point.value.output) +
                          "/" + std::to_string(point.group));
  conversion_node.push_back(node);
  nodes.push_back({ModelNode::Kind::kConversion, NodeId(), index, -1});
  addEdge(builder, producer, node,
          domains.fromProducer(builder, book, specsOf(point.value), domain, weightOf(point.phase)),
          point.phase);
  if (point.group == 1) {
    const ConversionDomain& first = conversion_domains[static_cast<std::size_t>(index) - 1];
    addEdge(builder, conversion_node[static_cast<std::size_t>(index) - 1], node,
            domains.fromFirst(builder, first, domain), point.phase);
  }
}

void Model::Impl::addConversions(ProblemBuilder& builder) {
  for (std::size_t index = 0; index < conversions.size(); ++index) {
    const ConversionPoint& point = conversions[index];
    DomainInputs inputs;
    inputs.producer = distinct(tables.list(specsOf(point.value)));
    inputs.consumers = demandedSpecs(point);
    inputs.outlives_conversion = intervals.life(point.value).outlives_conversion;
    inputs.memory_counts = !options.ignore_memory;
    conversion_domains.push_back(point.group == 0
                                     ? domains.first(inputs)
                                     : domains.later(inputs, conversion_domains[index - 1]));
    addConversionNode(builder, static_cast<int>(index));
  }
}

SpecListId Model::Impl::replicatedList() {
  return tables.internList(
      {tables.intern(ShardingSpec(mesh->shape().size(), Placement::replicate()))});
}

void Model::Impl::addUse(ProblemBuilder& builder, ValueRef root, const ValueUse& use,
                         ChoiceNodeId provider, SpecListId provider_specs) {
  const PriceBookId book = bookOf(root);
  if (!use.isResult()) {
    const SpecListId wanted =
        sets[use.node.index()]->operands[static_cast<std::size_t>(use.operand)];
    const Phase phase = ops().node(use.node).phase;
    addEdge(builder, provider, problemNode(use.node),
            tables.prices(builder, book, provider_specs, wanted, weightOf(phase)), phase);
    return;
  }
  const GraphOutput& result = ops().outputs()[static_cast<std::size_t>(use.result)];
  if (result.updates) {
    const Phase phase = ops().node(result.value.node).phase;
    addEdge(builder, provider, problemNode(*result.updates),
            tables.prices(builder, book, provider_specs, specsOf({*result.updates, 0}),
                          weightOf(phase)),
            phase);
    return;
  }
  const ChoiceNodeId node = builder.addNode({0}, {}, "result:" + std::to_string(use.result));
  nodes.push_back({ModelNode::Kind::kResult, NodeId(), -1, use.result});
  addEdge(builder, provider, node,
          tables.prices(builder, book, provider_specs, replicatedList(), weightOf(Phase::kUpdate)),
          Phase::kUpdate);
}

void Model::Impl::addEdge(ProblemBuilder& builder, ChoiceNodeId from, ChoiceNodeId to,
                          CostTableId table, Phase phase) {
  builder.addEdge(from, to, table);
  edge_phases.push_back(phase);
}

void Model::Impl::addUses(ProblemBuilder& builder) {
  std::set<ValueRef> converted;
  for (std::size_t index = 0; index < conversions.size(); ++index) {
    const ConversionPoint& point = conversions[index];
    converted.insert(point.value);
    for (const ValueUse& use : point.uses) {
      addUse(builder, point.value, use, conversion_node[index], conversion_domains[index].specs);
    }
  }
  for (std::size_t index = 0; index < uses.size(); ++index) {
    if (!sets[index]) {
      continue;
    }
    for (std::size_t output = 0; output < uses[index].size(); ++output) {
      const ValueRef value{NodeId(index), static_cast<int>(output)};
      if (!converted.contains(value)) {
        for (const ValueUse& use : uses[index][output].converting) {
          addUse(builder, value, use, problemNode(value.node), specsOf(value));
        }
      }
      // In-place uses read the value's own buffer, and what comes out of an update keeps its spec.
      for (const ValueUse& use : uses[index][output].in_place) {
        const NodeId user = use.isResult()
                                ? *ops().outputs()[static_cast<std::size_t>(use.result)].updates
                                : use.node;
        if (user == value.node) {
          continue;
        }
        const SpecListId wanted =
            use.isResult() ? specsOf({user, 0})
                           : sets[user.index()]->operands[static_cast<std::size_t>(use.operand)];
        addEdge(builder, problemNode(value.node), problemNode(user),
                tables.identity(builder, specsOf(value), wanted), Phase::kUpdate);
      }
    }
  }
}

ShardingSpec Model::Impl::specOf(const std::vector<std::int32_t>& choice, ValueRef root) const {
  const auto chosen = static_cast<std::size_t>(choice[problemNode(root.node).index()]);
  return sets[root.node.index()]->strategies[chosen].outputs[static_cast<std::size_t>(root.output)];
}

// Stores each input that was held whole in the smallest parts from which its uses cost nothing.
void Model::Impl::storeInParts(const std::vector<std::int32_t>& choice, StagePlan& stage) {
  const double weight = *std::ranges::max_element(options.phase_weight);
  for (const NodeId input : held_whole) {
    const ValueRef value{input, 0};
    const PriceBookId book = bookOf(value);
    std::vector<SpecId> wanted;
    for (const ValueUse& use : uses[input.index()][0].converting) {
      ShardingSpec spec = replicatedSpec(mesh->numAxes());
      if (!use.isResult()) {
        const auto chosen = static_cast<std::size_t>(choice[problemNode(use.node).index()]);
        spec = sets[use.node.index()]
                   ->strategies[chosen]
                   .operands[static_cast<std::size_t>(use.operand)];
      }
      wanted.push_back(tables.intern(spec));
    }
    const std::shared_ptr<const StrategySet> all = pool.strategies(input);
    const ShardingSpec* best = nullptr;
    std::int64_t least_bytes = 0;
    for (std::size_t index = 0; index < all->strategies.size(); ++index) {
      const ShardingSpec& spec = all->strategies[index].outputs.front();
      const std::int64_t bytes = all->output_bytes.front()[index];
      const bool is_free = std::ranges::all_of(wanted, [&](SpecId use) {
        return tables.price(book, tables.intern(spec), use, weight) == 0;
      });
      if (is_free && (best == nullptr || bytes < least_bytes)) {
        best = &spec;
        least_bytes = bytes;
      }
    }
    const auto op = std::ranges::find(stage.ops, input, &OpChoice::node);
    op->outputs.front() = *best;
    for (ConversionChoice& conversion : stage.conversions) {
      if (conversion.value == value) {
        conversion.spec = *best;
      }
    }
  }
}

Model::Model(const ShardedGraph& graph, const DeviceMesh& mesh, const Cluster& cluster,
             const ModelOptions& options)
    : impl_(std::make_unique<Impl>(graph, mesh, cluster, options)) {
  ProblemBuilder builder("step");
  impl_->collectStrategies();
  impl_->addOps(builder);
  impl_->addConversions(builder);
  impl_->addUses(builder);
  if (options.memory_limit_bytes) {
    builder.setMemoryLimit(*options.memory_limit_bytes);
  }
  impl_->problem = std::move(builder).build();
}

Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

const Problem& Model::problem() const { return *impl_->problem; }
const std::vector<ModelNode>& Model::nodes() const { return impl_->nodes; }
const std::vector<ConversionPoint>& Model::conversions() const { return impl_->conversions; }
const std::vector<Strategy>& Model::strategies(NodeId op) const {
  return impl_->sets[op.index()]->strategies;
}
const std::vector<ConversionStrategy>& Model::conversionStrategies(int conversion) const {
  return impl_->conversion_domains[static_cast<std::size_t>(conversion)].strategies;
}

std::array<std::int64_t, 3> Model::phaseUnits(std::span<const std::int32_t> choice) const {
  std::array<std::int64_t, 3> units = {0, 0, 0};
  const Problem& problem = *impl_->problem;
  for (std::size_t index = 0; index < impl_->nodes.size(); ++index) {
    const ModelNode& node = impl_->nodes[index];
    if (node.kind == ModelNode::Kind::kOp) {
      const auto phase = static_cast<std::size_t>(impl_->ops().node(node.op).phase);
      units[phase] += problem.nodes()[index].costs[static_cast<std::size_t>(choice[index])];
    }
  }
  for (std::size_t index = 0; index < problem.edges().size(); ++index) {
    const ChoiceEdge& edge = problem.edges()[index];
    units[static_cast<std::size_t>(impl_->edge_phases[index])] +=
        problem.table(edge.table).at(choice[edge.u.index()], choice[edge.v.index()]);
  }
  return units;
}

StagePlan Model::stagePlan(const std::vector<std::int32_t>& choice) const {
  StagePlan stage;
  stage.mesh_shape = impl_->mesh->shape();
  for (int rank = 0; rank < impl_->mesh->numDevices(); ++rank) {
    stage.ranks.push_back(rank);
  }
  stage.conversions.resize(impl_->conversions.size());
  std::vector<Form> forms(impl_->conversions.size());
  for (std::size_t index = 0; index < impl_->nodes.size(); ++index) {
    const ModelNode& node = impl_->nodes[index];
    const auto chosen = static_cast<std::size_t>(choice[index]);
    if (node.kind == ModelNode::Kind::kOp) {
      const Strategy& strategy = strategies(node.op)[chosen];
      stage.ops.push_back({node.op, strategy.operands, strategy.outputs});
    } else if (node.kind == ModelNode::Kind::kConversion) {
      const auto conversion = static_cast<std::size_t>(node.conversion);
      const ConversionPoint& point = impl_->conversions[conversion];
      const ConversionStrategy& strategy = conversionStrategies(node.conversion)[chosen];
      forms[conversion] = strategy.form;
      stage.conversions[conversion] = {point.value, point.group, strategy.spec, false};
    }
  }
  for (std::size_t index = 0; index < forms.size(); ++index) {
    if (stage.conversions[index].group == 1) {
      // The value's own buffer in both groups is one buffer.
      const ConversionChoice& first = stage.conversions[index - 1];
      const bool both_own = forms[index] != Form::kOwn &&
                            first.spec == stage.conversions[index].spec &&
                            first.spec == impl_->specOf(choice, first.value);
      stage.conversions[index].from_first = forms[index] == Form::kKept || both_own;
    }
  }
  impl_->storeInParts(choice, stage);
  return stage;
}

}  // namespace shardwright
