// Authenticated encryption: AES-256-GCM (NIST SP 800-38D) of OpenSSL's libcrypto, found at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gf {

// One key, for one direction between two ranks. Not for two threads at once.
class Aead {
 public:
  static constexpr size_t kKey = 32, kNonce = 12, kTag = 16;

  // Finds the library, trying this file first; what went wrong, or nothing.
  static std::string load(const std::string &path);

  Aead() = default;
  ~Aead();
  Aead(const Aead &) = delete;
  Aead &operator=(const Aead &) = delete;

  // False where the library refuses the key.
  bool open_key(const uint8_t *key, bool sealing);
  // Writes `bytes` of ciphertext and the tag; nothing may use a nonce twice.
  bool seal(const uint8_t *nonce, const uint8_t *head, size_t head_bytes, const uint8_t *plain, size_t bytes,
            uint8_t *out);
  // The reverse, of `bytes` without the tag; false where anything was changed, and then `out` means nothing.
  bool open(const uint8_t *nonce, const uint8_t *head, size_t head_bytes, const uint8_t *sealed, size_t bytes,
            uint8_t *out);

 private:
  void *context_ = nullptr;
};

// The keys of one direction, each for so many datagrams of a path as may be sealed under one
// (docs/security.md).
class KeyRing {
 public:
  static constexpr int kShift = 28;  // of a datagram's counter: the number of its key

  bool open(const uint8_t *keys, size_t count, bool sealing);
  // Whether there is a key for a counter at all.
  bool covers(uint64_t counter) const { return counter >> kShift < keys_.size() / Aead::kKey; }
  // The key for a counter, or null. Two are at hand at a time, since datagrams overtake each other.
  Aead *at(uint64_t counter);

 private:
  std::vector<uint8_t> keys_;
  bool sealing_ = false;
  struct Opened {
    uint64_t number = ~uint64_t{0};
    std::unique_ptr<Aead> aead;
  } opened_[2];
};

}  // namespace gf
