// One communicator with all its state: the units under way and the steps of their chunks.
// docs/architecture.md ("The reduction of one unit", "States") is the text to this code.
#pragma once

#include <mpi.h>

#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "control.hpp"
#include "coordinator.hpp"
#include "mpi_transport.hpp"
#include "shared.hpp"
#include "steps.hpp"
#include "topology.hpp"
#include "unit.hpp"
#include "window.hpp"
#include "worker.hpp"

namespace gf {

enum class DomainState : int { kOpen = 0, kClosing = 1, kClosed = 2, kFailed = 3 };

// What a domain needs from the engine that owns it.
struct Host {
  const gf_api *api = nullptr;
  std::function<const gf_codec_ops *(uint16_t id)> find_codec;
  std::function<void(const UnitPtr &, UnitState)> finish;  // makes a unit's state final and wakes waiters
  std::function<void(const std::string &)> warn;
};

class Domain {
 public:
  // Messages between nodes go by `between`, which lives as long as this, or where it is null by MPI.
  Domain(MPI_Comm comm, Transport *between, Topology topology, Options options, void *shared,
         std::string name, const Host *host);

  // All of these are called by the engine thread only.
  void start();
  void submit(const UnitPtr &unit);
  void forget(const std::vector<uint64_t> &names);
  void request_close();
  void fail(Failure kind, const std::string &text, bool tell);
  bool progress(double time);  // true if anything moved
  bool active() const;         // something may arrive soon
  void forgive(double seconds);
  void release();  // lets go of all memory, if it closed well
  // Without a word to MPI, which has ended: true if anything was unfinished.
  bool abandon(const std::string &text);

  DomainState state = DomainState::kOpen;
  Failure failure = Failure::kNone;
  std::string error;
  Traffic traffic;

 private:
  // A unit under way. `unit` is null where this rank has joined and takes part with zeros.
  struct Running {
    UnitSpec spec;
    UnitPtr unit;
    const gf_codec_ops *ops = nullptr;
    Geometry geometry;
    uint64_t first = 0;                  // global number of chunk 0
    uint64_t remaining = 0;              // chunks this rank still lacks
    std::vector<Statistics> statistics;  // of each chunk; summed in order at the end
    Agreement agreement;                 // came with GO
    Steps steps;                         // of a stepped codec, once they are known
    bool spoiled = false;                // kUnchecked, and a result is not finite
    bool lossy = false;                  // a payload that is overtaken may be given up
    bool late() const { return spec.flags & kLate; }
    bool stepped() const { return spec.flags & kStepped; }
    bool sparse() const { return ops->sum_spec != nullptr; }  // its sums are (gf_codec_ops::sum_spec)
    bool measured() const { return spec.flags & (kStatistics | kStepped); }
  };
  // A unit that goes in two parts, until both have ended here; by its name and sequence.
  struct Halves {
    UnitPtr unit;
    Agreement agreement;
    Statistics parts[2];
    int left = 2;
    bool late = false;
  };
  struct Chunk {  // where a step stands
    uint64_t unit = 0;
    uint64_t chunk = 0;
  };
  struct At {  // a chunk, resolved
    Running *run = nullptr;
    uint64_t chunk = 0, g = 0, begin = 0, count = 0;
    int slice = 0, home = 0;
    bool mine = false, at_home = false;  // I own its slice; my node is its home
  };

  bool resolve(Chunk *cursor, At *at);
  void place(At *at) const;
  static void advance(Chunk *cursor) { ++cursor->chunk; }

  static int turns_of(const Running &run);
  bool step_copy();
  bool step_receive();
  bool step_reduce();
  bool step_sum();
  bool step_stage();
  void owe(const At &at);

  void go(const UnitSpec &spec, const Agreement &agreement);
  void finish(Running *run);
  Statistics statistics_of(const Running &run) const;
  bool idle() const;
  // Whose range holds the element.
  static size_t first_tensor(const std::vector<uint64_t> &ends, uint64_t element);
  static std::vector<uint64_t> ends_of(const Running &run);
  void end_failed(const UnitPtr &unit, Failure kind, const std::string &text);
  void end_submitted(const std::string &text);
  void end_running(const std::string &text);
  bool unfinished() const;
  void on_control(int source, const ControlHeader &header, const uint8_t *body, size_t bytes);
  void on_joined(int last);
  void announce(const UnitPtr &unit);
  void announce_next();
  bool all_announced() const { return queued_ == 0 && gathering_.empty(); }
  void begin_join(const UnitPtr &unit);
  void tell_join();
  void retire();
  void watch(double time);
  std::vector<int> awaited();
  std::string subject() const;

