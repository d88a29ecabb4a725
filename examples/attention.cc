// Causal attention of one sequence, dense and with pruned scores, and how far apart they are.
#include <twofour/attention.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

int main() {
  constexpr std::int64_t kTokens = 1024, kHeadsQ = 4, kHeadsKv = 2, kDim = 64;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> q(kTokens * kHeadsQ * kDim), k(kTokens * kHeadsKv * kDim), v(k.size());
  for (float& x : q) x = 2 * normal(random);
  for (float& x : k) x = normal(random);
  for (float& x : v) x = normal(random);

  const auto run = [&](twofour::Mode mode, std::vector<float>& o) -> twofour::Status {
    twofour::AttentionProblem problem;
    problem.heads_q = kHeadsQ;
    problem.heads_kv = kHeadsKv;
    problem.head_dim = problem.head_dim_v = kDim;
    problem.seqlen_q = problem.seqlen_k = kTokens;
    problem.causal = true;
    problem.sparsity = twofour::preset(mode);
    const auto device = twofour::cpu_device();
    if (!device.ok()) return device.status();
    const auto plan = twofour::plan(problem, *device);
    if (!plan.ok()) return plan.status();
    std::printf("%s", plan->explain().c_str());

    twofour::AttentionArgs args;
    args.q = twofour::contiguous(q.data(), twofour::DType::kF32, {1, kTokens, kHeadsQ, kDim});
    args.k = twofour::contiguous(k.data(), twofour::DType::kF32, {1, kTokens, kHeadsKv, kDim});
    args.v = twofour::contiguous(v.data(), twofour::DType::kF32, {1, kTokens, kHeadsKv, kDim});
    args.o = twofour::contiguous(o.data(), twofour::DType::kF32, {1, kTokens, kHeadsQ, kDim});
    std::vector<std::byte> workspace(plan->workspace_bytes());
    return plan->run(args, workspace.data(), workspace.size());
  };

  std::vector<float> dense(q.size()), sparse(q.size());
  for (auto [mode, o] :
       {std::pair(twofour::Mode::kDense, &dense), {twofour::Mode::kScore, &sparse}}) {
    const twofour::Status status = run(mode, *o);
    if (!status.ok()) return std::fprintf(stderr, "%s\n", status.message().c_str()), 1;
  }
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < dense.size(); ++i) {
    error += std::pow(sparse[i] - dense[i], 2);
    norm += std::pow(dense[i], 2);
  }
  std::printf("relative difference %.4f\n", std::sqrt(error / norm));
}
