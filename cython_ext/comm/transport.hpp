// Messages between the ranks of one communicator: what the engine needs of whatever carries them.
//
// One thread calls everything, and no call blocks. Between two ranks the messages of a channel arrive in the
// order in which they were sent, whole, once. Channel kControl takes messages of any size up to
// kLongestControl, which arrive by `take_control`; on the others a message arrives in the oldest buffer that
// was posted for it, so that whoever receives bounds what can be under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gf {

// A transport can go no further.
struct TransportError {
  std::string text;
};

class Transport {
 public:
  using Ticket = uint32_t;
  enum Channel : int { kControl = 1, kScatter = 2, kGather = 3 };
  static constexpr int kChannels = 4;
  static constexpr size_t kLongestControl = size_t{1} << 24;

  virtual ~Transport() = default;

  // Begins to send; the bytes stay as they are until `done` has said so, once. A weight above 0 says that the
  // receiver may give it up, and what would be lost with it, in any unit; 0, that it must arrive.
  virtual Ticket send(int peer, int channel, const uint8_t *data, size_t bytes, double weight = 0) = 0;
  virtual bool done(Ticket ticket) = 0;

  // Room for one more message of at most `capacity` bytes.
  virtual void post(int peer, int channel, uint8_t *buffer, size_t capacity) = 0;
  // Whether the oldest posted buffer is filled, with how many bytes; then it is posted no longer. With a
  // `patience` in seconds it may also be given up, and `bytes` is kMissing: where it is not whole although a
  // message behind it has been there for so long. Not every transport ever gives up.
  virtual bool take(int peer, int channel, size_t *bytes, double patience = 0) = 0;
  static constexpr size_t kMissing = ~size_t{0};
  virtual bool take_control(int *peer, std::vector<uint8_t> *message) = 0;

  // Sends and receives what can be; true if anything moved.
  virtual bool progress() = 0;
  // Whether it must be called again soon, though nobody waits for it.
  virtual bool busy() const { return false; }
  // Bytes of a message that travel in one piece, so that a shorter one is lost whole or not at all; 0: no
  // matter.
  virtual size_t piece() const { return 0; }
  // Lets go of posted buffers; nothing else may be called afterwards, but `abandon`.
  virtual void close() = 0;
};

}  // namespace gf
