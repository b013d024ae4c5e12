// The steps of a chunk (docs/architecture.md, "Chunk, on each rank"). Each looks at its own cursor's chunk
// only, takes at most one chunk, and says whether it did.
#include <algorithm>
#include <cstring>
#include <limits>

#include "domain.hpp"

namespace gf {

// Moves the cursor to the next chunk there is; false if there is none yet.
bool Domain::resolve(Chunk *cursor, At *at) {
  if (cursor->unit < retired_) *cursor = Chunk{retired_, 0};
  for (;;) {
    const uint64_t index = cursor->unit - retired_;
    if (index >= running_.size()) return false;
    Running &run = running_[index];
    if (cursor->chunk >= run.geometry.chunks) {
      *cursor = Chunk{cursor->unit + 1, 0};
      continue;
    }
    at->run = &run;
    at->chunk = cursor->chunk;
    place(at);
    return true;
  }
}

// Fills in what follows from the chunk of a unit. Units begin at different owners, or those of one chunk
// would all be rank 0's; always at the same for one name, since the residual of a chunk lies with its owner.
void Domain::place(At *at) const {
  const Running &run = *at->run;
  at->g = run.first + at->chunk;
  at->begin = run.geometry.begin + at->chunk * run.geometry.chunk;
  at->count = std::min(run.geometry.chunk, run.geometry.end - at->begin);
  const uint64_t place = run.geometry.before + at->chunk + run.spec.name_hash % 4096;
  at->slice = static_cast<int>(place % topology_.slices);
  at->home = static_cast<int>(place / topology_.slices % topology_.node_count());
  at->mine = topology_.owner_local(topology_.node, at->slice) == topology_.local;
  at->at_home = at->home == topology_.node;
}

// A rank copies its input to its slot, for the owner to read.
bool Domain::step_stage() {
  At at;
  while (resolve(&staging_, &at)) {
    if (at.mine) {
      advance(&staging_);
      continue;
    }
    if (!shared_.passed(shared_.reduced(at.g), at.g)) return false;
    scaled(at, shared_.stage(topology_.local, at.g), input(at), at.run->spec.node_scale);
    shared_.set_staged(topology_.local, at.g);
    advance(&staging_);
    return true;
  }
  return false;
}

// The owner adds its node's chunks and, unless the chunk is at home here, encodes and sends the sum.
bool Domain::step_sum() {
  At at;
  while (resolve(&summing_, &at)) {
    if (!at.mine) {
      advance(&summing_);
      continue;
    }
    for (int i = 0; i < topology_.local_size(); ++i) {
      if (i != topology_.local && shared_.staged(i, at.g) != at.g + 1) return false;
    }
    if (at.run->late()) {
      if (on_device(at)) return owe_on_device(at);
      if (!result_free(at.g)) return false;
      owe(at);
      uint8_t *result = result_target(at);
      std::memset(result, 0, at.count * at.run->spec.element_bytes());
      result_done(at, result, {});
    } else if (topology_.node_count() == 1) {
      if (!result_free(at.g)) return false;
      uint8_t *result = result_target(at);
      sum_node(at, result, at.run->spec.home_scale);
      result_done(at, result, {});
    } else if (at.at_home) {
      if (sums_made_ - sums_used_ >= ahead_) return false;
      // One rank a node: what it has is read when it is needed, and is in the cache then.
      if (shared_) sum_node(at, sums_[sums_made_ % sums_.size()].data(), 1.0);
      ++sums_made_;
    } else {
      if (!steps_known(at.run)) return false;
      if (on_device(at)) return sum_on_device(at);
      const int peer = topology_.owner(at.home, at.slice);
      auto &slots = scatter_slots_[peer];
      SendSlot &slot = slots[scatter_counts_[peer] % slots.size()];
      if (!scatter_.may_send(peer) || !slot.free() || !may_keep(peer)) return false;
      const size_t slot_index = scatter_counts_[peer]++ % slots.size();
      slot.reserve(capacity_);
      sum_node(at, scratch_.data(), 1.0);
      back_up(at);
      auto *x = reinterpret_cast<float *>(scratch_.data());
      const double before = at.run->lossy ? energy_of(x, residual(at), at.count) : 0;
      std::vector<Energy> energies;
      size_t bytes;
      if (at.run->stepped()) {
        bytes = encode_stepped(at, at.run->steps.first, x, slot.payload(), &energies);
      } else {
        float *res = residual(at);
        bytes = encode(at, x, res, 0, slot.payload());
        energies = measure(at, x, res);
      }
      const double weight = at.run->lossy ? weight_of(before, at) : 0;
      if (at.run->lossy) keep_sent(at, peer, slot_index, bytes, weight);
      send(at, &scatter_, &slot, {peer}, bytes, 0, energies, 0, weight);
    }
    if (shared_) shared_.set_reduced(at.g);
    advance(&summing_);
    return true;
  }
  return false;
}

// Nobody sends this chunk: what the node would have sent comes next time.
void Domain::owe(const At &at) {
  float *owed = residual(at);
  if (!owed) return;
  sum_node(at, scratch_.data(), 1.0);
  const auto *x = reinterpret_cast<const float *>(scratch_.data());
  constexpr float kMost = std::numeric_limits<float>::max();
  for (uint64_t i = 0; i < at.count; ++i) owed[i] = std::min(std::max(owed[i] + x[i], -kMost), kMost);
}

// The owner at home adds the other nodes' sums, in order of node, and sends the result.
bool Domain::step_reduce() {
  if (topology_.node_count() == 1) return false;
  At at;
  while (resolve(&reducing_, &at)) {
    if (!at.mine || !at.at_home || at.run->late()) {
      advance(&reducing_);
      continue;
    }
    if (sums_made_ == sums_used_ || !steps_known(at.run)) return false;
    if (on_device(at)) return reduce_on_device(at);
    const bool stepped = at.run->stepped(), sparse = at.run->sparse();
    uint8_t *own = sums_[sums_used_ % sums_.size()].data();
    auto read_own = [&] {
      if (!shared_ && !own_read_) sum_node(at, own, 1.0);
      if (sparse && !own_read_) {
        encode_own(at, reinterpret_cast<float *>(own));
        part_spoiled_ |= !finite(at, own);
      }
      own_read_ = true;
    };
    // Adding the first two in either order gives the same bits, so only a later home needs another buffer.
    uint8_t *total = at.home <= 1 ? own : total_.data();
    bool moved = false;
    for (; reduce_node_ < topology_.node_count(); ++reduce_node_) {
      if (reduce_node_ == topology_.node) {
        if (at.home > 1 && !stepped) {
          read_own();
          add(at, total, own);
          if (sparse) saturate(at, total, own);
        }
        continue;
      }
      const int peer = topology_.owner(reduce_node_, at.slice);
      Arrival arrival;
      if (!scatter_.front(peer, &arrival, at.run->lossy ? options_.deadline : 0)) return moved;
      if (!arrival.payload) {
        if (total == own && !stepped) read_own();
        give_up(at, total, total != own && reduce_node_ == 0);
        scatter_.consume(peer);
        moved = true;
        continue;
      }
      if (stepped) {
        if (reduce_bytes_ == 0) codes_.assign(at.count * sizeof(float), 0);
        add_codes(at, arrival, peer);
      } else {
        if (total == own) read_own();
        decode(at, arrival, peer, total, total == own || reduce_node_ > 0);
        if (sparse && !part_spoiled_ && !finite(at, total)) {
          decode(at, arrival, peer, scratch_.data(), false);
          saturate(at, total, scratch_.data());
        }
      }
      collect(arrival, &reduce_energies_[reduce_node_]);
      reduce_bytes_ += arrival.bytes;
      scatter_.consume(peer);
      moved = true;
    }
    const std::vector<int> peers = other_owners(at);
    SendSlot &slot = gather_slots_[gather_count_ % gather_slots_.size()];
    for (int peer : peers) {
      if (!gather_.may_send(peer)) return moved;
    }
    if (!slot.free() || !result_free(at.g)) return moved;
    ++gather_count_;
    ++sums_used_;
    reduce_node_ = 0;
    read_own();
    own_read_ = part_spoiled_ = false;
    slot.reserve(capacity_);
    if (!sparse) back_up(at);
    size_t bytes;
    std::vector<Energy> *mine = &reduce_energies_[topology_.node];
    if (stepped) {
      bytes = encode_sum(at, reinterpret_cast<float *>(own), slot.payload(), mine);
    } else if (sparse) {
      scaled(at, total, total, at.run->spec.home_scale);
      const auto *sum = reinterpret_cast<const float *>(total);
      bytes = encode_sparse_sum(at, sum, slot.payload());
      const std::vector<Energy> reduced = measure(at, sum, nullptr);
      for (size_t i = 0; i < mine->size(); ++i) (*mine)[i].total = reduced[i].gradient;
    } else {
      scaled(at, total, total, at.run->spec.home_scale);
      float *res = residual(at);
      bytes = encode(at, total, res, 1, slot.payload());
      *mine = measure(at, reinterpret_cast<float *>(total), res);
      for (Energy &e : *mine) e.total = e.gradient;
    }
    uint8_t *result = result_target(at);
    Arrival self{at.g, slot.payload(), bytes, nullptr, 0, 0};
    decode(at, self, topology_.rank, result, false);
    Statistics statistics;
    statistics.bytes = reduce_bytes_ + peers.size() * bytes;
    // In order of node, so that the sums are the same wherever the home is.
    for (auto &part : reduce_energies_) {
      add_up(part, &statistics.energies);
      part.clear();
    }
    if (reduce_missing_) stand_in(&statistics.energies);
    send(at, &gather_, &slot, peers, bytes, reduce_bytes_, statistics.energies, reduce_missing_);
    reduce_bytes_ = reduce_missing_ = 0;
    result_done(at, result, std::move(statistics));
    advance(&reducing_);
    return true;
  }
  return false;
}

// Owners elsewhere decode the same payload.
bool Domain::step_receive() {
  if (topology_.node_count() == 1) return false;
  At at;
  while (resolve(&receiving_, &at)) {
    if (!at.mine || at.at_home || at.run->late()) {
      advance(&receiving_);
      continue;
    }
    if (on_device(at)) return receive_on_device(at);
    const int peer = topology_.owner(at.home, at.slice);
    Arrival arrival;
    if (!result_free(at.g) || !gather_.front(peer, &arrival)) return false;
    if (at.run->lossy) owe_missed(at, peer, arrival);
    uint8_t *result = result_target(at);
    decode(at, arrival, peer, result, false);
    Statistics statistics;
    collect(arrival, &statistics.energies);
    statistics.bytes = arrival.first_bytes + (topology_.nodes.size() - 1) * arrival.bytes;
    gather_.consume(peer);
    result_done(at, result, std::move(statistics));
    advance(&receiving_);
    return true;
  }
  return false;
}

// Every rank copies the result out of shared memory.
bool Domain::step_copy() {
  if (!shared_) return false;
  At at;
  if (!resolve(&copying_, &at) || shared_.result_ready(at.g) != at.g + 1) return false;
  look(at, shared_.result(at.g));
  if (at.run->unit) hand_out(at, shared_.result(at.g));
  Statistics statistics;
  if (at.run->measured()) {
    uint64_t front[2];
    const uint8_t *trailer = shared_.energies(at.g);
    std::memcpy(front, trailer, sizeof front);
    statistics.energies.resize(front[0]);
    statistics.bytes = front[1];
    if (front[0])
      std::memcpy(statistics.energies.data(), trailer + sizeof(Energy), front[0] * sizeof(Energy));
  }
  shared_.set_copied(topology_.local, at.g);
  chunk_done(at, std::move(statistics));
  advance(&copying_);
  return true;
}

}  // namespace gf
