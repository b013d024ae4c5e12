// Authenticated encryption: AES-256-GCM (NIST SP 800-38D) of OpenSSL's libcrypto, found at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

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

}  // namespace gf
