#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "io/text.h"

namespace twofour::io {
namespace {

constexpr std::size_t kMaxTransfer = std::size_t{1} << 30;  // Linux moves at most 2 GiB per call

Status errno_status(const std::string& what, const std::string& path, int error) {
  const bool missing = what == "open" && (error == ENOENT || error == ENOTDIR);
  return Status(missing ? Code::kNotFound : Code::kIo,
                "cannot " + what + " " + in_quotes(path) + ": " + std::strerror(error));
}

// Paths of the temporary files in flight. A signal handler may take no lock and touch no
// std::string, so the paths are copied into fixed memory and published by an atomic flag.
struct TemporarySlot {
  std::atomic<int> state{0};  // 0 free, 1 being filled, 2 holds a path
  char path[PATH_MAX] = {};
};
constexpr int kSlots = 16;
std::array<TemporarySlot, kSlots> g_slots;

int publish(const std::string& path) {
  if (path.size() >= PATH_MAX) return -1;
  for (int i = 0; i < kSlots; ++i) {
    int free = 0;
    if (!g_slots[i].state.compare_exchange_strong(free, 1)) continue;
    std::memcpy(g_slots[i].path, path.c_str(), path.size() + 1);
    g_slots[i].state.store(2);
    return i;
  }
  return -1;
}

void withdraw(int slot) {
  if (slot >= 0) g_slots[slot].state.store(0);
}

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string resolved(const std::string& path) {
  char buffer[PATH_MAX];
  return ::realpath(path.c_str(), buffer) != nullptr ? std::string(buffer) : path;
}

class FileSource final : public Source {
 public:
  FileSource(int fd, std::uint64_t size, const std::string& path) : Source(size, path), fd_(fd) {}
  ~FileSource() override { ::close(fd_); }

  Status read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    while (!out.empty()) {
      const ssize_t got =
          ::pread(fd_, out.data(), std::min(out.size(), kMaxTransfer), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return errno_status("read", path(), errno);
      if (got == 0) return truncated(offset, out.size());
      offset += static_cast<std::uint64_t>(got);
      out = out.subspan(static_cast<std::size_t>(got));
    }
    return {};
  }

 private:
  int fd_;
};

class MemorySource final : public Source {
 public:
  MemorySource(std::vector<std::byte> bytes, const std::string& name)
      : Source(bytes.size(), name), bytes_(std::move(bytes)) {}

