// The op families: each function registers the rules of its file.
#pragma once

#include "sharding/registry.h"

namespace shardwright {

void addAttentionRules(RuleRegistry& registry);      // scaled dot product attention
void addConvolutionRules(RuleRegistry& registry);    // convolution and its backward
void addCreationRules(RuleRegistry& registry);       // full, arange, zeros_like, ...
void addEmbeddingRules(RuleRegistry& registry);      // embedding and its backward
void addIndexingRules(RuleRegistry& registry);       // gather, index, scatter, ...
void addInputRules(RuleRegistry& registry);          // inputs of the graph
void addJoinRules(RuleRegistry& registry);           // cat, stack, pad
void addLossRules(RuleRegistry& registry);           // pieces of cross entropy
void addMatmulRules(RuleRegistry& registry);         // mm, bmm, ...
void addMicrobatchRules(RuleRegistry& registry);     // what leaves microbatches and stages
void addNormalizationRules(RuleRegistry& registry);  // softmax, layer norm, RMS norm
void addPointwiseRules(RuleRegistry& registry);      // elementwise with broadcasting
void addPoolingRules(RuleRegistry& registry);        // pooling, upsampling, image padding
void addRandomRules(RuleRegistry& registry);         // dropout
void addReductionRules(RuleRegistry& registry);      // sum, amax, ...
void addScanRules(RuleRegistry& registry);           // cumsum, sort, topk, ...
void addSliceRules(RuleRegistry& registry);          // slice, select and their backward
void addStridedRules(RuleRegistry& registry);        // diagonals and unfolded dims
void addUpdateRules(RuleRegistry& registry);         // optimizer updates
void addViewRules(RuleRegistry& registry);           // view, permute, expand, ...

}  // namespace shardwright
