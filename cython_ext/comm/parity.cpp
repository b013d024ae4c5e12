#include "parity.hpp"

#include <algorithm>
#include <cmath>

#include "cauchy.hpp"

namespace gf {

using gradflow::LdpcCode;
using gradflow::LdpcDecoder;

void Kept::keep(uint32_t number, const uint8_t *frames, size_t bytes, size_t longest) {
  if (ring_.empty()) ring_.resize(kKept);
  Entry &e = ring_[number % kKept];
  if (!e.frames.empty() && e.number - number - 1 < 0x7fffffffu) return;  // there is a later one
  e.number = number;
  e.bytes = bytes;
  e.frames.assign(frames, frames + bytes);
  e.frames.resize(longest, 0);
}

const uint8_t *Kept::find(uint32_t number, size_t *bytes) const {
  if (ring_.empty()) return nullptr;
  const Entry &e = ring_[number % kKept];
  if (e.number != number || e.frames.empty()) return nullptr;
  if (bytes) *bytes = e.bytes;
  return e.frames.data();
}

uint32_t parity_for(uint32_t k, uint32_t open, double loss) {
  const double mean = open * loss;
  const double ideal = (mean + 3 * std::sqrt(mean * (1 - loss)) + 1) / (1 - loss);  // some is lost, too
  if (const auto m = static_cast<uint32_t>(std::ceil(ideal)); parity_code(k, m) == 0) return m;
  return std::min(static_cast<uint32_t>(std::ceil(ideal + (3 + 0.01 * k) / (1 - loss))), kMostParity);
}

uint8_t parity_code(uint32_t k, uint32_t m) {
  return m <= kMostShort && k + m <= kCauchySymbols ? 0 : m < 4 ? 1 : m < 9 ? 3 : m < 12 ? 5 : 7;
}

bool ParityOut::make(uint32_t first, uint32_t k, uint32_t m, const Kept &kept) {
  drop();
  size_t symbol = 0;
  std::vector<const uint8_t *> sources(k);
  for (uint32_t i = 0; i < k; ++i) {
    size_t bytes = 0;
    sources[i] = kept.find(first + i, &bytes);
    if (!sources[i]) return false;
    symbol = std::max(symbol, bytes);
  }
  symbols_.resize(m * symbol);
  std::vector<uint8_t *> parity(m);
  for (uint32_t i = 0; i < m; ++i) parity[i] = symbols_.data() + i * symbol;
  const uint8_t n1 = parity_code(k, m);
  if (n1 == 0) {
    cauchy_encode(k, m, sources.data(), parity.data(), symbol);
  } else {
    const auto code = LdpcCode::make(k, m, n1, 0);
    if (!code || !code->encode(sources.data(), parity.data(), symbol)) return false;
  }
  symbol_ = symbol;
  body_.n1 = n1;
  body_.first = first;
  body_.k = static_cast<uint16_t>(k);
  body_.m = static_cast<uint16_t>(m);
  next_ = 0;
  return true;
}

size_t ParityOut::next(uint8_t *out) {
  body_.symbol = static_cast<uint16_t>(next_);
  std::memcpy(out, &body_, sizeof body_);
  std::memcpy(out + sizeof body_, symbols_.data() + next_ * symbol_, symbol_);
  ++next_;
  return sizeof body_ + symbol_;
}

bool ParityIn::possible(const ParityBody &body, std::string *why) {
  if (body.k > 0 && body.k <= kKept && body.m <= kMostParity && body.symbol < body.m &&
      body.n1 == parity_code(body.k, body.m)) {
    return true;
  }
  *why = "parity that cannot be: symbol " + std::to_string(body.symbol) + " of " + std::to_string(body.m) +
         " for " + std::to_string(body.k) + " packets";
  return false;
}

void ParityIn::add(const ParityBody &body, const uint8_t *symbol, size_t bytes) {
  Block *block = nullptr;
  for (Block &b : blocks_) {
    if (b.body.first == body.first && b.body.k == body.k && b.body.m == body.m && b.symbol == bytes)
      block = &b;
  }
  if (!block) {
    if (blocks_.size() >= kMostBlocks) blocks_.pop_front();
    blocks_.emplace_back();
    block = &blocks_.back();
    block->body = body;
    block->symbol = bytes;
  }
  if (std::find(block->which.begin(), block->which.end(), body.symbol) != block->which.end()) return;
  block->which.push_back(body.symbol);
  block->symbols.insert(block->symbols.end(), symbol, symbol + bytes);
}

bool ParityIn::decode(const Block &block, const std::vector<const uint8_t *> &sources,
                      std::vector<uint8_t> *out) {
  const size_t symbol = block.symbol;
  const uint32_t k = block.body.k, m = block.body.m;
  if (block.body.n1 == 0) {
    std::vector<const uint8_t *> parity(block.which.size());
    for (size_t i = 0; i < parity.size(); ++i) parity[i] = block.symbols.data() + i * symbol;
    const auto lost = static_cast<size_t>(std::count(sources.begin(), sources.end(), nullptr));
    out->resize(lost * symbol);
    std::vector<uint8_t *> targets(lost);
    for (size_t i = 0; i < lost; ++i) targets[i] = out->data() + i * symbol;
    return cauchy_decode(k, m, sources, block.which, parity.data(), symbol, targets.data());
  }
  auto code = LdpcCode::make(k, m, block.body.n1, 0);
  if (!code) return false;
  LdpcDecoder decoder(code, symbol);
  if (!decoder.ok()) return false;
  size_t missing = 0;
  for (uint32_t i = 0; i < k; ++i) {
    if (sources[i]) {
      decoder.add(i, sources[i]);
    } else {
      ++missing;
    }
  }
  for (size_t i = 0; i < block.which.size(); ++i)
    decoder.add(k + block.which[i], block.symbols.data() + i * symbol);
  if (!decoder.decodable()) return false;
  out->resize(missing * symbol);
  std::vector<uint8_t *> targets(missing);
  for (size_t i = 0; i < missing; ++i) targets[i] = out->data() + i * symbol;
  return decoder.solve(targets.data());
}

}  // namespace gf
