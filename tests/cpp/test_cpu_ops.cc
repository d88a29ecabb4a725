// The CPU's vector functions against scalar code, on every instruction set this machine has.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/half.h"
#include "cpu/attend.h"
#include "cpu/convert.h"
#include "cpu/matmul.h"
#include "cpu/select.h"
#include "cpu/softmax.h"
#include "cpu/targets.h"
#include "twofour/attention.h"

namespace twofour::cpu {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// A vector whose data lies on a 64-byte boundary.
template <class T>
class Aligned {
 public:
  explicit Aligned(std::size_t n, T value = T{}) : storage_(n + 64 / sizeof(T), value) {
    auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    data_ = reinterpret_cast<T*>((address + 63) / 64 * 64);
  }
  T* data() { return data_; }
  T& operator[](std::size_t i) { return data_[i]; }

 private:
  std::vector<T> storage_;
  T* data_;
};

class CpuOps : public testing::TestWithParam<std::string> {
 protected:
  const Target target_ = find_target(GetParam());
  const ConvertOps& convert_ = *convert_ops(target_.bit);
  const MatmulOps& matmul_ = *matmul_ops(target_.bit);
  const SoftmaxOps& softmax_ = *softmax_ops(target_.bit);
  std::mt19937 random_{7};
};

bool same(float a, float b) { return std::bit_cast<int>(a) == std::bit_cast<int>(b); }

TEST_P(CpuOps, LoadsEverySixteenBitValue) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<std::uint16_t> bits(65536);
    for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
    std::vector<float> out(bits.size());
    convert_.load_row(out.data(), bits.data(), dtype, 65536);
    for (std::size_t i = 0; i < bits.size(); ++i) {
      const float expected = load_float(bits.data(), dtype, static_cast<std::int64_t>(i));
      if (std::isnan(expected))
        ASSERT_TRUE(std::isnan(out[i])) << i;
      else
        ASSERT_TRUE(same(out[i], expected)) << to_string(dtype) << " " << i;
    }
  }
}

TEST_P(CpuOps, StoresRoundToNearestEven) {
  // Values around every kind of boundary: ties, the largest half, subnormals, zeros, NaN, infinity.
  std::vector<float> values{0.0f,           -0.0f,          1.0f,     65504.0f,   65519.9f,
                            65520.0f,       -65520.0f,      kInf,     -kInf,      kNan,
                            6e-8f,          2.9e-8f,        3e-8f,    5.96e-8f,   1e-40f,
                            1.00048828125f, 1.00146484375f, 3.39e38f, 1.00390625f};
  for (int i = 0; i < 5000; ++i)
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random_())));
  const auto n = static_cast<std::int64_t>(values.size());
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    std::vector<char> out(values.size() * size_of(dtype)), expected(out.size());
    convert_.store_row(out.data(), dtype, values.data(), 1.0f, n);
    for (std::int64_t i = 0; i < n; ++i) {
      store_float(expected.data(), dtype, i, values[static_cast<std::size_t>(i)]);
      const float a = load_float(out.data(), dtype, i), b = load_float(expected.data(), dtype, i);
      ASSERT_TRUE(same(a, b) || (std::isnan(a) && std::isnan(b)))
          << to_string(dtype) << " of " << values[static_cast<std::size_t>(i)];
    }
  }
}

