#include "compare.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "core/half.h"

namespace twofour::tool {
namespace {

struct Format {
  double half_ulp;   // of a number near 1
  double subnormal;  // half the spacing of the smallest
  double largest;
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return {0x1p-11, 0x1p-25, 65504};
    case DType::kBF16:
      return {0x1p-8, 0x1p-134, 3.3895e38};
    default:
      return {0x1p-24, 0x1p-150, 3.4028234e38};
  }
}

/// Error over allowance; infinity when `got` is not an acceptable value at all.
double share(double got, double expected, double bound, const Format& format) {
  const double infinity = std::numeric_limits<double>::infinity();
  if (std::isinf(bound)) return 0;  // the reference says that fp32 overflows here
  if (std::isnan(got) || std::isnan(expected))
    return std::isnan(got) && std::isnan(expected) ? 0 : infinity;
  if (std::isinf(expected)) return got == expected ? 0 : infinity;
  const double reach = std::fabs(expected) + bound;
  if (std::isinf(got)) return reach >= format.largest ? 0 : infinity;
  const double allowed = bound + reach * format.half_ulp + format.subnormal;
  return std::fabs(got - expected) / allowed;
}

}  // namespace

std::string compare_counts(const AttentionStats& got, const AttentionStats& expected) {
  const auto text = [](const AttentionStats& s) {
    return fmt::format("{} units, {} refined, {} dropped, {} of {} pairs in pruned blocks", s.units,
                       s.refined, s.dropped, s.pruned_pairs, s.live_pairs);
  };
  if (text(got) == text(expected)) return "";
  return "counts: expected " + text(expected) + ", got " + text(got);
}

Comparison compare(const AttentionProblem& p, const AttentionArgs& args,
                   const ref::Output& expected) {
  Comparison out;
  const auto judge = [&](double got, double want, double bound, const Format& format,
                         const auto& describe) {
    const double used = share(got, want, bound, format);
    out.worst = std::max(out.worst, used);
    if (used > 1 && out.where.empty())
      out.where = fmt::format("{}: expected {:.9g} within {:.3g}, got {:.9g}", describe(), want,
                              bound, got);
  };
  const Format format = format_of(p.dtype), fp32 = format_of(DType::kF32);
  const std::int64_t heads = p.heads_q, dim = p.head_dim_v;
  const std::int64_t rows = p.packed ? p.total_q : p.batch * p.seqlen_q;
  const auto& so = args.o.stride;
  const auto& sl = args.lse.stride;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t b = p.packed ? 0 : row / p.seqlen_q;
    const std::int64_t i = p.packed ? row : row % p.seqlen_q;
    for (std::int64_t head = 0; head < heads; ++head) {
      if (expected.tainted[static_cast<std::size_t>(head * rows + row)] != 0) continue;
      for (std::int64_t d = 0; d < dim; ++d) {
        const std::int64_t at = p.packed ? i * so[0] + head * so[1] + d * so[2]
                                         : b * so[0] + i * so[1] + head * so[2] + d * so[3];
        const auto from = static_cast<std::size_t>((row * heads + head) * dim + d);
        judge(load_float(args.o.data, p.dtype, at), expected.o[from], expected.o_bound[from],
              format,
              [&] { return fmt::format("o of row {}, head {}, channel {}", row, head, d); });
      }
      const std::int64_t at =
          p.packed ? head * sl[0] + i * sl[1] : b * sl[0] + head * sl[1] + i * sl[2];
      const auto from = static_cast<std::size_t>(p.packed ? head * rows + row
                                                          : (b * heads + head) * p.seqlen_q + i);
      judge(static_cast<const float*>(args.lse.data)[at], expected.lse[from],
            expected.lse_bound[from], fp32,
            [&] { return fmt::format("lse of row {}, head {}", row, head); });
    }
  }
  return out;
}

}  // namespace twofour::tool
