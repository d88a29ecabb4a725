/* Causal attention through the C API. All values are 1, so the exact output is 1 in any mode. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <twofour/twofour.h>

enum { TOKENS = 1024, HEADS = 2, DIM = 64, SIZE = TOKENS * HEADS * DIM };

int main(void) {
  static float q[SIZE], k[SIZE], v[SIZE], o[SIZE];
  const int64_t shape[4] = {1, TOKENS, HEADS, DIM};
  double error = 0;
  int i;
  for (i = 0; i < SIZE; ++i) {
    q[i] = 4 * (float)rand() / RAND_MAX - 2;
    k[i] = 2 * (float)rand() / RAND_MAX - 1;
    v[i] = 1;
  }

  twofour_attention_problem problem;
  twofour_attention_problem_init(&problem);
  problem.sparsity = "score";
  problem.heads_q = problem.heads_kv = HEADS;
  problem.head_dim = problem.head_dim_v = DIM;
  problem.seqlen_q = problem.seqlen_k = TOKENS;
  problem.causal = 1;

  twofour_attention_args args;
  twofour_attention_args_init(&args);
  args.q = twofour_contiguous(q, TWOFOUR_FP32, 4, shape);
  args.k = twofour_contiguous(k, TWOFOUR_FP32, 4, shape);
  args.v = twofour_contiguous(v, TWOFOUR_FP32, 4, shape);
  args.o = twofour_contiguous(o, TWOFOUR_FP32, 4, shape);

  twofour_plan* plan = NULL;
  if (twofour_plan_create(&problem, NULL, &plan) != TWOFOUR_OK) {
    fprintf(stderr, "%s\n", twofour_last_error());
    return 1;
  }
  size_t bytes = twofour_plan_workspace_bytes(plan);
  void* workspace = malloc(bytes);
  if (twofour_plan_run(plan, &args, workspace, bytes, NULL) != TWOFOUR_OK) {
    fprintf(stderr, "%s\n", twofour_last_error());
    return 1;
  }
  for (i = 0; i < SIZE; ++i) error = fmax(error, fabs(o[i] - 1.0));
  printf("twofour %s, %s, %s: largest error %.2e\n", twofour_version_string(),
         twofour_plan_kernel_id(plan), twofour_plan_sparsity(plan), error);
  free(workspace);
  twofour_plan_destroy(plan);
  return 0;
}