TEST_P(CpuOps, QuantisesHalfToEven) {
  const std::vector<float> x{0.5f,  1.5f, 2.5f, -0.5f, -1.5f, 126.5f, 127.4f, -127.0f, 3.0f, 2.0f,
                             -2.5f, 0.0f, 1e9f, -1e9f, 0.49f, -0.51f, 7.5f,   8.5f,    0.1f, 9.5f};
  const std::vector<int> expected{0,  2, 2,   0,    -2, 126, 127, -127, 3, 2,
                                  -2, 0, 127, -127, 0,  -1,  8,   8,    0, 10};
  std::vector<std::int8_t> codes(x.size());
  convert_.quantise_row(codes.data(), x.data(), nullptr, 1.0f, static_cast<std::int64_t>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(codes[i], expected[i]) << x[i];
  const std::vector<float> mean(x.size(), 1.0f);
  convert_.quantise_row(codes.data(), x.data(), mean.data(), 0.5f, 4);
  EXPECT_EQ(codes[0], -1);
  EXPECT_EQ(codes[1], 1);
}

TEST_P(CpuOps, LargestMagnitudeSeesNanAndInfinity) {
  std::vector<float> x(40, -2.0f);
  x[37] = 3.0f;
  EXPECT_EQ(convert_.amax_row(x.data(), nullptr, 40), 3.0f);
  EXPECT_EQ(convert_.amax_row(x.data(), nullptr, 8), 2.0f);
  const std::vector<float> mean(40, 1.0f);
  EXPECT_EQ(convert_.amax_row(x.data(), mean.data(), 40), 3.0f);
  for (const std::size_t at : {0u, 17u, 39u}) {
    std::vector<float> y = x;
    y[at] = kNan;
    EXPECT_TRUE(std::isnan(convert_.amax_row(y.data(), nullptr, 40))) << at;
    y[at] = -kInf;
    EXPECT_EQ(convert_.amax_row(y.data(), nullptr, 40), kInf) << at;
  }
}

TEST_P(CpuOps, SelectsTheTwoLargestOfFourChannels) {
  // Few distinct values, so that ties, zeros of both signs and NaN are common.
  const float choices[] = {0.0f, -0.0f, 1.0f, -1.0f, 2.0f, kNan, kInf, -kInf, 0.5f};
  for (int round = 0; round < 300; ++round) {
    const std::int64_t n = 8 * (1 + round % 9);
    std::vector<float> x(static_cast<std::size_t>(n)), w(x.size());
    for (auto& value : x) value = choices[random_() % std::size(choices)];
    for (auto& value : w) value = random_() % 2 ? 1.0f : 2.0f;
    const bool weighted = round % 2;
    std::vector<float> coef(x.size() / 2 + 16);
    std::vector<std::int32_t> offset(coef.size());
    convert_.select_channels(coef.data(), offset.data(), x.data(), weighted ? w.data() : nullptr,
                             0.5f, 32, n);
    std::size_t at = 0;
    for (std::size_t d = 0; d < x.size(); d += 4) {
      float v[4];
      for (std::size_t c = 0; c < 4; ++c) v[c] = std::fabs(x[d + c]) * (weighted ? w[d + c] : 1);
      const unsigned kept = best_two_of_four(v[0], v[1], v[2], v[3]);
      ASSERT_EQ(std::popcount(kept), 2);
      for (std::size_t c = 0; c < 4; ++c) {
        if (!(kept >> c & 1)) continue;
        ASSERT_EQ(offset[at], static_cast<std::int32_t>((d + c) * 32));
        ASSERT_TRUE(same(coef[at], x[d + c] * 0.5f) || std::isnan(coef[at]));
        ++at;
      }
    }
  }
}

TEST_P(CpuOps, ProductsOfSmallIntegersAreExact) {
  std::uniform_int_distribution<int> digit(-8, 8);
  for (const std::int64_t cols : {16, 32, 48, 64, 128}) {
    for (const std::int64_t rows : {1, 7, 64}) {
      const std::int64_t depth = 24;
      Aligned<float> a(static_cast<std::size_t>(rows * depth)),
          b(static_cast<std::size_t>(depth * cols)), c(static_cast<std::size_t>(rows * cols), 3.0f);
      for (std::int64_t i = 0; i < rows * depth; ++i) a[i] = static_cast<float>(digit(random_));
      for (std::int64_t i = 0; i < depth * cols; ++i) b[i] = static_cast<float>(digit(random_));
      for (const bool accumulate : {true, false}) {
        matmul_.gemm(c.data(), cols, a.data(), depth, b.data(), cols, rows, depth, cols,
                     accumulate);
        for (std::int64_t i = 0; i < rows; ++i)
          for (std::int64_t j = 0; j < cols; ++j) {
            float sum = accumulate ? 3.0f : 0.0f;
            for (std::int64_t k = 0; k < depth; ++k) sum += a[i * depth + k] * b[k * cols + j];
            ASSERT_EQ(c[i * cols + j], sum) << rows << "x" << cols << " at " << i << "," << j;
          }
      }
    }
  }
}

TEST_P(CpuOps, EightBitProductEqualsIntegers) {
  if (!target_.vnni) GTEST_SKIP() << "no VNNI in " << GetParam();
  for (const std::int64_t width : {16, 32, 48, 128}) {
    const std::int64_t groups = 10, rows = 19;
    Aligned<std::int8_t> k(static_cast<std::size_t>(groups * width * 4));
    Aligned<std::int32_t> bias(static_cast<std::size_t>(width), 0);
    std::vector<std::uint8_t> q(static_cast<std::size_t>(rows * groups * 4));
    for (std::int64_t i = 0; i < groups * width * 4; ++i)
      k[i] = static_cast<std::int8_t>(static_cast<int>(random_() % 255) - 127);
    for (auto& code : q) code = static_cast<std::uint8_t>(random_() % 255 + 1);
    for (std::int64_t g = 0; g < groups; ++g)
      for (std::int64_t j = 0; j < width; ++j)
        for (int c = 0; c < 4; ++c) bias[j] -= 128 * k[(g * width + j) * 4 + c];
    const std::vector<float> scale(static_cast<std::size_t>(rows), 0.5f);
    std::vector<float> out(static_cast<std::size_t>(rows * width));
    matmul_.gemm_int8(out.data(), width, q.data(), groups * 4, scale.data(), 2.0f, k.data(),
                      bias.data(), rows, groups, width);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < width; ++j) {
        std::int64_t sum = 0;
        for (std::int64_t g = 0; g < groups; ++g)
          for (int c = 0; c < 4; ++c)
            sum += (q[static_cast<std::size_t>((i * groups + g) * 4 + c)] - 128) *
                   k[(g * width + j) * 4 + c];
        ASSERT_EQ(out[static_cast<std::size_t>(i * width + j)], static_cast<float>(sum));
      }
  }
}

