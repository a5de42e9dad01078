// What the tests that speak the ZeroMQ backend's bytes by hand share.
#pragma once

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "transport/transport.h"
#include "transport/zmq/zmq_wire.h"

namespace everstep::transport::zeromq {

class Recorder : public ConnectionHandler {
 public:
  void OnFrame(Connection& connection, Received received) override {
    ++frames;
    if (received.header.text() == "echo") {
      EXPECT_TRUE(connection.Send({Buffer::Copy("back"), {}}).ok());
    }
    if (hold_credits) credits.push_back(std::move(received.credit));
  }
  void OnClosed(Connection& connection, const Status& status) override {
    EXPECT_TRUE(closed_ids.insert(connection.id()).second);
    why.push_back(status);
  }
  bool hold_credits = false;
  int frames = 0;
  std::vector<Credit> credits;
  std::vector<Status> why;  // one per closed connection
  std::set<uint64_t> closed_ids;
};

using Parts = std::vector<std::string>;

inline std::string Head(Kind kind, uint64_t value, std::string_view header = "") {
  const auto bytes = EncodePrelude({kind, value});
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()).append(header);
}

}  // namespace everstep::transport::zeromq