  // Elements of a chunk: where this rank's input lies (zeros if it has joined) and its output.
  const uint8_t *input(const At &at) const;
  uint8_t *output(const At &at) const;
  float *residual(const At &at) const;
  void back_up(const At &at) const;  // the chunk's residual, before it is encoded with it
  void restore(const Running &run);  // the residuals of chunks that were
  void look(const At &at, const void *result) const;
  bool result_free(uint64_t g) const;
  uint8_t *result_target(const At &at);
  void result_done(const At &at, uint8_t *result, Statistics statistics);
  void chunk_done(const At &at, Statistics statistics);

  // Arithmetic on a chunk's elements, in the unit's dtype.
  void sum(const At &at, void *out, const std::vector<const void *> &parts, double scale) const;
  // The sum of the node's inputs, each scaled before it is added: finite inputs have a finite average.
  void sum_node(const At &at, void *out, double scale);
  void add(const At &at, void *total, const void *part) const { sum(at, total, {total, part}, 1.0); }
  void hand_out(const At &at, const void *result) const;
  void scaled(const At &at, void *out, const void *in, double scale) const;

  size_t encode(const At &at, const void *x, float *residual, uint64_t stage, uint8_t *out) const;
  void encode_own(const At &at, float *own);
  bool finite(const At &at, const void *x) const;
  void saturate(const At &at, void *total, const void *part);
  size_t encode_sparse_sum(const At &at, const float *total, uint8_t *out) const;
  void decode(const At &at, const Arrival &arrival, int source, void *out, bool add) const;
  void check(const At &at, int source, int status) const;
  std::vector<Energy> measure(const At &at, const float *x, const float *residual) const;

  // Stepped codecs (domain_stepped.cpp).
  Agreement inputs(const Unit &unit);  // what this rank adds to the agreement, where one is needed
  bool steps_known(Running *run);      // false while an earlier reduction of this name is under way here
  bool runs(uint64_t name_hash) const;
  size_t encode_stepped(const At &at, const std::vector<float> &steps, const float *x, uint8_t *out,
                        std::vector<Energy> *energies);
  void add_codes(const At &at, const Arrival &arrival, int source);
  void owe_rounding(const At &at, const float *values, const Arrival &encoded);
  size_t encode_codes(const At &at, const float *own, uint8_t *out, std::vector<Energy> *energies,
                      bool *rounded);
  size_t encode_sum(const At &at, float *own, uint8_t *out, std::vector<Energy> *energies);

  // Chunks on a device (domain_device.cpp).
  static bool on_device(const At &at);
  Workers &workers_of(const Unit &unit);
  void settle_devices();
  bool device_busy() const;
  void announce_gathered();
  std::vector<double> device_energies(const Unit &unit, const std::vector<uint64_t> &ends);
  std::vector<uint64_t> measured_ends(const At &at) const;
  void launch_energies(const At &at, Worker *w, const float *x, const float *residual, size_t set) const;
  static void launch_sum(Worker *w, float *out, const float *a, const float *b, double scale, uint64_t count,
                         int32_t *finite);
  void launch_own(const At &at, Worker *w) const;
  void launch_back_up(const At &at, Worker *w) const;
  void launch_encode(const At &at, Worker *w, const std::vector<float> *steps, const float *x, uint64_t stage,
                     size_t set) const;
  void launch_decode(const At &at, Worker *w, const uint8_t *payload, size_t bytes, float *out, bool add,
                     int32_t *status) const;
  void launch_add_codes(const At &at, Worker *w, const uint8_t *payload, size_t bytes, int32_t *status) const;
  void launch_encode_sum(const At &at, Worker *w) const;
  void launch_result(const At &at, Worker *w);
  void result_is_there(const At &at, Worker *w);
  bool sum_on_device(const At &at);
  bool owe_on_device(const At &at);
  bool collect_on_device(const At &at, Worker *w);
  Statistics reduced_statistics(const At &at, const Worker &w, size_t peers, size_t bytes);
  bool reduce_on_device(const At &at);
  bool receive_on_device(const At &at);
  void restore_on_device(const Unit &unit, uint64_t begin, uint64_t count);

