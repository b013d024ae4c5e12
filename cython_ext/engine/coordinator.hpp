// Rank 0 of a domain: collects announcements, names who is missing or disagrees, numbers the units.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "protocol.hpp"
#include "steps.hpp"

namespace gf {

// One rank's word about one unit.
struct Announcement {
  UnitSpec spec;
  uint64_t digest = 0;
  bool finite = true;
  std::string name;
  std::string manifest;  // empty: as this rank sent before for this digest
  Agreement agreement;   // of a stepped unit whose steps nobody can know yet; else empty
};

std::vector<uint8_t> pack(const Announcement &announcement);
// GO: a unit, and what was agreed on for it.
std::vector<uint8_t> pack(const UnitSpec &spec, const Agreement &agreement);
bool unpack(const uint8_t *data, size_t bytes, UnitSpec *spec, Agreement *agreement);
bool unpack(const uint8_t *data, size_t bytes, Announcement *announcement);

class Coordinator {
 public:
  using Go = std::function<void(const UnitSpec &, const Agreement &)>;
  using Fail = std::function<void(Failure, const std::string &)>;
  using Warn = std::function<void(const std::string &)>;
  using Joined = std::function<void(int last)>;

  void open(int size, const Options &options, Go go, Fail fail, Warn warn, Joined joined);
  void announce(int rank, Announcement announcement);
  void join(int rank);
  void bye(int rank);
  void settle() { ++settled_; }
  bool all_settled() const { return settled_ == size_; }
  // Lets the next second part go, if it may: it is its turn (`idle`), or it is late. False if there is none.
  bool release(double time, bool idle);
  bool waiting() const { return !pending_.empty() || !waiting_.empty() || joined_count_ > 0; }
  void watch(double time);
  void forgive(double seconds);

 private:
  struct Pending {
    std::string name;
    double since = 0;
    bool warned = false;
    uint64_t arrival = 0;  // units are started in the order of their first announcement
    std::map<int, Announcement> said;
  };
  std::vector<int> missing(const Pending &pending) const;
  void consider(uint64_t key);
  void consider_all();
  void disagree(const Pending &pending);
  bool gone(const Pending &pending);
  std::vector<int> not_joined(bool ended_only) const;
  void check_join();

  struct Waiting {
    UnitSpec spec;  // of a second part
    double since = 0;
  };
  std::deque<Waiting> waiting_;
  std::unordered_set<uint64_t> late_;  // names whose second part was late the last time: not twice running

  int size_ = 1;
  Options options_;
  Go go_;
  Fail fail_;
  Warn warn_;
  Joined joined_;
  std::unordered_map<uint64_t, Pending> pending_;
  std::unordered_map<uint64_t, std::string> manifests_;
  std::vector<bool> has_joined_, has_ended_;
  int joined_count_ = 0, byes_ = 0, settled_ = 0, last_joined_ = 0;
  uint64_t arrivals_ = 0;
  double last_word_ = 0;  // when any rank last announced or joined
};

// The difference of what two groups of ranks said, in one sentence; empty if there is none.
std::string difference(const Announcement &expected, const Announcement &got,
                       const std::string &expected_manifest, const std::string &got_manifest,
                       const std::string &ranks);

}  // namespace gf
