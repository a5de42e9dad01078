// What a core wants sent, kept until the test takes it by receiver and kind: for tests that drive one core by hand.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "schema/codec.h"
#include "schema/peer.h"

namespace everstep::test {

class Mailbox {
 public:
  template <typename Core>
  void Collect(Core& core) {
    for (Outgoing& out : core.TakeOutbox()) Add(std::move(out));
  }
  void Add(Outgoing out) {
    out.envelope = Decode(Encode(out.envelope)).value();  // nothing is sent that a receiver would refuse
    mail_.push_back(std::move(out));
  }

  // Takes out all messages of one kind to one peer, oldest first.
  template <typename T>
  std::vector<T> Take(PeerId to) {
    std::vector<T> taken;
    std::erase_if(mail_, [&](Outgoing& out) {
      T* message = out.to == to ? std::get_if<T>(&out.envelope.body) : nullptr;
      if (message == nullptr) return false;
      taken.push_back(std::move(*message));
      return true;
    });
    return taken;
  }
  // The only message of that kind to that peer, or nothing when there is none or more than one.
  template <typename T>
  std::optional<T> TakeOne(PeerId to) {
    std::vector<T> taken = Take<T>(to);
    if (taken.size() != 1) return std::nullopt;
    return std::move(taken[0]);
  }
  const std::deque<Outgoing>& all() const { return mail_; }
  bool empty() const { return mail_.empty(); }
  void Clear() { mail_.clear(); }

 private:
  std::deque<Outgoing> mail_;
};

}  // namespace everstep::test
