#include "mpi_transport.hpp"

#include <algorithm>

namespace gf {

namespace {
bool completed(MPI_Request *request, MPI_Status *status = MPI_STATUS_IGNORE) {
  int there = 0;
  check_mpi(MPI_Test(request, &there, status), "MPI_Test");
  return there != 0;
}
}  // namespace

void check_mpi(int code, const char *call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw TransportError{std::string(call) + ": " + std::string(text, static_cast<size_t>(length))};
}

Transport::Ticket MpiTransport::send(int peer, int channel, const uint8_t *data, size_t bytes, double) {
  MPI_Request request;
  check_mpi(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, channel, comm_, &request), "MPI_Isend");
  if (unused_.empty()) {
    sends_.push_back(request);
    return static_cast<Ticket>(sends_.size() - 1);
  }
  const Ticket ticket = unused_.back();
  unused_.pop_back();
  sends_[ticket] = request;
  return ticket;
}

bool MpiTransport::done(Ticket ticket) {
  if (!completed(&sends_[ticket])) return false;
  unused_.push_back(ticket);
  return true;
}

std::deque<MPI_Request> &MpiTransport::posted(int peer, int channel) {
  const auto index = static_cast<size_t>(peer) * kChannels + static_cast<size_t>(channel);
  if (index >= posted_.size()) posted_.resize(index + 1);
  return posted_[index];
}

void MpiTransport::post(int peer, int channel, uint8_t *buffer, size_t capacity) {
  MPI_Request request;
  check_mpi(MPI_Irecv(buffer, static_cast<int>(capacity), MPI_BYTE, peer, channel, comm_, &request),
            "MPI_Irecv");
  posted(peer, channel).push_back(request);
}

bool MpiTransport::take(int peer, int channel, size_t *bytes, double) {
  auto &queue = posted(peer, channel);
  MPI_Status status;
  if (queue.empty() || !completed(&queue.front(), &status)) return false;
  queue.pop_front();
  int count = 0;
  check_mpi(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
  *bytes = static_cast<size_t>(count);
  return true;
}

bool MpiTransport::progress() {
  for (;;) {
    int there = 0;
    MPI_Message handle;
    MPI_Status status;
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, kControl, comm_, &there, &handle, &status), "MPI_Improbe");
    if (!there) return false;
    int bytes = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    auto receive = std::make_unique<Receive>();
    receive->peer = status.MPI_SOURCE;
    receive->bytes.resize(static_cast<size_t>(bytes));
    check_mpi(MPI_Imrecv(receive->bytes.data(), bytes, MPI_BYTE, &handle, &receive->request), "MPI_Imrecv");
    receives_.push_back(std::move(receive));
  }
}

// In order between two ranks; a message that is not yet whole holds up its own sender's only.
bool MpiTransport::take_control(int *peer, std::vector<uint8_t> *message) {
  std::vector<int> held;
  for (size_t i = 0; i < receives_.size(); ++i) {
    Receive &receive = *receives_[i];
    if (std::find(held.begin(), held.end(), receive.peer) != held.end()) continue;
    if (!completed(&receive.request)) {
      held.push_back(receive.peer);
      continue;
    }
    *peer = receive.peer;
    *message = std::move(receive.bytes);
    receives_.erase(receives_.begin() + static_cast<std::ptrdiff_t>(i));
    return true;
  }
  return false;
}

// After a failure the peers may be gone: requests are cancelled, not waited for. Control messages that are
// on their way keep their memory, which MPI may still write to.
void MpiTransport::close() {
  for (auto &queue : posted_) {
    for (MPI_Request &request : queue) {
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
  }
  posted_.clear();
  for (auto &receive : receives_) receive.release();
  receives_.clear();
}

}  // namespace gf
