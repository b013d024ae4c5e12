// The one background thread of a process: it serves every domain, and sleeps when nothing is under way.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "domain.hpp"

namespace gf {

class Engine {
 public:
  explicit Engine(const gf_api *api);
  ~Engine();

  void add_codec(uint16_t id, const gf_codec_ops &ops);
  // The next warning, or an empty text after so many seconds or when the engine has stopped.
  std::string next_warning(double seconds);

  int open(MPI_Comm comm, Transport *between, const Topology &topology, const Options &options, void *shared,
           const std::string &name);
  void submit(int domain, const UnitPtr &unit);
  void forget(int domain, std::vector<uint64_t> names);
  void close(int domain);
  void fail(int domain, const std::string &text);  // tells the others
  DomainState state(int domain);
  std::string error(int domain, Failure *kind);
  const Traffic &traffic(int domain);

  // True once the unit's state is final; waits so long at most.
  bool wait(const UnitPtr &unit, double seconds);
  // True once the domain is closed or has failed and has told the others.
  bool wait_closed(int domain, double seconds);
  void stop();
  bool stopped();

 private:
  struct Entry {
    std::unique_ptr<Domain> domain;
    // What other threads may see, kept by the engine's thread under the lock.
    DomainState state = DomainState::kOpen;
    Failure failure = Failure::kNone;
    std::string error;
    bool settled = false;
  };
  struct Command {
    enum Kind { kOpen, kSubmit, kForget, kClose, kFail } kind;
    int domain;
    UnitPtr unit;
    std::string text;
    std::vector<uint64_t> names;
  };
  bool push(Command command);
  void refuse(const UnitPtr &unit);
  static int on_finalize(MPI_Comm comm, int keyval, void *engine, void *unused);
  void run();
  void obey(Command *command);
  void rest(bool active, double last_moved, double time);

  Host host_;
  std::mutex lock_, stopping_;
  std::condition_variable work_, done_, warned_;
  std::deque<Command> commands_;
  std::vector<std::unique_ptr<Entry>> entries_;  // only ever appended to
  std::vector<Entry *> served_;                  // the same, for the engine's thread
  std::map<uint16_t, gf_codec_ops> codecs_;
  std::deque<std::string> warnings_;  // for Python to fetch: this thread must not wait for the interpreter
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace gf
