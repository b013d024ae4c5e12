// How fast a path is sent on: a model of the bottleneck, after BBR (Cardwell et al., "BBR: Congestion-Based
// Congestion Control", ACM Queue 14(5), 2016; draft-cardwell-iccrg-bbr-congestion-control-00, section 4).
// Loss by itself changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace gf {

// What is remembered of a packet when it leaves, to measure the rate when it is acknowledged.
struct RateMark {
  double delivered = 0;       // bytes acknowledged by then
  double delivered_time = 0;  // when the last of them was
  double first_sent = 0;      // when the packet was sent whose acknowledgement that was
};

class Congestion {
 public:
  explicit Congestion(size_t packet) : packet_(static_cast<double>(packet)) {}

  RateMark mark(double time, bool nothing_under_way);
  // Of one packet of `bytes`; after the packets that one acknowledgement tells of, `acknowledged`.
  void delivered(const RateMark &mark, double sent, size_t bytes, double time);
  void acknowledged(double time, double rtt, double under_way);
  void limited() { limited_at_ = delivered_; }  // all that there was is under way
  void lost(double packets, size_t of);         // for the loss rate, which is only a measure

  double rate() const;    // bytes per second at which packets should leave
  double window() const;  // bytes that may be under way
  double bandwidth() const { return bandwidth_; }
  double min_rtt() const { return min_rtt_; }
  double rtt() const { return srtt_; }
  double deviation() const { return deviation_; }
  double loss() const { return loss_; }

 private:
  enum class State { kStartup, kDrain, kProbe, kProbeRtt };
  struct Sample {
    uint64_t round;
    double rate;
  };
  void advance(double time, double under_way);
  double bdp() const { return bandwidth_ * min_rtt_; }
  bool queues(double rtt) const { return rtt > 1.25 * min_rtt_ + 2e-3; }
  void share(double under_way);

  double packet_;
  State state_ = State::kStartup;
  double delivered_ = 0, delivered_time_ = 0, first_sent_ = 0;
  double limited_at_ = -1;      // what was delivered when there was last nothing more to send
  std::deque<Sample> samples_;  // falling: the first one is the maximum of the last ten rounds
  double bandwidth_ = 0;
  uint64_t round_ = 0;
  double round_ends_ = 0;  // once what was sent by then is delivered
  double full_ = 0;        // the rate at which it last grew by a quarter
  int stalled_ = 0;        // rounds since
  bool round_began_ = false, sample_limited_ = false;
  double window_min_ = 0;   // smallest round trip since min_rtt_ was last believed anew
  bool was_empty_ = false;  // and whether nothing was under way at some time since
  double min_rtt_ = 0, min_rtt_time_ = 0, srtt_ = 0, deviation_ = 0;
  int phase_ = 0;
  double phase_began_ = 0, probe_rtt_ends_ = 0;
  double gain_ = 2.885, window_gain_ = 2.885;
  double loss_ = 0, seen_packets_ = 0, seen_lost_ = 0;
  bool others_ = false;                      // fill the queue: it stays when ours is taken out of it
  double emptied_ = 0, looked_ = 0;          // when ours was last; when its effect was last looked at
  double drained_rtt_ = 0;                   // smallest round trip since
  double share_ = 0;                         // bytes under way that TCP would allow itself beside them
  bool lost_ = false, lost_before_ = false;  // something, in this round; in the last one
};

}  // namespace gf
