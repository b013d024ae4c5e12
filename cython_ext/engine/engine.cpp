#include "engine.hpp"

#include <sched.h>
#include <time.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "mpi_use.hpp"

namespace gf {

namespace {
constexpr double kSpin = 100e-6;        // seconds of polling after the last step before the first nap
constexpr double kNap = 20e-6;          // while something is under way
constexpr double kLongNap = 500e-6;     // while it has not moved for some time
constexpr double kIdleNap = 1e-3;       // while nothing is under way here
constexpr double kLongIdleNap = 10e-3;  // nor was for some time; a submit ends it at once
constexpr double kLastWords = 5;  // seconds in which others may end what they do by MPI, before MPI ends
constexpr const char *kEnded = "the engine has ended, since MPI was finalized or the program exits";
constexpr double kStoodStill = 1.0;  // a gap between two rounds that only a stopped process has

void nap(double seconds) {
  timespec t{0, static_cast<long>(seconds * 1e9)};
  nanosleep(&t, nullptr);
}
}  // namespace

Engine::Engine(const gf_api *api) {
  host_.api = api;
  host_.find_codec = [this](uint16_t id) -> const gf_codec_ops * {
    {
      std::lock_guard<std::mutex> hold(lock_);
      auto found = codecs_.find(id);
      if (found != codecs_.end()) return &found->second;
    }
    return host_.api->find_codec(id);
  };
  host_.finish = [this](const UnitPtr &unit, UnitState state) {
    unit->ended = now();
    std::lock_guard<std::mutex> hold(lock_);
    unit->state.store(state);
    done_.notify_all();
  };
  host_.warn = [this](const std::string &text) {
    std::lock_guard<std::mutex> hold(lock_);
    warnings_.push_back(text);
    warned_.notify_one();
  };
  // MPI_Finalize begins with deleting the attributes of MPI_COMM_SELF: the thread ends before MPI does,
  // whoever finalizes it.
  int keyval;
  MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &Engine::on_finalize, &keyval, nullptr);
  MPI_Comm_set_attr(MPI_COMM_SELF, keyval, this);
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() { stop(); }

void Engine::add_codec(uint16_t id, const gf_codec_ops &ops) {
  std::lock_guard<std::mutex> hold(lock_);
  codecs_.emplace(id, ops);  // the first stays: a unit under way may use it
}

std::string Engine::next_warning(double seconds) {
  std::unique_lock<std::mutex> hold(lock_);
  warned_.wait_for(hold, std::chrono::duration<double>(seconds), [&] { return stop_ || !warnings_.empty(); });
  if (warnings_.empty()) return {};
  std::string text = std::move(warnings_.front());
  warnings_.pop_front();
  return text;
}

bool Engine::stopped() {
  std::lock_guard<std::mutex> hold(lock_);
  return stop_;
}

bool Engine::push(Command command) {
  {
    std::lock_guard<std::mutex> hold(lock_);
    if (stop_) return false;
    commands_.push_back(std::move(command));
  }
  work_.notify_one();
  return true;
}

int Engine::open(MPI_Comm comm, Transport *between, const Topology &topology, const Options &options,
                 void *shared, const std::string &name) {
  int id;
  {
    std::lock_guard<std::mutex> hold(lock_);
    id = static_cast<int>(entries_.size());
    entries_.push_back(std::make_unique<Entry>());
    entries_.back()->domain =
        std::make_unique<Domain>(comm, between, topology, options, shared, name, &host_);
    commands_.push_back(
        {Command::kOpen, id, nullptr, {}, {}});  // under the same lock: it is never served unopened
  }
  work_.notify_one();
  return id;
}

void Engine::submit(int domain, const UnitPtr &unit) {
  if (!push({Command::kSubmit, domain, unit, {}, {}})) refuse(unit);
}

void Engine::forget(int domain, std::vector<uint64_t> names) {
  push({Command::kForget, domain, nullptr, {}, std::move(names)});
}

void Engine::close(int domain) { push({Command::kClose, domain, nullptr, {}, {}}); }
void Engine::fail(int domain, const std::string &text) { push({Command::kFail, domain, nullptr, text, {}}); }

DomainState Engine::state(int domain) {
  std::lock_guard<std::mutex> hold(lock_);
  return entries_[domain]->state;
}

std::string Engine::error(int domain, Failure *kind) {
  std::lock_guard<std::mutex> hold(lock_);
  *kind = entries_[domain]->failure;
  return entries_[domain]->error;
}

const Traffic &Engine::traffic(int domain) {
  std::lock_guard<std::mutex> hold(lock_);
  return entries_[domain]->domain->traffic;
}

bool Engine::wait(const UnitPtr &unit, double seconds) {
  std::unique_lock<std::mutex> hold(lock_);
  return done_.wait_for(hold, std::chrono::duration<double>(seconds),
                        [&] { return unit->state.load() >= UnitState::kDone; });
}

bool Engine::wait_closed(int domain, double seconds) {
  std::unique_lock<std::mutex> hold(lock_);
  return done_.wait_for(hold, std::chrono::duration<double>(seconds),
                        [&] { return entries_[domain]->settled; });
}

void Engine::stop() {
  {
    std::lock_guard<std::mutex> hold(lock_);
    stop_ = true;
  }
  work_.notify_one();
  warned_.notify_all();
  std::lock_guard<std::mutex> once(stopping_);
  if (!thread_.joinable()) return;
  thread_.join();
  for (Command &command : commands_) {
    if (command.unit) refuse(command.unit);
  }
  for (auto &entry : entries_) {
    if (entry->settled) continue;
    Domain &domain = *entry->domain;
    domain.abandon(kEnded);
    std::lock_guard<std::mutex> hold(lock_);
    entry->state = domain.state;
    entry->failure = domain.failure;
    entry->error = domain.error;
    entry->settled = true;
  }
  done_.notify_all();
}

void Engine::refuse(const UnitPtr &unit) {
  unit->failure = Failure::kInternal;
  unit->error = "tensor '" + unit->name + "': " + kEnded;
  host_.finish(unit, UnitState::kFailed);
}

int Engine::on_finalize(MPI_Comm, int keyval, void *engine, void *) {
  static_cast<Engine *>(engine)->stop();
  MpiUse::of_process().finalize(kLastWords);
  return MPI_Comm_free_keyval(&keyval);
}

void Engine::obey(Command *command) {
  Domain &domain = *served_[command->domain]->domain;
  try {
    switch (command->kind) {
      case Command::kOpen:
        domain.start();
        break;
      case Command::kSubmit:
        domain.submit(command->unit);
        break;
      case Command::kForget:
        domain.forget(command->names);
        break;
      case Command::kClose:
        domain.request_close();
        break;
      case Command::kFail:
        domain.fail(Failure::kPeer, command->text, true);
        break;
    }
  } catch (const TransportError &e) {
    domain.fail(Failure::kInternal, e.text, false);
  }
}

void Engine::run() {
#ifdef __linux__
  prctl(PR_SET_TIMERSLACK, 1000UL);  // naps are short
  prctl(PR_SET_NAME, "gradflow", 0, 0, 0);
#endif
  double last_moved = now(), last_round = now();
  std::deque<Command> commands;
  for (;;) {
    {
      std::lock_guard<std::mutex> hold(lock_);
      if (stop_) break;
      commands.swap(commands_);
      while (served_.size() < entries_.size()) served_.push_back(entries_[served_.size()].get());
    }
    bool moved = !commands.empty();
    for (Command &command : commands) obey(&command);
    commands.clear();
    const double time = now();
    if (time - last_round > kStoodStill) {
      for (Entry *entry : served_) entry->domain->forgive(time - last_round);
    }
    last_round = time;
    bool active = false;
    for (Entry *entry : served_) {
      if (entry->settled) continue;
      Domain &domain = *entry->domain;
      moved |= domain.progress(time);
      const bool busy = domain.active();
      active |= busy;
      const bool ended =
          domain.state == DomainState::kClosed || (domain.state == DomainState::kFailed && !busy);
      if (ended) domain.release();
      std::lock_guard<std::mutex> hold(lock_);
      if (entry->state != domain.state || ended) {
        entry->state = domain.state;
        entry->failure = domain.failure;
        entry->error = domain.error;
        entry->settled = ended;
        done_.notify_all();
      }
    }
    if (moved) {
      last_moved = time;
    } else {
      rest(active, last_moved, time);
    }
  }
}

void Engine::rest(bool active, double last_moved, double time) {
  if (active) {
    const double still = time - last_moved;
    if (still < kSpin) {
      sched_yield();
    } else {
      nap(still < 100 * kSpin ? kNap : kLongNap);
    }
    return;
  }
  std::unique_lock<std::mutex> hold(lock_);
  const double idle = time - last_moved < 10 * kLongIdleNap ? kIdleNap : kLongIdleNap;
  work_.wait_for(hold, std::chrono::duration<double>(idle), [&] { return stop_ || !commands_.empty(); });
}

}  // namespace gf
