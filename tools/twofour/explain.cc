// twofour explain: what plan() decides for a problem, and why.
#include <memory>

#include "command.h"
#include "twofour/attention.h"

namespace twofour::tool {
namespace {

struct Options {
  CaseSource source;
  std::string kernel;
  DeviceChoice device;
  bool json = false;
};

Json explain_json(const io::Case& c, const Plan& plan) {
  Json candidates = Json::array();
  for (const Candidate& candidate : plan.candidates()) {
    Json row{{"kernel", candidate.kernel_id}, {"chosen", candidate.chosen}};
    if (candidate.why_not.empty()) {
      row["seconds"] = candidate.seconds;
      if (candidate.measured > 0) row["measured_seconds"] = candidate.measured;
      row["workspace_bytes"] = candidate.workspace;
      row["key_parts"] = candidate.key_parts;
    } else {
      row["why_not"] = candidate.why_not;
    }
    candidates.push_back(row);
  }
  return {{"case", c.text},
          {"sparsity", to_string(plan.problem().sparsity)},
          {"kernel", plan.kernel_id()},
          {"workspace_bytes", plan.workspace_bytes()},
          {"candidates", candidates}};
}

int explain(const Options& options) {
  if (options.source.words.empty() && options.source.path.empty())
    return report({Code::kInvalidArgument,
                   "explain: expected a case, such as mode=int8 heads=32/8 dim=128 "
                   "len=8192x8192 causal=bottom_right"},
                  options.json);
  const Result<std::vector<io::Case>> cases = options.source.load("");
  if (!cases.ok()) return report(cases.status(), options.json);
  const Result<std::vector<Device>> devices = options.device.devices();
  if (!devices.ok()) return report(devices.status(), options.json);
  Json plans = Json::array();
  for (const io::Case& c : *cases) {
    PlanOptions plan_options;
    plan_options.kernel_id = options.kernel;
    const Device* device = nullptr;
    const Result<Plan> chosen = plan_on(
        *devices, &device, [&](const Device& one) { return plan(c.problem, one, plan_options); });
    if (!chosen.ok()) return report(chosen.status(), options.json);
    if (options.json) {
      plans.push_back(explain_json(c, *chosen));
      plans.back()["device"] = to_json(*device);
    } else {
      print((&c == cases->data() ? "" : "\n") + chosen->explain());
    }
  }
  if (options.json) print_json(Json{{"device", to_json(devices->front())}, {"plans", plans}});
  return kExitOk;
}

}  // namespace

void add_explain(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("explain", "Print every kernel with its predicted cost or its refusal");
  options->source.add_to(*command);
  command->add_option("--kernel", options->kernel, "force this kernel id");
  options->device.add_to(*command);
  command->add_flag("--json", options->json, "print one JSON document");
  command->callback([options, exit_code] { *exit_code = explain(*options); });
}

}  // namespace twofour::tool
