/* The C header from C99: a whole call, the errors of each function, the size rules of the structs.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <twofour/twofour.h>

static int failures = 0;

#define CHECK(condition)                                                     \
  do {                                                                       \
    if (!(condition)) {                                                      \
      printf("%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, \
             twofour_last_error());                                          \
      ++failures;                                                            \
    }                                                                        \
  } while (0)

/* The call fails with this code, and the message holds this text. */
#define CHECK_FAILS(call, expected_code, text)           \
  do {                                                   \
    CHECK((call) == (expected_code));                    \
    CHECK(strstr(twofour_last_error(), (text)) != NULL); \
    CHECK(strchr(twofour_last_error(), '\n') == NULL);   \
  } while (0)

enum { M = 200, N = 300, HQ = 2, HKV = 1, D = 16, DV = 8 };
static float q[M * HQ * D], k[N * HKV * D], v[N * HKV * DV], o[M * HQ * DV], lse[HQ * M];

static void fill(float* data, int count, unsigned seed) {
  int i;
  for (i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    data[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
  }
}

static twofour_attention_problem make_problem(const char* sparsity) {
  twofour_attention_problem problem;
  twofour_attention_problem_init(&problem);
  problem.sparsity = sparsity;
  problem.heads_q = HQ;
  problem.heads_kv = HKV;
  problem.head_dim = D;
  problem.head_dim_v = DV;
  problem.seqlen_q = M;
  problem.seqlen_k = N;
  problem.causal = 1;
  return problem;
}

static twofour_attention_args make_args(void) {
  const int64_t shape_q[4] = {1, M, HQ, D}, shape_k[4] = {1, N, HKV, D};
  const int64_t shape_v[4] = {1, N, HKV, DV}, shape_o[4] = {1, M, HQ, DV};
  const int64_t shape_lse[3] = {1, HQ, M};
  twofour_attention_args args;
  twofour_attention_args_init(&args);
  args.q = twofour_contiguous(q, TWOFOUR_FP32, 4, shape_q);
  args.k = twofour_contiguous(k, TWOFOUR_FP32, 4, shape_k);
  args.v = twofour_contiguous(v, TWOFOUR_FP32, 4, shape_v);
  args.o = twofour_contiguous(o, TWOFOUR_FP32, 4, shape_o);
  args.lse = twofour_contiguous(lse, TWOFOUR_FP32, 3, shape_lse);
  return args;
}

/* Dense attention of one row, by its definition. */
static double expected_lse(int row, int head) {
  double sum = 0;
  int j, d;
  for (j = 0; j <= row + N - M; ++j) {
    double score = 0;
    for (d = 0; d < D; ++d) score += q[(row * HQ + head) * D + d] * k[j * D + d];
    sum += exp(score / sqrt(D));
  }
  return log(sum);
}

static void test_run(void) {
  twofour_attention_problem problem = make_problem(NULL);
  twofour_attention_args args = make_args();
  twofour_attention_stats stats;
  twofour_plan* plan = NULL;
  void* workspace;
  size_t bytes;
  int row;
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  args.stats = &stats;
  CHECK(twofour_plan_create(&problem, "attention.ref", &plan) == TWOFOUR_OK);
  CHECK(strcmp(twofour_plan_kernel_id(plan), "attention.ref") == 0);
  CHECK(strcmp(twofour_plan_sparsity(plan), "exact/none") == 0);
  CHECK(strstr(twofour_plan_explain(plan), "* attention.ref") != NULL);
  bytes = twofour_plan_workspace_bytes(plan);
  workspace = malloc(bytes + 1);
  CHECK_FAILS(twofour_plan_run(plan, &args, workspace, bytes, &problem), TWOFOUR_INVALID_ARGUMENT,
              "stream: expected NULL on the CPU, got a pointer");
  CHECK(twofour_plan_run(plan, &args, workspace, bytes, NULL) == TWOFOUR_OK);
  for (row = 0; row < M; row += 23) {
    CHECK(fabs(lse[row] - expected_lse(row, 0)) < 1e-5);
    CHECK(fabs(lse[M + row] - expected_lse(row, 1)) < 1e-5);
  }
  /* Row i sees i + 1 + (N - M) keys. */
  CHECK(stats.live_pairs == (int64_t)HQ * (M * (N - M) + M * (M + 1) / 2));
  CHECK(stats.pruned_pairs >= 0 && stats.pruned_pairs < stats.live_pairs);

  args.o.shape[1] = M - 1;
  CHECK_FAILS(twofour_plan_run(plan, &args, workspace, bytes, NULL), TWOFOUR_INVALID_ARGUMENT,
              "o: expected shape [1, 200, 2, 8], got [1, 199, 2, 8]");
  args = make_args();
  args.q.dtype = 99;
  CHECK_FAILS(twofour_plan_run(plan, &args, workspace, bytes, NULL), TWOFOUR_INVALID_ARGUMENT,
              "q: expected a dtype");
  args = make_args();
  args.k.rank = 6;
  CHECK_FAILS(twofour_plan_run(plan, &args, workspace, bytes, NULL), TWOFOUR_INVALID_ARGUMENT,
              "k: expected a rank");
  CHECK_FAILS(twofour_plan_run(plan, NULL, workspace, bytes, NULL), TWOFOUR_INVALID_ARGUMENT,
              "args: expected a struct, got NULL");
  CHECK_FAILS(twofour_plan_run(NULL, &args, workspace, bytes, NULL), TWOFOUR_INVALID_ARGUMENT,
              "plan");
  free(workspace);
  twofour_plan_destroy(plan);
  twofour_plan_destroy(NULL);
}

static void test_plan_errors(void) {
  twofour_attention_problem problem = make_problem("refined");
  twofour_plan* plan = (twofour_plan*)&problem;
  CHECK_FAILS(twofour_plan_create(&problem, "attention.none", &plan), TWOFOUR_NOT_FOUND,
              "got \"attention.none\"");
  CHECK(plan == NULL);
  CHECK_FAILS(twofour_plan_create(&problem, NULL, NULL), TWOFOUR_INVALID_ARGUMENT, "plan");
  CHECK_FAILS(twofour_plan_create(NULL, NULL, &plan), TWOFOUR_INVALID_ARGUMENT, "problem");
  problem.sparsity = "fast";
  CHECK_FAILS(twofour_plan_create(&problem, NULL, &plan), TWOFOUR_INVALID_ARGUMENT,
              "sparsity \"fast\"");
  problem = make_problem("dense");
  problem.heads_kv = 3;
  CHECK_FAILS(twofour_plan_create(&problem, NULL, &plan), TWOFOUR_INVALID_ARGUMENT,
              "heads_q: expected a multiple of heads_kv = 3, got 2");
  problem = make_problem("dense");
  problem.align = 2;
  CHECK_FAILS(twofour_plan_create(&problem, NULL, &plan), TWOFOUR_INVALID_ARGUMENT, "align");
  problem = make_problem("dense");
  problem.dtype = -1;
  CHECK_FAILS(twofour_plan_create(&problem, NULL, &plan), TWOFOUR_INVALID_ARGUMENT, "dtype");
  problem = make_problem("dense");
  problem.has_scale = 1;
  problem.scale = NAN;
  CHECK_FAILS(twofour_plan_create(&problem, NULL, &plan), TWOFOUR_INVALID_ARGUMENT, "scale");
}

/* A caller with a newer header has longer structs; one that forgot the init has nonsense. */
static void test_struct_sizes(void) {
  struct {
    twofour_attention_problem known;
    int64_t added;
  } newer;
  twofour_plan* plan = NULL;
  memset(&newer, 0, sizeof newer);
  newer.known = make_problem("dense");
  newer.known.struct_size = sizeof newer;
  CHECK(twofour_plan_create(&newer.known, "attention.ref", &plan) == TWOFOUR_OK);
  twofour_plan_destroy(plan);
  newer.added = 1;
  CHECK_FAILS(twofour_plan_create(&newer.known, "attention.ref", &plan), TWOFOUR_UNSUPPORTED,
              "problem: expected zeros beyond");
  newer.known.struct_size = sizeof(twofour_attention_problem) - 1;
  CHECK_FAILS(twofour_plan_create(&newer.known, NULL, &plan), TWOFOUR_INVALID_ARGUMENT,
              "problem.struct_size");
  newer.known.struct_size = (size_t)1 << 30;
  CHECK_FAILS(twofour_plan_create(&newer.known, NULL, &plan), TWOFOUR_INVALID_ARGUMENT,
              "problem.struct_size: expected 144 to 65536, as its init sets it, got 1073741824");
}

static void test_small_calls(void) {
  twofour_device_info info;
  char text[96], little[5];
  const int64_t shape[6] = {2, 3, 4, 5, 6, 7};
  twofour_tensor tensor = twofour_contiguous(q, TWOFOUR_FP16, 3, shape);
  CHECK(twofour_version() == TWOFOUR_VERSION_NUMBER);
  sprintf(text, "%d.%d.%d", TWOFOUR_VERSION_MAJOR, TWOFOUR_VERSION_MINOR, TWOFOUR_VERSION_PATCH);
  CHECK(strcmp(twofour_version_string(), text) == 0);
  CHECK(strcmp(twofour_code_name(TWOFOUR_OUT_OF_MEMORY), "out_of_memory") == 0);
  CHECK(tensor.stride[0] == 12 && tensor.stride[1] == 4 && tensor.stride[2] == 1);
  CHECK(twofour_contiguous(q, TWOFOUR_FP16, 6, shape).rank == -1);

  CHECK(twofour_sparsity_canonical("refined", text, sizeof text) == TWOFOUR_OK);
  CHECK(strcmp(text, "nm24/pair/s1/l1/r2") == 0);
  CHECK_FAILS(twofour_sparsity_canonical("refined", little, sizeof little),
              TWOFOUR_INVALID_ARGUMENT, "capacity: expected at least 19 bytes, got 5");
  CHECK_FAILS(twofour_sparsity_canonical(NULL, text, sizeof text), TWOFOUR_INVALID_ARGUMENT,
              "text");
  CHECK_FAILS(twofour_sparsity_canonical("dense", NULL, 0), TWOFOUR_INVALID_ARGUMENT, "out");

  memset(&info, 0, sizeof info);
  CHECK_FAILS(twofour_cpu_device(&info), TWOFOUR_INVALID_ARGUMENT, "info.struct_size");
  info.struct_size = sizeof info;
  CHECK(twofour_cpu_device(&info) == TWOFOUR_OK);
  CHECK(info.kind == TWOFOUR_CPU && info.threads >= 1 && info.peak_gflops > 1);
  CHECK(info.name[0] != '\0' && info.arch[0] != '\0');
  CHECK(twofour_plan_workspace_bytes(NULL) == 0 && *twofour_plan_kernel_id(NULL) == '\0');
}

int main(void) {
  CHECK(strcmp(twofour_last_error(), "") == 0);
  fill(q, M * HQ * D, 1);
  fill(k, N * HKV * D, 2);
  fill(v, N * HKV * DV, 3);
  test_run();
  test_plan_errors();
  test_struct_sizes();
  test_small_calls();
  if (failures == 0) printf("ok\n");
  return failures != 0;
}
