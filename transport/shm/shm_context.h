// The shared-memory backend's Context: owns the links until their sockets are closed, flushes those that have something
// to say once a round of the loop, and gives strangers up in time.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "transport/shm/factory.h"
#include "transport/shm/shm_link.h"

namespace everstep::transport::shm {

class ShmListener;

class ShmContext final : public SharedContext, public LinkHost {
 public:
  ShmContext(Loop& loop, const Options& options);
  // REQUIRES: not inside a callback of this context.
  ~ShmContext() override;

  Result<std::unique_ptr<Listener>> Listen(const std::string& address, OnAccept on_accept) override;
  Result<std::shared_ptr<Connection>> Connect(const std::string& address, ConnectionHandler* handler,
                                              Duration deadline) override;
  std::shared_ptr<Connection> ConnectIfListening(const std::string& name, const std::string& shown,
                                                 ConnectionHandler* handler, Duration deadline) override;
  Counters counters() const override { return counters_; }

 private:
  friend class ShmListener;
  struct Entry {
    std::shared_ptr<Link> link;
    ShmListener* listener = nullptr;  // null: dialed from here, or the listener is gone
  };

  // LinkHost.
  Loop& loop() override { return loop_; }
  Counters& counters() override { return counters_; }
  BufferPool& pool() override { return pool_; }
  void Wake(Link& link) override;
  ConnectionHandler* Accept(const std::shared_ptr<Link>& link) override;
  void Ended(Link& link) override;

  bool FlushListed();
  std::shared_ptr<Link> Dial(const std::string& shown, ConnectionHandler* handler, Time until);
  void TryConnect(const std::shared_ptr<Link>& link, const std::string& name, Time deadline);
  void TakeStranger(ShmListener& listener, int fd);
  void GiveUpAt(const std::shared_ptr<Link>& link, Time deadline, const std::string& why);
  void Later(Time when, std::function<void()> task);
  void SweepLater();

  Loop& loop_;
  const Options options_;
  Counters counters_;
  BufferPool pool_;
  std::map<const Link*, Entry> links_;
  std::vector<std::shared_ptr<Link>> listed_;
  std::vector<ShmListener*> listeners_;
  Loop::IdleId idle_ = 0;
  bool sweeping_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // false once destroyed; for timers
};

}  // namespace everstep::transport::shm
