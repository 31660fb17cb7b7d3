// Which value of a step is the gradient of which parameter, for reports.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace shardwright {

struct ParameterGradient {
  NodeId parameter;  // the input
  ValueRef value;    // what backward hands to the update; may be a view
};

// In the order of the parameters. From the new values of a parameter and of its optimizer state,
// backwards through the update along values with as many elements as the parameter, the first value
// that the update does not compute is the gradient. Parameters for which none is found (frozen
// ones), or more than one, are left out.
//
// Example: clip(mm) -> adam_update(weight, ...) finds mm; the norms of the other gradients, from
// which the factor of the clip comes, are not followed, for they are scalars.
std::vector<ParameterGradient> parameterGradients(const Graph& graph);

}  // namespace shardwright
