#include "tests/support/relay.h"

#include <cstring>

namespace everstep::test {

// One connection from a client and the one that goes on to the server.
class Relay::Pair {
 public:
  Pair(Relay& relay, uint64_t id) : relay_(relay), id_(id), ends_{End(*this, true), End(*this, false)} {}

  Status Open(std::shared_ptr<transport::Connection> client) {
    ends_[0].connection = std::move(client);
    EVERSTEP_ASSIGN(ends_[1].connection, relay_.context_->Connect(relay_.server_, &ends_[1], std::chrono::seconds(5)));
    return Status::Ok();
  }
  transport::ConnectionHandler* client() { return &ends_[0]; }
  void Close() {
    for (End& end : ends_) {
      if (end.connection) end.connection->Close();
      end.connection.reset();
    }
  }

 private:
  struct End : transport::ConnectionHandler {
    End(Pair& owner, bool faces_client) : pair(owner), from_client(faces_client) {}
    void OnFrame(transport::Connection&, transport::Received received) override {
      auto passed = pair.relay_.filter_(from_client, {std::move(received.header), std::move(received.payload)});
      End& other = pair.ends_[from_client ? 1 : 0];
      if (passed && other.connection) (void)other.connection->Send(std::move(*passed));
    }
    void OnClosed(transport::Connection&, const Status&) override {
      connection.reset();
      pair.Close();
      pair.relay_.End(pair.id_);
    }
    Pair& pair;
    const bool from_client;
    std::shared_ptr<transport::Connection> connection;
  };

  Relay& relay_;
  const uint64_t id_;
  End ends_[2];
};

Relay::Relay(std::string server, Filter filter) : server_(std::move(server)), filter_(std::move(filter)) {}

Result<std::unique_ptr<Relay>> Relay::Start(const std::string& listen, const std::string& server, Filter filter) {
  std::unique_ptr<Relay> relay(new Relay(server, std::move(filter)));
  Status outcome;
  relay->io_.Call([&] {
    relay->context_ = transport::MakeContext(relay->io_.loop(), {.shared_memory = false});
    auto listener = relay->context_->Listen(listen, [raw = relay.get()](std::shared_ptr<transport::Connection> client) {
      const uint64_t id = raw->next_pair_++;
      Pair& pair = *(raw->pairs_[id] = std::make_unique<Pair>(*raw, id));
      if (!pair.Open(std::move(client)).ok()) raw->io_.loop().Post([raw, id] { raw->End(id); });
      return pair.client();
    });
    if (listener.ok()) {
      relay->listener_ = std::move(listener).value();
      relay->address_ = relay->listener_->address();
    } else {
      outcome = listener.status();
    }
  });
  if (!outcome.ok()) return outcome;
  return relay;
}

// Not inside the pair's own callback.
void Relay::End(uint64_t pair) {
  io_.loop().Post([this, pair] {
    if (const auto it = pairs_.find(pair); it != pairs_.end()) {
      it->second->Close();
      pairs_.erase(it);
    }
  });
}

Relay::~Relay() {
  io_.Call([&] {
    for (auto& [id, pair] : pairs_) pair->Close();
    pairs_.clear();
    listener_.reset();
    context_.reset();
  });
}

Buffer WithProtocolVersion(const Buffer& message, uint16_t version) {
  // FlatBuffers: the root table's place, then (backwards) its vtable, whose third entry is the first field's place.
  MutableBuffer out(message.size());
  std::memcpy(out.data(), message.data(), message.size());
  uint32_t root = 0;
  int32_t back = 0;
  uint16_t field = 0;
  std::memcpy(&root, out.data(), sizeof root);
  std::memcpy(&back, out.data() + root, sizeof back);
  std::memcpy(&field, out.data() + (static_cast<int64_t>(root) - back) + 4, sizeof field);
  EVERSTEP_CHECK(field != 0, "the message names no version");
  std::memcpy(out.data() + root + field, &version, sizeof version);
  return std::move(out).Freeze();
}

}  // namespace everstep::test
