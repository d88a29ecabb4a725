// What goes into Q.K (rule 5): transformed, pruned or quantised, in the precision the rules name,
// with how far a kernel's value of it may be.
#pragma once

#include <vector>

#include "ref/attention_inputs.h"

namespace twofour::ref {

/// Half the distance between neighbouring fp32 numbers near 1.
inline constexpr double kF32Round = 0x1p-24;

/// A score in nats and how far a kernel's fp32 value may be from it.
struct Score {
  double value = 0;
  double bound = 0;
};

/// The keys of one sequence and KV head as the product sees them: k, k' or int8 codes.
struct Keys {
  std::vector<double> value;  // [N,D]
  std::vector<double> error;  // [N,D]; empty when a kernel has the same values
  std::vector<double> scale;  // int8: [key blocks]
  std::vector<double> mean;   // int8: [D]
};

/// One query row: q, q' or int8 codes.
struct Query {
  std::vector<double> value;       // [D]
  std::vector<double> error;       // [D]; empty when a kernel has the same values
  std::vector<std::int64_t> kept;  // nm24: [D/2], the channels of a pruned query
  std::vector<double>
      doubtful;             // nm24: [D], |q'_d| where rounding decides whether d is kept, else 0
  int doubtful_groups = 0;  // nm24: groups of four with such a channel
  double scale = 1;         // int8
  double lse_shift = 0;     // int8: scale * (q.mean), in nats
  double lse_shift_bound = 0;
};

/// V of one sequence and KV head, [N,Dv].
std::vector<double> make_values(const Inputs& inputs, const Sequence& s, std::int64_t kv_head);

Keys make_keys(const Inputs& inputs, const Sequence& s, std::int64_t kv_head,
               const PreparedK* prepared);
Query make_query(const Inputs& inputs, const Sequence& s, std::int64_t i, std::int64_t head,
                 const Keys& keys);

/// Which channels of q' survive: of each four the two with the largest w_d |q'_d|, in fp32.
std::vector<bool> kept_channels(const std::vector<double>& q, const float* w);

/// The scaled score of a pair; `pruned` uses the two of four channels.
Score score_of(const Inputs& inputs, const Query& query, const Keys& keys, std::int64_t key,
               bool pruned);

}  // namespace twofour::ref