  static void collect(const Arrival &arrival, std::vector<Energy> *energies);
  static void add_up(const std::vector<Energy> &part, std::vector<Energy> *energies);
  std::vector<int> other_owners(const At &at) const;
  void send(const At &at, Window *window, SendSlot *slot, const std::vector<int> &peers, size_t payload_bytes,
            uint64_t first_bytes, const std::vector<Energy> &energies, uint64_t missing = 0,
            double weight = 0);

  // Payloads that may be given up (domain_missing.cpp).
  bool may_miss(const Running &run) const;
  bool may_keep(int peer) const;
  void keep_sent(const At &at, int peer, size_t slot, size_t bytes, double weight);
  static double energy_of(const float *a, const float *b, uint64_t count);
  double weight_of(double before, const At &at) const;
  void give_up(const At &at, uint8_t *total, bool first);
  void stand_in(std::vector<Energy> *energies) const;
  void owe_missed(const At &at, int peer, const Arrival &arrival);

  MpiTransport mpi_;
  Routes routes_;
  Topology topology_;
  Options options_;
  Shared shared_;
  std::string name_;
  const Host *host_;

  Control control_;
  Coordinator coordinator_;
  Window scatter_, gather_;
  size_t capacity_ = 0;

  std::unordered_map<uint64_t, UnitPtr> submitted_;
  // Each name that is announced here and has not ended here, with its queued versions in order.
  std::unordered_map<uint64_t, std::vector<UnitPtr>> versions_;
  size_t queued_ = 0;               // units in it
  std::deque<uint64_t> ended_;      // names whose next version is to be announced
  std::vector<UnitPtr> gathering_;  // on a device, whose tensors are on their way to the bucket
  WorkersOf workers_;
  std::unordered_set<uint64_t> digests_told_;
  std::deque<Running> running_;
  std::map<std::pair<uint64_t, uint64_t>, Halves> halves_;
  uint64_t retired_ = 0;     // units no longer in running_
  uint64_t next_chunk_ = 0;  // global number of the next unit's first chunk
  Chunk staging_, summing_, reducing_, receiving_, copying_;

  std::vector<std::vector<SendSlot>> scatter_slots_;  // by peer, W each
  std::vector<SendSlot> gather_slots_;
  uint64_t gather_count_ = 0;
  std::vector<uint64_t> scatter_counts_;
  struct Kept {  // a payload that was sent, until its result tells whether it was in it
    uint64_t g, count;
    size_t slot, bytes;
    double energy;  // by which less is owed for it
  };
  std::vector<std::deque<Kept>> kept_;  // by peer, in order

  std::vector<std::vector<uint8_t>> sums_;  // my node's sums of chunks whose home is here: S, in order
  uint64_t sums_made_ = 0, sums_used_ = 0, ahead_ = 0;  // how far the first may be ahead of the second
  bool own_read_ = false;                               // of the chunk being reduced
  bool part_spoiled_ = false;                           // the same: some part of it is not finite
  int reduce_node_ = 0;  // the next node whose payload the chunk being reduced waits for
  std::vector<std::vector<Energy>> reduce_energies_;  // by node
  uint64_t reduce_bytes_ = 0;
  uint64_t reduce_missing_ = 0;                         // nodes whose payload was given up
  std::unordered_map<uint64_t, StepControl> controls_;  // by the unit's name
  std::unordered_set<uint64_t> forgotten_;              // among them, once they have ended here
  std::vector<uint8_t> codes_, lost_, payload_;         // of stepped and sparse ones; made when first needed
  std::vector<uint8_t> scratch_, own_, total_, zeros_;

  UnitPtr join_;
  bool join_told_ = false;
  bool bye_told_ = false;
  bool settled_told_ = false;
  bool ending_ = false;
  double ended_at_ = 0;
  double last_step_ = 0, last_heartbeat_ = 0, heartbeat_every_ = 1;
};

}  // namespace gf
