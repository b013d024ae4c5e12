#include "congestion.hpp"

#include <algorithm>
#include <cmath>

namespace gf {

namespace {
constexpr double kHighGain = 2.885;  // 2 / ln 2: doubles the rate in each round trip
constexpr double kGains[] = {1.25, 0.75, 1, 1, 1, 1, 1, 1};
constexpr uint64_t kRounds = 10;      // that the maximum of the rate goes back
constexpr double kRttLives = 10;      // seconds that a minimum is believed
constexpr double kProbeRtt = 0.2;     // seconds in which the queue is let run empty
constexpr double kFirstPackets = 32;  // under way before anything is known
constexpr double kFirstRtt = 0.1;     // seconds, before anything is known
constexpr double kMostMakeUp = 0.2;   // of the rate, for packets that are lost on the way
constexpr double kDrain = 0.5;        // of the rate, until what is ours has left a queue
constexpr double kMostDrain = 8;      // smallest round trips that this may take
constexpr double kLook = 1.0;         // seconds until others that fill the queue are looked for again
constexpr int kLooked = 4;            // phase by which the round trip without ours is known
constexpr double kAhead = 1.2;        // of the share in a round trip: the window is to be what limits
constexpr double kCut = 0.7;          // what a lost packet leaves of the share, as RFC 9438 (CUBIC), 4.6
}  // namespace

RateMark Congestion::mark(double time, bool nothing_under_way) {
  if (nothing_under_way) {
    first_sent_ = delivered_time_ = time;
    was_empty_ = true;
  }
  return RateMark{delivered_, delivered_time_, first_sent_};
}

void Congestion::delivered(const RateMark &mark, double sent, size_t bytes, double time) {
  delivered_ += static_cast<double>(bytes);
  delivered_time_ = time;
  first_sent_ = sent;
  if (mark.delivered >= round_ends_) {
    round_ends_ = delivered_;
    ++round_;
    round_began_ = true;
  }
  const double interval = std::max(sent - mark.first_sent, time - mark.delivered_time);
  if (interval <= 0 || (min_rtt_ > 0 && interval < min_rtt_)) return;
  const double rate = (delivered_ - mark.delivered) / interval;
  // Who ran dry since this packet left might have sent more: that rate says nothing of the path's.
  const bool limited = limited_at_ >= mark.delivered;
  if (limited && rate < bandwidth_) return;
  sample_limited_ = limited;
  while (!samples_.empty() && samples_.back().rate <= rate) samples_.pop_back();
  samples_.push_back({round_, rate});
}

void Congestion::acknowledged(double time, double rtt, double under_way) {
  while (samples_.size() > 1 && samples_.front().round + kRounds < round_) samples_.pop_front();
  if (!samples_.empty()) bandwidth_ = samples_.front().rate;
  if (rtt > 0) {
    if (srtt_ == 0) {
      srtt_ = rtt;
      deviation_ = rtt / 2;
    } else {  // RFC 6298, section 2
      deviation_ += (std::fabs(rtt - srtt_) - deviation_) / 4;
      srtt_ += (rtt - srtt_) / 8;
    }
    drained_rtt_ = drained_rtt_ == 0 ? rtt : std::min(drained_rtt_, rtt);
    window_min_ = window_min_ == 0 ? rtt : std::min(window_min_, rtt);
    // A path on which nothing was under way for a moment had no queue of ours then, and need not be emptied.
    const bool old = min_rtt_ > 0 && time - min_rtt_time_ > kRttLives;
    if (min_rtt_ == 0 || rtt <= min_rtt_ || (old && was_empty_)) {
      min_rtt_ = rtt <= min_rtt_ || min_rtt_ == 0 ? rtt : window_min_;
      min_rtt_time_ = time;
      window_min_ = rtt;
      was_empty_ = false;
    }
  }
  advance(time, under_way);
  round_began_ = false;
}

void Congestion::advance(double time, double under_way) {
  if (round_began_ && state_ == State::kStartup && (!sample_limited_ || queues(srtt_))) {
    if (bandwidth_ >= 1.25 * full_) {
      full_ = bandwidth_;
      stalled_ = 0;
    } else if (++stalled_ >= 3) {
      state_ = State::kDrain;
      gain_ = 1 / kHighGain;
      window_gain_ = kHighGain;
    }
  }
  if (state_ == State::kDrain && under_way <= bdp()) {
    state_ = State::kProbe;
    window_gain_ = 2;
    phase_ = 2;
    phase_began_ = time;
    gain_ = kGains[phase_];
  }
  if (state_ == State::kProbe) {
    const double lasted = time - phase_began_;
    bool next = lasted > min_rtt_;
    if (gain_ > 1) next = next && under_way >= gain_ * bdp() * 0.9;
    if (gain_ > 1 && lasted > 4 * min_rtt_) next = true;
    if (gain_ < 1) next = under_way <= bdp() || lasted > (gain_ == kDrain ? kMostDrain : 1) * min_rtt_;
    if (next) {
      if (gain_ == kDrain) emptied_ = time;
      if (gain_ < 1) drained_rtt_ = 0;
      phase_ = (phase_ + 1) % static_cast<int>(std::size(kGains));
      phase_began_ = time;
      gain_ = kGains[phase_];
      if (phase_ == kLooked) {
        others_ = queues(drained_rtt_) && (others_ || emptied_ > looked_);
        looked_ = time;
      }
      // Ours is taken out of a queue: what remains is of others.
      if (gain_ < 1 && queues(srtt_) && (!others_ || time - emptied_ > kLook)) gain_ = kDrain;
    }
    if (round_began_) share(under_way);
  }
  if (state_ != State::kProbeRtt && min_rtt_ > 0 && time - min_rtt_time_ > kRttLives) {
    state_ = State::kProbeRtt;
    gain_ = 1;
    probe_rtt_ends_ = time + std::max(kProbeRtt, min_rtt_);
    min_rtt_ = 0;  // what is measured now is the new one
  } else if (state_ == State::kProbeRtt && time > probe_rtt_ends_ && min_rtt_ > 0) {
    min_rtt_time_ = time;
    state_ = stalled_ >= 3 ? State::kProbe : State::kStartup;
    window_gain_ = stalled_ >= 3 ? 2 : kHighGain;
    phase_ = 2;
    phase_began_ = time;
    gain_ = stalled_ >= 3 ? 1 : kHighGain;
  }
}

// Beside others that fill the queue, twice the product would be less and less, since it is of the smallest
// round trip: at least what TCP would have under way (RFC 5681, section 3.1), one packet more in each round
// trip.
void Congestion::share(double under_way) {
  if (!others_) {
    share_ = 0;
  } else if (share_ == 0) {
    share_ = bdp();
  } else if (!lost_) {
    share_ += packet_;
  } else if (!lost_before_) {  // what is lost in one after the other is lost on the way
    share_ = std::max(kCut * std::min(share_, under_way), bdp());
  }
  lost_before_ = lost_;
  lost_ = false;
}

void Congestion::lost(double packets, size_t of) {
  if (packets > 0) lost_ = true;
  seen_lost_ = std::max(seen_lost_ + packets, 0.0);
  seen_packets_ += static_cast<double>(of);
  if (seen_packets_ < 100) {
    loss_ = std::max(loss_, seen_packets_ < 20 ? 0 : seen_lost_ / seen_packets_);
    return;
  }
  loss_ = seen_lost_ / seen_packets_;
  if (seen_packets_ > 2000) {  // what is long ago counts less
    seen_packets_ /= 2;
    seen_lost_ /= 2;
  }
}

double Congestion::rate() const {
  const double rtt = min_rtt_ > 0 ? min_rtt_ : kFirstRtt;
  if (bandwidth_ <= 0) return gain_ * kFirstPackets * packet_ / rtt;
  // What is lost although no queue has formed is lost on the way: the bottleneck's rate is as much higher.
  const double make_up = queues(srtt_) ? 1 : 1 / (1 - std::min(loss_, kMostMakeUp));
  const double beside = srtt_ > 0 && gain_ != kDrain ? kAhead * share_ / srtt_ : 0;
  return std::max({gain_ * bandwidth_ * make_up, beside, 4 * packet_ / std::max({rtt, srtt_, 1e-3})});
}

double Congestion::window() const {
  if (state_ == State::kProbeRtt) return 4 * packet_;
  if (bandwidth_ <= 0 || min_rtt_ <= 0) return kFirstPackets * packet_;
  const double quantum = std::min(std::max(rate() * 1e-3, 2 * packet_), 65536.0);
  const double most = share_ > 0 ? share_ : window_gain_ * bdp() + 3 * quantum;
  return std::max(most, kFirstPackets * packet_);
}

}  // namespace gf
