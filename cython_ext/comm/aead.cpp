#include "aead.hpp"

#include <dlfcn.h>

#include <mutex>

namespace gf {

namespace {

// The part of libcrypto's interface that is used; the same since OpenSSL 1.0.1.
struct Library {
  void *(*context_new)() = nullptr;
  void (*context_free)(void *) = nullptr;
  const void *(*aes_256_gcm)() = nullptr;
  int (*control)(void *, int, int, void *) = nullptr;
  int (*encrypt_init)(void *, const void *, void *, const uint8_t *, const uint8_t *) = nullptr;
  int (*encrypt_update)(void *, uint8_t *, int *, const uint8_t *, int) = nullptr;
  int (*encrypt_final)(void *, uint8_t *, int *) = nullptr;
  int (*decrypt_init)(void *, const void *, void *, const uint8_t *, const uint8_t *) = nullptr;
  int (*decrypt_update)(void *, uint8_t *, int *, const uint8_t *, int) = nullptr;
  int (*decrypt_final)(void *, uint8_t *, int *) = nullptr;
};
Library library;
bool loaded = false;
std::mutex loading;

constexpr int kSetNonceBytes = 0x9, kGetTag = 0x10, kSetTag = 0x11;  // EVP_CTRL_AEAD_*

template <class F>
bool find(void *handle, const char *name, F *function) {
  *function = reinterpret_cast<F>(dlsym(handle, name));
  return *function != nullptr;
}

}  // namespace

std::string Aead::load(const std::string &path) {
  std::lock_guard<std::mutex> hold(loading);
  if (loaded) return {};
  std::string why;
  for (const std::string &name :
       {path, std::string("libcrypto.so.3"), std::string("libcrypto.so.1.1"), std::string("libcrypto.so")}) {
    if (name.empty()) continue;
    void *handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      why += (why.empty() ? "" : "; ") + std::string(dlerror());
      continue;
    }
    Library l;
    if (find(handle, "EVP_CIPHER_CTX_new", &l.context_new) &&
        find(handle, "EVP_CIPHER_CTX_free", &l.context_free) &&
        find(handle, "EVP_aes_256_gcm", &l.aes_256_gcm) && find(handle, "EVP_CIPHER_CTX_ctrl", &l.control) &&
        find(handle, "EVP_EncryptInit_ex", &l.encrypt_init) &&
        find(handle, "EVP_EncryptUpdate", &l.encrypt_update) &&
        find(handle, "EVP_EncryptFinal_ex", &l.encrypt_final) &&
        find(handle, "EVP_DecryptInit_ex", &l.decrypt_init) &&
        find(handle, "EVP_DecryptUpdate", &l.decrypt_update) &&
        find(handle, "EVP_DecryptFinal_ex", &l.decrypt_final)) {
      library = l;
      loaded = true;
      return {};
    }
    why += (why.empty() ? "" : "; ") + name + " lacks AES-256-GCM";
  }
  return why;
}

Aead::~Aead() {
  if (context_) library.context_free(context_);
}

bool Aead::open_key(const uint8_t *key, bool sealing) {
  if (!loaded) return false;
  context_ = library.context_new();
  if (!context_) return false;
  const auto init = sealing ? library.encrypt_init : library.decrypt_init;
  return init(context_, library.aes_256_gcm(), nullptr, nullptr, nullptr) == 1 &&
         library.control(context_, kSetNonceBytes, static_cast<int>(kNonce), nullptr) == 1 &&
         init(context_, nullptr, nullptr, key, nullptr) == 1;
}

bool KeyRing::open(const uint8_t *keys, size_t count, bool sealing) {
  keys_.assign(keys, keys + count * Aead::kKey);
  sealing_ = sealing;
  return at(0) != nullptr;
}

Aead *KeyRing::at(uint64_t counter) {
  const uint64_t number = counter >> kShift;
  if (!covers(counter)) return nullptr;
  Opened &entry = opened_[number % 2];
  if (entry.number != number) {
    auto made = std::make_unique<Aead>();
    if (!made->open_key(keys_.data() + number * Aead::kKey, sealing_)) return nullptr;
    entry.aead = std::move(made);
    entry.number = number;
  }
  return entry.aead.get();
}

bool Aead::seal(const uint8_t *nonce, const uint8_t *head, size_t head_bytes, const uint8_t *plain,
                size_t bytes, uint8_t *out) {
  int n = 0;
  return library.encrypt_init(context_, nullptr, nullptr, nullptr, nonce) == 1 &&
         library.encrypt_update(context_, nullptr, &n, head, static_cast<int>(head_bytes)) == 1 &&
         library.encrypt_update(context_, out, &n, plain, static_cast<int>(bytes)) == 1 &&
         library.encrypt_final(context_, out + bytes, &n) == 1 &&
         library.control(context_, kGetTag, static_cast<int>(kTag), out + bytes) == 1;
}

bool Aead::open(const uint8_t *nonce, const uint8_t *head, size_t head_bytes, const uint8_t *sealed,
                size_t bytes, uint8_t *out) {
  int n = 0;
  return library.decrypt_init(context_, nullptr, nullptr, nullptr, nonce) == 1 &&
         library.decrypt_update(context_, nullptr, &n, head, static_cast<int>(head_bytes)) == 1 &&
         library.decrypt_update(context_, out, &n, sealed, static_cast<int>(bytes)) == 1 &&
         library.control(context_, kSetTag, static_cast<int>(kTag), const_cast<uint8_t *>(sealed + bytes)) ==
             1 &&
         library.decrypt_final(context_, out + bytes, &n) == 1;
}

}  // namespace gf
