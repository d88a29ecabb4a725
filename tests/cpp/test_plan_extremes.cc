// Problems made of extreme values: refused in one line or planned, never undefined.
#include <gtest/gtest.h>

#include <cmath>

#include "plan/registry.h"
#include "support/random.h"
#include "twofour/attention.h"

namespace twofour {
namespace {

class Extremes {
 public:
  explicit Extremes(std::uint64_t seed) : random_(seed) {}

  AttentionProblem problem() {
    AttentionProblem p;
    p.dtype = static_cast<DType>(random_.integer(0, rarely() ? 9 : 2));
    p.batch = extent(1);
    p.heads_q = extent(4);
    p.heads_kv = extent(2);
    p.head_dim = extent(64);
    p.head_dim_v = extent(64);
    p.seqlen_q = extent(100);
    p.seqlen_k = extent(300);
    p.packed = flip();
    p.total_q = extent(100);
    p.total_k = extent(300);
    p.causal = flip();
    p.align = flip() ? Align::kTopLeft : Align::kBottomRight;
    if (flip()) p.window = {extent(-1), extent(-1)};
    p.has_mask = rarely();
    p.has_transform = flip();
    p.has_prepared_k = flip();
    p.trace = rarely();
    if (rarely()) p.scale = flip() ? NAN : 0.0f;
    p.sparsity = preset(static_cast<Mode>(random_.integer(0, 4)));
    if (rarely()) p.sparsity.block = static_cast<int>(extent(64));
    if (rarely()) p.sparsity.sink_blocks = static_cast<int>(extent(1));
    if (rarely()) p.sparsity.local_blocks = static_cast<int>(extent(1));
    return p;
  }

 private:
  bool flip() { return random_.integer(0, 1) != 0; }
  bool rarely() { return random_.integer(0, 5) == 0; }

  /// Mostly the usual value, so that one extreme at a time gets past the others' checks.
  std::int64_t extent(std::int64_t usual) {
    constexpr std::int64_t kValues[] = {
        INT64_MIN, -2, -1,  0,   1,   2,       3,          7,          8,        63,
        64,        65, 192, 512, 513, 1 << 20, 2147483647, 2147483648, INT64_MAX};
    if (random_.integer(0, 7) != 0) return usual;
    return kValues[random_.integer(0, std::ssize(kValues) - 1)];
  }

  test::Random random_;
};

TEST(Extremes, ArePlannedOrRefusedInOneLine) {
  const Device device = *cpu_device();
  Extremes extremes(17);
  int planned = 0, contradictory = 0, unsupported = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const AttentionProblem problem = extremes.problem();
    const Status status = validate(problem);
    const auto plan = twofour::plan(problem, device);
    if (!plan.ok()) {
      const std::string& message = plan.status().message();
      ASSERT_FALSE(message.empty());
      ASSERT_EQ(message.find('\n'), std::string::npos) << message;
      ASSERT_TRUE(status.ok() || message == status.message()) << message;
      (status.ok() ? unsupported : contradictory) += 1;
      continue;
    }
    ASSERT_TRUE(status.ok()) << status.message();
    ++planned;
    for (const Candidate& candidate : plan->candidates()) {
      ASSERT_TRUE(std::isfinite(candidate.seconds) && candidate.seconds >= 0)
          << candidate.kernel_id << "\n"
          << plan->explain();
      ASSERT_LT(candidate.workspace, std::size_t{1} << 62) << candidate.kernel_id;
    }
  }
  EXPECT_GT(planned, 1000);
  EXPECT_GT(contradictory, 1000);
  EXPECT_GT(unsupported, 20);
}

}  // namespace
}  // namespace twofour
