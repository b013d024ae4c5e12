// Blocks and their threads, as fibers on the calling thread.
#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include <vector>

#include "emulator.h"

#if defined(GF_EMULATOR_TSAN)
// Each fiber is a thread to ThreadSanitizer, and a switch orders nothing: only barriers do.
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_acquire(void *address);
void __tsan_release(void *address);
}
#define TSAN(call) call
constexpr bool kFreshStacks = true;  // or it takes one block's use of a stack and the next one's for a race
#else
constexpr bool kFreshStacks = false;
#define TSAN(call) (void)0
#endif

namespace gf_emulator {
namespace {

constexpr unsigned kLanes = 32;
constexpr size_t kStack = 64 * 1024;

[[noreturn]] void fault(const char *what) {
  fprintf(stderr, "emulated GPU: %s\n", what);
  abort();
}

// ---- Switching from one stack to another

#if defined(__x86_64__)
typedef void *Context;
extern "C" void gf_emulator_switch(void **from, void *to);
asm(R"(
.text
.hidden gf_emulator_switch
.type gf_emulator_switch, @function
gf_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size gf_emulator_switch, . - gf_emulator_switch
)");

void prepare(Context *context, char *stack, void (*entry)()) {
  void **top = reinterpret_cast<void **>(stack + kStack) - 1;  // as a call would leave it: 8 beyond 16
  *top = nullptr;
  *--top = reinterpret_cast<void *>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  *context = top;
}

void go(Context *from, Context *to) { gf_emulator_switch(from, *to); }
#else
typedef ucontext_t Context;

void prepare(Context *context, char *stack, void (*entry)()) {
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = kStack;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
}

void go(Context *from, Context *to) { swapcontext(from, to); }
#endif

// ---- One block

// Lanes of a warp that have come to a rendezvous; it is over when all have.
struct Meeting {
  unsigned arrived = 0;
  uint64_t ended = 0;  // how many rendezvous there were
};

struct Warp {
  Meeting meeting;
  const char *kind = nullptr;      // of rendezvous: all lanes must have come to the same
  uint64_t slots[2][kLanes] = {};  // of two rendezvous: who reads the one may meet who writes the next
};

struct Fiber {
  Context context;
  char *stack = nullptr;
  Place place = {};
  Warp *warp = nullptr;
  Meeting *waits = nullptr;  // for this to go on from `since`
  uint64_t since = 0;
  bool ended = false;
  void *tsan = nullptr;
};

// What a thread of the host needs to run blocks.
struct Runner {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Meeting block;
  Fiber *current = nullptr;
  Context home;
  void *tsan_home = nullptr;
  const std::function<void()> *kernel = nullptr;

  ~Runner() { drop(); }
  void drop() {
    for (Fiber &f : fibers) munmap(f.stack, kStack);
    fibers.clear();
  }
  void reserve(unsigned threads) {
    for (size_t i = fibers.size(); i < threads; ++i) {
      fibers.emplace_back();
      void *stack = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (stack == MAP_FAILED) fault("no memory for the stacks of a block");
      fibers.back().stack = static_cast<char *>(stack);
    }
  }
};

thread_local Runner runner;

void leave() {
  TSAN(__tsan_switch_to_fiber(runner.tsan_home, 1));
  go(&runner.current->context, &runner.home);
}

void fiber_main() {
  (*runner.kernel)();
  TSAN(__tsan_release(&runner));
  runner.current->ended = true;
  leave();
  fault("a thread that had ended went on");
}

// Returns when `expected` fibers are here.
void meet(Meeting *m, unsigned expected) {
  Fiber &self = *runner.current;
  if (++m->arrived == expected) {
    m->arrived = 0;
    ++m->ended;
    return;
  }
  self.waits = m;
  self.since = m->ended;
  leave();
}

uint64_t *meet_warp(const char *kind, uint64_t mine) {
  Fiber &self = *runner.current;
  Warp &w = *self.warp;
  if (w.meeting.arrived == 0) w.kind = kind;
  if (w.kind != kind) fault("lanes of a warp wait at different places");
  uint64_t *slots = w.slots[w.meeting.ended & 1];
  slots[self.place.thread.x % kLanes] = mine;
  meet(&w.meeting, kLanes);
  return slots;
}

void run_block(unsigned block, unsigned blocks, unsigned threads) {
  runner.reserve(threads);
  runner.block = Meeting();
  runner.warps.assign(threads / kLanes, Warp());
  for (unsigned i = 0; i < threads; ++i) {
    Fiber &f = runner.fibers[i];
    f.place = {{i}, {block}, {threads}, {blocks}};
    f.warp = &runner.warps[i / kLanes];
    f.waits = nullptr;
    f.ended = false;
    TSAN(f.tsan = __tsan_create_fiber(0));
    prepare(&f.context, f.stack, fiber_main);
  }
  for (unsigned left = threads; left;) {
    bool moved = false;
    for (unsigned i = 0; i < threads; ++i) {
      Fiber &f = runner.fibers[i];
      if (f.ended || (f.waits && f.waits->ended == f.since)) continue;
      f.waits = nullptr;
      moved = true;
      runner.current = &f;
      TSAN(__tsan_switch_to_fiber(f.tsan, 1));
      go(&runner.home, &f.context);
      if (f.ended) --left;
    }
    if (!moved) fault("threads of a block wait for some that have ended, or wait elsewhere");
  }
  for (unsigned i = 0; i < threads; ++i) TSAN(__tsan_destroy_fiber(runner.fibers[i].tsan));
  if (kFreshStacks) runner.drop();
}

}  // namespace

const Place &here() { return runner.current->place; }

void block_barrier() {
  TSAN(__tsan_release(&runner.block));
  meet(&runner.block, runner.current->place.threads.x);
  TSAN(__tsan_acquire(&runner.block));
}

void fence() {
  static char order;
  (void)order;
  TSAN(__tsan_release(&order));
  TSAN(__tsan_acquire(&order));
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

uint32_t ballot(bool yes) {
  const uint64_t *slots = meet_warp("ballot", yes);
  uint32_t all = 0;
  for (unsigned i = 0; i < kLanes; ++i) all |= (uint32_t)slots[i] << i;
  return all;
}

uint64_t exchange_bits(uint64_t mine, unsigned from) {
  const uint64_t *slots = meet_warp("shuffle", mine);
  return slots[from % kLanes];
}

void run_kernel(unsigned blocks, unsigned threads, const std::function<void()> &kernel) {
  if (threads == 0 || threads % kLanes || threads > 1024)
    fault("a block must have 32 to 1024 threads, whole warps");
  fesetenv(FE_DFL_ENV);  // a GPU does not care how its caller treats denormals
  runner.kernel = &kernel;
  TSAN(runner.tsan_home = __tsan_get_current_fiber());
  for (unsigned block = 0; block < blocks; ++block) run_block(block, blocks, threads);
  TSAN(__tsan_acquire(&runner));
}

}  // namespace gf_emulator
