#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "core/environment.h"
#include "cpu/targets.h"
#include "twofour/device.h"

namespace twofour {
namespace {

/// Sets a variable for one test.
class Scoped {
 public:
  Scoped(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    setenv(name, value, 1);
  }
  ~Scoped() { old_ ? setenv(name_, old_->c_str(), 1) : unsetenv(name_); }
  Scoped(const Scoped&) = delete;
  Scoped& operator=(const Scoped&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

TEST(Environment, TheTableIsComplete) {
  std::set<std::string> names;
  for (const EnvironmentVariable& variable : environment_variables()) {
    EXPECT_TRUE(names.insert(variable.name).second);
    EXPECT_GT(std::string(variable.meaning).size(), 5u);
    EXPECT_GT(std::string(variable.default_value).size(), 5u);
    EXPECT_GT(std::string(variable.expected).size(), 5u);
    EXPECT_FALSE(variable.accepts("/bad value/")) << variable.name;
  }
  EXPECT_EQ(names, (std::set<std::string>{"TWOFOUR_CPU_TARGET", "TWOFOUR_NUM_THREADS",
                                          "TWOFOUR_KERNEL", "TWOFOUR_TUNE_FILE"}));
}

TEST(Environment, ThreadsAreAWholeNumberInRange) {
  {
    const Scoped unset("TWOFOUR_NUM_THREADS", "");
    EXPECT_FALSE(env_num_threads()->has_value());
  }
  for (const char* good : {"1", "3", "4096"}) {
    const Scoped set("TWOFOUR_NUM_THREADS", good);
    EXPECT_EQ(**env_num_threads(), std::atoi(good));
    EXPECT_EQ(cpu_device()->threads, std::atoi(good));
  }
  for (const char* bad : {"0", "-1", "4097", "2x", " 2", "two", "99999999999"}) {
    const Scoped set("TWOFOUR_NUM_THREADS", bad);
    const auto device = cpu_device();
    ASSERT_FALSE(device.ok()) << bad;
    EXPECT_EQ(device.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(device.status().message(),
              std::string("TWOFOUR_NUM_THREADS: expected a whole number in 1..4096, got \"") + bad +
                  "\"");
  }
}

TEST(Device, UsesTheWidestTargetUnlessTold) {
  const Scoped unset("TWOFOUR_CPU_TARGET", "");
  const auto device = cpu_device();
  ASSERT_TRUE(device.ok()) << device.status().message();
  EXPECT_EQ(device->kind, DeviceKind::kCpu);
  EXPECT_EQ(device->arch, cpu::supported_targets().front());
  EXPECT_FALSE(device->name.empty());
  EXPECT_GE(device->threads, 1);
  EXPECT_GT(device->peak_gflops, device->threads * 1.0);
}

TEST(Device, EverySupportedTargetCanBeChosen) {
  double widest = 0;
  for (const std::string& name : cpu::supported_targets()) {
    const Scoped set("TWOFOUR_CPU_TARGET", name.c_str());
    const auto device = cpu_device();
    ASSERT_TRUE(device.ok()) << device.status().message();
    EXPECT_EQ(device->arch, name);
    widest = std::max(widest, device->peak_gflops);
  }
  const Scoped unset("TWOFOUR_CPU_TARGET", "");
  EXPECT_EQ(cpu_device()->peak_gflops, widest);
}

TEST(Device, ATargetThatIsNotHereIsNamed) {
  {
    const Scoped set("TWOFOUR_CPU_TARGET", "avx9");
    const auto device = cpu_device();
    EXPECT_EQ(device.status().code(), Code::kUnsupported);
    const std::string& message = device.status().message();
    EXPECT_NE(message.find("got \"avx9\", which is not built in"), std::string::npos) << message;
    EXPECT_NE(message.find(cpu::supported_targets().front()), std::string::npos) << message;
  }
  {
    const Scoped set("TWOFOUR_CPU_TARGET", "AVX2;");
    EXPECT_EQ(cpu_device().status().code(), Code::kInvalidArgument);
    EXPECT_NE(cpu_device().status().message().find(cpu::supported_targets().front()),
              std::string::npos);
  }
  {
    const Scoped set("TWOFOUR_KERNEL", "a\nb");
    EXPECT_TRUE(env_kernel().status().message().ends_with("got \"a\\x0ab\""));
  }
  const auto supported = cpu::supported_targets();
  for (const std::string& name : cpu::built_targets()) {
    if (std::find(supported.begin(), supported.end(), name) != supported.end()) continue;
    const Scoped set("TWOFOUR_CPU_TARGET", name.c_str());
    EXPECT_NE(cpu_device().status().message().find("not present"), std::string::npos);
  }
}

}  // namespace
}  // namespace twofour
