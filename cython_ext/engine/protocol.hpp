// What the engine's processes say to each other, and the plain data they say it with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../comm/clock.hpp"
#include "../gf_api.h"

namespace gf {

// Flags of a unit.
enum : uint32_t {
  kNonFinite = 1,      // some rank's input is not finite: no error feedback, on any rank
  kStatistics = 2,     // energies of gradient and residual accompany the payloads
  kErrorFeedback = 4,  // residuals are kept
  kStepped = 8,        // the codec's steps are agreed on (steps.hpp), which takes the same energies
  kUnchecked = 16,     // nobody looked whether the inputs are finite: the results will tell
  kLate = 32,          // the second part of a unit was not begun in time: nobody sends, everybody owes it
};

// What a GO lets go. A unit that is split goes in two parts, and others may pass the second one.
enum class Part : uint32_t { kWhole = 0, kFirst = 1, kSecond = 2 };

// All that must be equal on every rank, and all that a rank needs to take part with zeros.
struct UnitSpec {
  uint64_t name_hash = 0;
  uint64_t sequence = 0;
  uint64_t elements = 0;
  gf_codec_spec codec{};
  uint32_t dtype = GF_F32;  // of the buffer and of the sums: GF_F32 or GF_F64
  uint32_t flags = 0;
  uint64_t state = 0;       // digest of whatever else must be the same on every rank
  double node_scale = 1.0;  // times the sum over a node
  double home_scale = 1.0;  // times the sum over all nodes, before the second encoding
  double post_scale = 1.0;  // times the decoded result
  uint64_t split = 0;       // elements of the first part, which is urgent; 0: all of them
  double deadline = 0;      // seconds that the second part may wait for its turn; 0: for ever
  uint32_t reserved = 0;
  Part part = Part::kWhole;  // of a GO
  size_t element_bytes() const { return dtype == GF_F64 ? 8 : 4; }
};

enum class Message : uint32_t {
  kAnnounce = 1,
  kGo,
  kCredit,
  kHeartbeat,
  kFail,
  kBye,  // this rank announces nothing more
  kEnd,
  kJoin,
  kJoined,
  kSettled,  // after kBye: nor is anything unfinished there
};

struct ControlHeader {
  Message kind;
  uint32_t a = 0;
  uint64_t b = 0;
};

// In front of every payload.
struct DataHeader {
  uint64_t chunk = 0;          // global number of the chunk, a check of the order
  uint32_t payload_bytes = 0;  // its true size
  uint32_t statistics = 0;     // Energies after the payload
  uint64_t first_bytes = 0;    // beside a result: of the payloads that were added up for it
  uint64_t missing = 0;        // and a bit for each node whose payload was given up
};

// Sums of squares for one tensor in one chunk.
struct Energy {
  double gradient =
      0;  // of what was encoded, without residuals; both encodings, but for stepped codecs all nodes' parts
  double residual = 0;  // of what that lost, in both encodings
  double total = 0;     // of the reduced gradient
  void operator+=(const Energy &other) {
    gradient += other.gradient;
    residual += other.residual;
    total += other.total;
  }
};

// What is known of one chunk, or of a whole unit.
struct Statistics {
  std::vector<Energy> energies;  // one for each tensor, in order
  uint64_t bytes = 0;            // of all payloads for it, to and from its home
};

enum class Failure : int { kNone = 0, kMismatch = 1, kPeer = 2, kWire = 3, kInternal = 4 };

// Settings of a domain, from Python.
struct Options {
  size_t chunk_bytes = 256 << 10;
  int window = 8;
  size_t eager_bytes = 60 << 10;
  int slots = 8;
  double submit_warn = 60, submit_timeout = 1800, progress_timeout = 60;
  double deadline = 0;  // seconds after which a payload that others have overtaken is given up; 0: never
};

// Flat bytes, written and read in order.
class Writer {
 public:
  std::vector<uint8_t> bytes;
  template <class T>
  void put(const T &value) {
    append(&value, sizeof(T));
  }
  void text(const std::string &s) {
    put(static_cast<uint64_t>(s.size()));
    append(s.data(), s.size());
  }

 private:
  void append(const void *data, size_t size) {
    const size_t at = bytes.size();
    bytes.resize(at + size);
    if (size) __builtin_memcpy(bytes.data() + at, data, size);
  }
};

class Reader {
 public:
  Reader(const uint8_t *data, size_t size) : at_(data), end_(data + size) {}
  template <class T>
  T get() {
    T value{};
    if (left() < sizeof(T)) {
      bad_ = true;
    } else {
      __builtin_memcpy(&value, at_, sizeof(T));
      at_ += sizeof(T);
    }
    return value;
  }
  std::string text() {
    auto n = get<uint64_t>();
    if (bad_ || left() < n) {
      bad_ = true;
      return {};
    }
    std::string s(reinterpret_cast<const char *>(at_), n);
    at_ += n;
    return s;
  }
  size_t left() const { return static_cast<size_t>(end_ - at_); }
  bool bad() const { return bad_; }

 private:
  const uint8_t *at_;
  const uint8_t *end_;
  bool bad_ = false;
};

// "[0, 3, 5]"
std::string list_of(const std::vector<int> &ranks);

}  // namespace gf