TEST_P(CpuOps, ExponentialsAreAccurate) {
  std::vector<float> o(64), m{0.0f}, l(kSumLanes);
  std::vector<float> s(4096);
  for (std::size_t i = 0; i < s.size(); ++i) s[i] = -static_cast<float>(i) * 0.0317f;
  s[7] = -kInf;
  std::vector<float> p = s;
  softmax_.dense_rows({o.data(), m.data(), l.data(), 64}, p.data(), 4096, 1, 4096);
  for (std::size_t i = 0; i < s.size(); ++i) {
    const double expected = s[i] < -125 ? 0 : std::exp2(static_cast<double>(s[i]));
    ASSERT_NEAR(p[i], expected, 2.5e-7 * expected) << s[i];
  }
  EXPECT_EQ(p[7], 0.0f);
  EXPECT_EQ(m[0], 0.0f);
}

TEST_P(CpuOps, AnyReachesTakesNanForLarge) {
  std::vector<float> s(2 * 64, -5.0f), m{0.0f, 0.0f};
  auto reaches = [&](float margin) {
    return softmax_.any_reaches(m.data(), margin, s.data(), 64, 32, 2, 16);
  };
  EXPECT_FALSE(reaches(4.0f));
  EXPECT_TRUE(reaches(5.0f));
  s[64 + 32 + 15] = kNan;
  EXPECT_TRUE(reaches(4.0f));
  s[64 + 32 + 15] = -5.0f;
  s[64 + 16] = 0.0f;  // between the two segments: not looked at
  EXPECT_FALSE(reaches(4.0f));
  m[1] = -kInf;
  EXPECT_TRUE(reaches(4.0f));
}

INSTANTIATE_TEST_SUITE_P(Targets, CpuOps, testing::ValuesIn(supported_targets()),
                         [](const auto& test) { return test.param; });

TEST(CpuMemory, ScratchOfAThreadStaysUnderTwoMebibytes) {
  for (const char* sparsity : {"exact/none", "nm24/pair512/s1/l1/r2", "int8/nm24_strided512/s1"}) {
    for (const std::int64_t dim : {8, 64, 128, 256}) {
      AttentionProblem problem;
      problem.head_dim = problem.head_dim_v = dim;
      problem.sparsity = resolved(*parse_sparsity(sparsity), dim);
      EXPECT_LT(attend_scratch_bytes(problem, 1 << 14), std::size_t{2} << 20)
          << sparsity << " head_dim " << dim;
      KeyPanels keys;
      keys.block = problem.sparsity.block;
      keys.head_dim = dim;
      EXPECT_LT(prepare_scratch_bytes(keys), std::size_t{2} << 20);
    }
  }
}

}  // namespace
}  // namespace twofour::cpu
