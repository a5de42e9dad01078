#include "transport/shm/shm_context.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/check.h"
#include "base/log.h"
#include "base/random.h"
#include "transport/shm/shm_orphans.h"

namespace everstep::transport::shm {
namespace {

constexpr std::string_view kScheme = "shm://";
constexpr std::string_view kPrefix = "everstep/shm/";
constexpr size_t kMaxNameBytes = sizeof(sockaddr_un::sun_path) - 1 - kPrefix.size();
// While a listener has no room for more strangers, or this process no descriptors.
constexpr Duration kTryAgain = std::chrono::milliseconds(10);
constexpr Duration kSweepEvery = std::chrono::milliseconds(100);
constexpr size_t kIdleBytes = size_t{256} << 20;  // of copies, kept for the next ones
constexpr int kBacklog = 1024;

struct UnixAddress {
  sockaddr_un address = {};
  socklen_t size = 0;
  explicit UnixAddress(const std::string& name) {
    address.sun_family = AF_UNIX;
    const std::string path = std::string(1, '\0') + std::string(kPrefix) + name;  // abstract
    std::memcpy(address.sun_path, path.data(), path.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

Result<std::string> NameIn(const std::string& address) {
  const std::string name = address.starts_with(kScheme) ? address.substr(kScheme.size()) : "";
  if (name.empty() || name.size() > kMaxNameBytes || name.find('\0') != std::string::npos) {
    return Status(Code::kInvalidArgument, "address \"" + address + "\" needs a name of 1 to " +
                                              std::to_string(kMaxNameBytes) + " bytes after shm://");
  }
  return name;
}

Result<int> OpenSocket() {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return Status(Code::kResourceExhausted, std::string("no socket: ") + std::strerror(errno));
  return fd;
}

}  // namespace

class ShmListener final : public Listener {
 public:
  ShmListener(ShmContext& context, int fd, std::string address, OnAccept on_accept)
      : context_(&context), fd_(fd), address_(std::move(address)), on_accept_(std::move(on_accept)) {
    context.listeners_.push_back(this);
    Watch();
  }
  ~ShmListener() override {
    if (context_ != nullptr) Leave();
  }
  const std::string& address() const override { return address_; }
  const OnAccept& on_accept() const { return on_accept_; }

  // Frees the address and closes the connections that were made to it.
  void Leave() {
    ShmContext& context = *std::exchange(context_, nullptr);
    std::erase(context.listeners_, this);
    context.loop_.Unwatch(fd_);
    close(fd_);
    std::vector<std::shared_ptr<Link>> own;
    for (auto& [link, entry] : context.links_) {
      if (entry.listener == this) own.push_back(entry.link);
      if (entry.listener == this) entry.listener = nullptr;
    }
    for (const auto& link : own) link->open() ? link->Close() : link->Fail({Code::kUnavailable, "not listening"});
  }

 private:
  void Watch() {
    context_->loop_.Watch(fd_, [this] { TakeAll(); });
  }
  void TakeAll() {
    while (context_ != nullptr) {
      const auto strangers = std::count_if(context_->links_.begin(), context_->links_.end(), [&](const auto& entry) {
        return entry.second.listener == this && !entry.second.link->open();
      });
      const bool room = static_cast<size_t>(strangers) < context_->options_.max_pending;
      const int fd = room ? accept4(fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC) : -1;
      if (fd >= 0) {
        context_->TakeStranger(*this, fd);
        continue;
      }
      if (room && (errno == EINTR || errno == ECONNABORTED)) continue;
      if (room && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      // No room here, or no descriptor: they wait in the backlog.
      context_->loop_.Unwatch(fd_);
      context_->Later(SteadyNow() + kTryAgain, [this, context = context_] {
        const auto& all = context->listeners_;
        if (std::find(all.begin(), all.end(), this) != all.end()) Watch();
      });
      return;
    }
  }

  ShmContext* context_;  // null once its end or ours has come
  const int fd_;
  const std::string address_;
  const OnAccept on_accept_;
};

ShmContext::ShmContext(Loop& loop, const Options& options)
    : loop_(loop), options_(options), pool_(kIdleBytes, SharedAllocator()) {
  idle_ = loop_.AddIdle([this] { return FlushListed(); });
}

ShmContext::~ShmContext() {
  EVERSTEP_CHECK(loop_.InLoop(), "a transport context belongs to its loop's thread");
  while (!listeners_.empty()) listeners_.back()->Leave();
  while (!links_.empty()) links_.begin()->second.link->FinishNow();
  *alive_ = false;
  loop_.RemoveIdle(idle_);
}

Result<std::unique_ptr<Listener>> ShmContext::Listen(const std::string& address, OnAccept on_accept) {
  EVERSTEP_CHECK(loop_.InLoop(), "a transport context belongs to its loop's thread");
  EVERSTEP_ASSIGN(std::string name, NameIn(address));
  if (name == "*") name = std::to_string(getpid()) + "-" + std::to_string(EntropyU64());
  EVERSTEP_ASSIGN(const int fd, OpenSocket());
  const UnixAddress local(name);
  if (bind(fd, local.get(), local.size) != 0 || listen(fd, kBacklog) != 0) {
    const int error = errno;
    close(fd);
    if (error == EADDRINUSE) {
      return Status(Code::kUnavailable,
                    "address taken: another listener has " + address + "; choose another, or shm://* for a free one");
    }
    return Status(Code::kUnavailable, "cannot listen on " + address + ": " + std::strerror(error));
  }
  return std::unique_ptr<Listener>(
      std::make_unique<ShmListener>(*this, fd, std::string(kScheme) + name, std::move(on_accept)));
}

std::shared_ptr<Link> ShmContext::Dial(const std::string& shown, ConnectionHandler* handler, Time until) {
  EVERSTEP_CHECK(loop_.InLoop(), "a transport context belongs to its loop's thread");
  auto link = std::make_shared<Link>(*this, Link::Side::kDialer, shown, options_);
  link->SetHandler(handler);
  links_[link.get()] = {link, nullptr};
  GiveUpAt(link, until, "no answer from " + shown + " in time");
  return link;
}

Result<std::shared_ptr<Connection>> ShmContext::Connect(const std::string& address, ConnectionHandler* handler,
                                                        Duration deadline) {
  EVERSTEP_ASSIGN(const std::string name, NameIn(address));
  const Time until = SteadyNow() + deadline;
  std::shared_ptr<Link> link = Dial(address, handler, until);
  TryConnect(link, name, until);
  return std::shared_ptr<Connection>(std::move(link));
}

std::shared_ptr<Connection> ShmContext::ConnectIfListening(const std::string& name, const std::string& shown,
                                                           ConnectionHandler* handler, Duration deadline) {
  if (name.size() > kMaxNameBytes) return nullptr;
  const Result<int> fd = OpenSocket();
  if (!fd.ok()) return nullptr;
  const UnixAddress remote(name);
  if (connect(*fd, remote.get(), remote.size) != 0) {
    close(*fd);
    return nullptr;
  }
  std::shared_ptr<Link> link = Dial(shown, handler, SteadyNow() + deadline);
  link->Attach(*fd);
  return link;
}

void ShmContext::TryConnect(const std::shared_ptr<Link>& link, const std::string& name, Time deadline) {
  if (!links_.contains(link.get())) return;
  const Result<int> fd = OpenSocket();
  const UnixAddress remote(name);
  if (fd.ok() && connect(*fd, remote.get(), remote.size) == 0) return link->Attach(*fd);
  const int error = errno;
  if (fd.ok()) close(*fd);
  if (fd.ok() && error == EAGAIN && SteadyNow() < deadline) {  // its backlog is full
    return Later(SteadyNow() + kTryAgain, [this, link, name, deadline] { TryConnect(link, name, deadline); });
  }
  const Status why(Code::kUnavailable, !fd.ok() ? fd.status().message()
                                       : error == ECONNREFUSED
                                           ? "nobody listens at " + link->peer()
                                           : "cannot connect to " + link->peer() + ": " + std::strerror(error));
  Later(SteadyNow(), [link, why] { link->Fail(why); });
}

void ShmContext::TakeStranger(ShmListener& listener, int fd) {
  auto link = std::make_shared<Link>(*this, Link::Side::kListener, "a peer at " + listener.address(), options_);
  links_[link.get()] = {link, &listener};
  link->Attach(fd);
  GiveUpAt(link, SteadyNow() + options_.handshake_deadline, "a stranger at " + listener.address() + " said nothing");
  SweepLater();
}

void ShmContext::GiveUpAt(const std::shared_ptr<Link>& link, Time deadline, const std::string& why) {
  Later(deadline, [weak = std::weak_ptr<Link>(link), why] {
    if (const auto alive = weak.lock(); alive && !alive->open() && !alive->over())
      alive->Fail({Code::kUnavailable, why});
  });
}

void ShmContext::Later(Time when, std::function<void()> task) {
  loop_.At(when, [alive = alive_, task = std::move(task)] {
    if (*alive) task();
  });
}

void ShmContext::SweepLater() {
  if (sweeping_ || SweepOrphans() == 0) return;
  sweeping_ = true;
  Later(SteadyNow() + kSweepEvery, [this] {
    sweeping_ = false;
    SweepLater();
  });
}

void ShmContext::Wake(Link& link) {
  if (std::exchange(link.listed, true)) return;
  listed_.push_back(link.shared_from_this());
}

bool ShmContext::FlushListed() {
  for (const auto& link : std::exchange(listed_, {})) {
    link->listed = false;
    link->Flush();
  }
  return !listed_.empty();
}

ConnectionHandler* ShmContext::Accept(const std::shared_ptr<Link>& link) {
  const auto it = links_.find(link.get());
  if (it == links_.end() || it->second.listener == nullptr) return nullptr;
  // A copy: the listener may end inside.
  const OnAccept on_accept = it->second.listener->on_accept();
  return on_accept(link);
}

void ShmContext::Ended(Link& link) {
  const auto it = links_.find(&link);
  if (it == links_.end()) return;
  const std::shared_ptr<Link> kept = std::move(it->second.link);
  links_.erase(it);
  if (*alive_) SweepLater();
}

std::vector<std::string> Schemes() { return {"shm"}; }

std::unique_ptr<SharedContext> MakeContext(Loop& loop, const Options& options) {
  return std::make_unique<ShmContext>(loop, options);
}

}  // namespace everstep::transport::shm