  Status read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    if (offset > size() || out.size() > size() - offset) return truncated(offset, out.size());
    if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
    return {};
  }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace

Status Source::truncated(std::uint64_t offset, std::uint64_t missing) const {
  return Status(Code::kCorrupt, in_quotes(path_) + " is truncated: expected " +
                                    std::to_string(missing) + " bytes at offset " +
                                    std::to_string(offset));
}

Result<std::shared_ptr<const Source>> open_file(const std::string& path) {
  // O_NONBLOCK: opening a pipe without a writer must fail below, not wait.
  int fd;
  do {
    fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return errno_status("open", path, errno);
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    const int error = errno;
    ::close(fd);
    return errno_status("read", path, error);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return {Code::kIo, "cannot read " + in_quotes(path) + ": expected a regular file, got a " +
                           (S_ISDIR(info.st_mode) ? "directory" : "device or pipe")};
  }
  return std::shared_ptr<const Source>(
      std::make_shared<FileSource>(fd, static_cast<std::uint64_t>(info.st_size), path));
}

std::shared_ptr<const Source> from_memory(std::vector<std::byte> bytes, const std::string& name) {
  return std::make_shared<MemorySource>(std::move(bytes), name);
}

Result<std::vector<std::byte>> allocate(std::uint64_t bytes, const std::string& path) {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page = ::sysconf(_SC_PAGE_SIZE);
  const std::uint64_t physical =
      pages > 0 && page > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page)
                            : UINT64_MAX;
  if (bytes <= physical) {
    try {
      return std::vector<std::byte>(static_cast<std::size_t>(bytes));
    } catch (const std::bad_alloc&) {  // falls through to the same message
    }
  }
  return {Code::kOutOfMemory, in_quotes(path) + " needs " + std::to_string(bytes) +
                                  " bytes of memory; this machine has " + std::to_string(physical)};
}

Result<std::vector<std::byte>> read_file(const std::string& path, std::uint64_t limit) {
  Result<std::shared_ptr<const Source>> file = open_file(path);
  if (!file.ok()) return file.status();
  if ((*file)->size() > limit)
    return {Code::kCorrupt, in_quotes(path) + " is too large: expected at most " +
                                std::to_string(limit) + " bytes, got " +
                                std::to_string((*file)->size())};
  Result<std::vector<std::byte>> bytes = allocate((*file)->size(), path);
  if (!bytes.ok()) return bytes;
  if (Status status = (*file)->read_at(0, *bytes); !status.ok()) return status;
  return bytes;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      slot_(std::exchange(other.slot_, -1)),
      path_(std::move(other.path_)),
      final_(std::move(other.final_)),
      temporary_(std::exchange(other.temporary_, {})) {}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
  withdraw(std::exchange(slot_, -1));
}

Result<AtomicFile> AtomicFile::create(const std::string& path) {
  AtomicFile file;
  file.path_ = path;
  file.final_ = resolved(path);
  struct stat info {};
  const bool exists = ::stat(file.final_.c_str(), &info) == 0;
  if (path.empty() || path.back() == '/' || (exists && S_ISDIR(info.st_mode)))
    return {Code::kIo,
            "cannot write " + in_quotes(path) + ": expected a file name, got a directory"};
  if (exists && !S_ISREG(info.st_mode)) {
    file.fd_ = ::open(file.final_.c_str(), O_WRONLY | O_CLOEXEC);
    if (file.fd_ < 0) return errno_status("write", path, errno);
    return file;
  }
  // A file the caller may not write stays as it is, though its directory would allow a rename.
  if (exists && ::access(file.final_.c_str(), W_OK) != 0) return errno_status("write", path, errno);

  static std::atomic<unsigned> counter{0};
  const std::string stem = parent_of(file.final_) + "/.twofour-" + std::to_string(::getpid()) + "-";
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::string name = stem + std::to_string(counter++) + ".tmp";
    // Published first: were a signal to arrive between open and publish, the file would stay.
    const int slot = publish(name);
    const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                          exists ? (info.st_mode & 0777) : 0666);
    if (fd >= 0) {
      file.fd_ = fd;
      file.slot_ = slot;
      file.temporary_ = name;
      return file;
    }
    const int error = errno;
    withdraw(slot);
    if (error != EEXIST && error != EINTR) return errno_status("write", path, error);
  }
  return errno_status("write", path, EEXIST);
}

Status AtomicFile::write(const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = ::write(fd_, from, std::min(bytes, kMaxTransfer));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return errno_status("write", path_, errno);
    from += put;
    bytes -= static_cast<std::size_t>(put);
  }
  return {};
}

Status AtomicFile::sync() {
  // Also reports the errors of delayed allocation, a full disk among them.
  if (!temporary_.empty() && ::fsync(fd_) != 0) return errno_status("write", path_, errno);
  return {};
}

Status AtomicFile::commit() {
  if (fd_ < 0) return Status(Code::kInternal, "commit of a closed file " + in_quotes(path_));
  const bool direct = temporary_.empty();
  if (Status status = sync(); !status.ok()) return status;
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR)
    return errno_status("write", path_, errno);
  if (direct) return {};
  if (::rename(temporary_.c_str(), final_.c_str()) != 0) return errno_status("write", path_, errno);
  temporary_.clear();
  withdraw(std::exchange(slot_, -1));
  // The rename itself reaches the disk with the directory; a file system that cannot sync one
  // (EINVAL) has nothing to add to what was already written.
  const int directory = ::open(parent_of(final_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory >= 0) {
    (void)::fsync(directory);
    ::close(directory);
  }
  return {};
}

void remove_temporary_files() noexcept {
  for (TemporarySlot& slot : g_slots)
    if (slot.state.load() == 2) ::unlink(slot.path);
}

Status write_file(const std::string& path, const std::string& text) {
  Result<AtomicFile> file = AtomicFile::create(path);
  if (!file.ok()) return file.status();
  if (Status status = file->write(text); !status.ok()) return status;
  return file->commit();
}

}  // namespace twofour::io
