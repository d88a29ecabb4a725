// Files as the readers and writers need them: checked random access in, all or nothing out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "twofour/status.h"

namespace twofour::io {

/// Bytes of known number, read at any offset: a file, or memory for tests and fuzzers.
class Source {
 public:
  virtual ~Source() = default;
  std::uint64_t size() const { return size_; }
  /// The path, or what stands for it in messages.
  const std::string& path() const { return path_; }
  /// Fills `out` from `offset`. Errors: kIo; kCorrupt when the bytes end before that.
  virtual Status read_at(std::uint64_t offset, std::span<std::byte> out) const = 0;

 protected:
  Source(std::uint64_t size, std::string path) : size_(size), path_(std::move(path)) {}
  /// The kCorrupt status for `missing` bytes that should follow at `offset`.
  Status truncated(std::uint64_t offset, std::uint64_t missing) const;

 private:
  std::uint64_t size_;
  std::string path_;
};

/// A regular file opened for reading. Errors: kNotFound when there is no such file; kIo for
/// anything else, directories, devices and pipes included.
Result<std::shared_ptr<const Source>> open_file(const std::string& path);

std::shared_ptr<const Source> from_memory(std::vector<std::byte> bytes, const std::string& name);

/// The whole file. Error kCorrupt when it is larger than `limit` bytes.
Result<std::vector<std::byte>> read_file(const std::string& path, std::uint64_t limit);

/// Memory for `bytes` read from `path`, or kOutOfMemory: also when the machine does not have that
/// much, since a sparse file can claim any length and Linux would kill the process instead.
Result<std::vector<std::byte>> allocate(std::uint64_t bytes, const std::string& path);

/// A file that appears under its name complete, or not at all. A destination that exists and is
/// not a regular file (a pipe, /dev/stdout) is written directly.
class AtomicFile {
 public:
  static Result<AtomicFile> create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();  // removes the temporary file unless committed

  /// As given to create().
  const std::string& path() const { return path_; }

  Status write(const void* data, std::size_t bytes);
  Status write(const std::string& text) { return write(text.data(), text.size()); }

  /// Flushes to the disk: what is left for commit() to fail at is the rename.
  Status sync();

  /// Flushes to the disk and renames. After an error `path` is as it was.
  Status commit();

 private:
  AtomicFile() = default;
  void discard();
  int fd_ = -1;
  int slot_ = -1;          // in the table that the signal handler reads
  std::string path_;       // as given, for messages
  std::string final_;      // symbolic links followed
  std::string temporary_;  // empty: writing directly
};

/// Unlinks the temporary files of all AtomicFiles in flight. Async-signal-safe: for the handler of
/// a signal that ends the process.
void remove_temporary_files() noexcept;

/// create, write, commit.
Status write_file(const std::string& path, const std::string& text);

}  // namespace twofour::io
