// The twofour command line. Exit codes: 0 ok, 1 a check failed, 2 bad usage or input.
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <exception>
#include <new>

#include "command.h"
#include "io/file.h"
#include "io/text.h"
#include "twofour/twofour.h"

namespace {

/// Ends the program at once with one line and without partial files. Only async-signal-safe calls.
void interrupted(int) {
  twofour::io::remove_temporary_files();
  constexpr char kMessage[] = "twofour: interrupted\n";
  (void)!::write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  ::_exit(twofour::tool::kExitBadUse);
}

void handle_signals() {
  struct sigaction action {};
  action.sa_handler = interrupted;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    // A parent that ignores a signal (nohup) means its children to ignore it too.
    if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    ::sigaction(signal, &action, nullptr);
  }
  // A write past a size limit then fails with EFBIG, which the writers report.
  std::signal(SIGXFSZ, SIG_IGN);
}

int run(int argc, char** argv) {
  using namespace twofour;
  CLI::App app("Attention with run-time 2:4 sparsity");
  app.name("twofour");
  app.set_version_flag("--version", std::string("twofour ") + twofour_version_string());
  app.require_subcommand(1);
  int exit_code = tool::kExitOk;
  tool::add_attend(app, &exit_code);
  tool::add_verify(app, &exit_code);
  tool::add_bench(app, &exit_code);
  tool::add_explain(app, &exit_code);
  tool::add_golden(app, &exit_code);
  tool::add_info(app, &exit_code);
  tool::add_tune(app, &exit_code);
  // CLI11 would only say that one is required.
  const std::string word = argc > 1 ? argv[1] : "";
  std::string names;
  bool known = word.starts_with('-');
  for (const CLI::App* command : app.get_subcommands({})) {
    known = known || command->get_name() == word;
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  if (!known)
    return tool::report(
        {Code::kInvalidArgument, "expected a command (" + names + "), got " +
                                     (argc > 1 ? io::in_quotes(word) : "none") + "; see --help"},
        false);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    app.exit(success);
  } catch (const CLI::ParseError& error) {
    return tool::report({Code::kInvalidArgument, std::string(error.what()) + "; see --help"},
                        false);
  }
  if (const Status status = tool::finish_output(); !status.ok()) return tool::report(status, false);
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  handle_signals();
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    return twofour::tool::report({twofour::Code::kOutOfMemory, "out of memory"}, false);
  } catch (const std::exception& error) {
    return twofour::tool::report({twofour::Code::kInternal, error.what()}, false);
  }
}
